"""How a streaming job looks in the asset graph: keys, groups, owners, tags, descriptions. Subclass to change it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import dagster as dg

from coord_control.dagster.spec import QuerySpec, StreamingJobSpec

__all__ = ["StreamingJobTranslator"]

_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_]+")


class StreamingJobTranslator:
    """Decides the names; every method may be overridden.

    By default the assets of a job ``flights`` with a query ``counts`` are ``flights/checkpoint``,
    ``flights/savepoint`` and ``flights/query/counts``, in the group ``flights``.
    """

    def checkpoint_key(self, job: StreamingJobSpec) -> dg.AssetKey:
        """Its checkpoints."""
        return dg.AssetKey([_part(job.name), "checkpoint"])

    def savepoint_key(self, job: StreamingJobSpec) -> dg.AssetKey:
        """Its savepoints."""
        return dg.AssetKey([_part(job.name), "savepoint"])

    def query_key(self, job: StreamingJobSpec, query: QuerySpec) -> dg.AssetKey:
        """What one of its queries writes."""
        if query.key:
            return dg.AssetKey.from_user_string(query.key)
        return dg.AssetKey([_part(job.name), "query", _part(query.name)])

    def group(self, job: StreamingJobSpec) -> str:
        """The group of all of them."""
        return job.group or _part(job.name)

    def owners(self, job: StreamingJobSpec) -> Sequence[str]:
        """Who looks after them: e-mail addresses, or ``team:name``."""
        return job.owners

    def tags(self, job: StreamingJobSpec) -> Mapping[str, str]:
        """Of all of them."""
        return {"coord_control/job": _part(job.name), **job.tags}

    def kinds(self, job: StreamingJobSpec) -> set[str]:
        """The symbols that the asset graph shows."""
        return {"spark", "streaming"}

    def retry_policy(self, job: StreamingJobSpec, purpose: str) -> dg.RetryPolicy | None:
        """How often Dagster runs a step again that has failed; ``purpose`` is checkpoint or savepoint.

        A retry waits for what an earlier attempt has asked for, and asks anew only if that came to nothing. By default
        there is none: a job that is down is then reported at once.
        """
        return None

    def name(self, job: StreamingJobSpec, purpose: str) -> str:
        """The name of a definition of the job that is no asset: a schedule, a step."""
        return f"{_part(job.name)}__{_part(purpose)}"


def _part(name: str) -> str:
    """A name as Dagster takes it: letters, digits and underscores."""
    return _NOT_A_NAME.sub("_", name)
