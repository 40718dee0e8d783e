"""How a streaming job appears in the asset graph: keys, groups, owners, tags. Subclass the translator to change it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import dagster as dg

from coord_control.dagster.spec import QuerySpec, StreamingJobSpec

__all__ = ["StreamingJobTranslator"]

_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_]+")


class StreamingJobTranslator:
    """Chooses the names; every method may be overridden.

    By default the assets of a job ``flights`` with a query ``counts`` are ``flights/checkpoint``,
    ``flights/savepoint`` and ``flights/query/counts``, in the group ``flights``.
    """

    def checkpoint_key(self, job: StreamingJobSpec) -> dg.AssetKey:
        """Return the key of the checkpoint asset."""
        return dg.AssetKey([_part(job.name), "checkpoint"])

    def savepoint_key(self, job: StreamingJobSpec) -> dg.AssetKey:
        """Return the key of the savepoint asset."""
        return dg.AssetKey([_part(job.name), "savepoint"])

    def query_key(self, job: StreamingJobSpec, query: QuerySpec) -> dg.AssetKey:
        """Return the key of the asset that a query writes."""
        if query.key:
            return dg.AssetKey.from_user_string(query.key)
        return dg.AssetKey([_part(job.name), "query", _part(query.name)])

    def group(self, job: StreamingJobSpec) -> str:
        """Return the group of all assets of the job."""
        return job.group or _part(job.name)

    def owners(self, job: StreamingJobSpec) -> Sequence[str]:
        """Return the owners of all assets of the job: e-mail addresses, or ``team:name``."""
        return job.owners

    def tags(self, job: StreamingJobSpec) -> Mapping[str, str]:
        """Return the tags of all assets of the job."""
        return {"coord_control/job": _part(job.name), **job.tags}

    def kinds(self, job: StreamingJobSpec) -> set[str]:
        """Return the kinds, which the asset graph shows as icons."""
        return {"spark", "streaming"}

    def retry_policy(self, job: StreamingJobSpec, purpose: str) -> dg.RetryPolicy | None:
        """Return how often Dagster retries a failed step; ``purpose`` is checkpoint or savepoint.

        A retry waits for the request of an earlier attempt, and makes a new one only if that failed. By default steps
        are not retried, so that a job that is down is reported at once.
        """
        return None

    def name(self, job: StreamingJobSpec, purpose: str) -> str:
        """Return the name of a definition other than an asset: a schedule or a step."""
        return f"{_part(job.name)}__{_part(purpose)}"


def _part(name: str) -> str:
    """Return a name that Dagster accepts: letters, digits and underscores."""
    return _NOT_A_NAME.sub("_", name)
