"""Whether a fork can take the place of its parent: facts in, decision out.

A fork is ready when it runs without trouble, could be restored itself, and is about as far in its input as its parent:
readers that move to its output must not see older data than before. A backlog is large above a limit of records, and
above what its parent has left, give or take a fifth: a parent that is behind itself asks no more of its fork.

Threads: values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from coord_control.storage.records import JobRecord, JobState, QueryRecord

__all__ = ["Readiness", "is_expected", "readiness_of"]

#: What comes and goes between two batches, as in Dagster's check of the backlog.
_CLEARLY: Final = 1.2
_RUNNING: Final = "running"


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a fork is ready at one moment.

    Attributes:
        problems: why it is not; empty if it is.
        unknown: what could not be judged, and is no reason against it.
    """

    problems: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def is_expected(job: JobRecord) -> bool:
    """Return whether a job has a driver, or its supervisor is about to start one."""
    return job.is_alive or job.is_restarting


def readiness_of(fork: JobRecord, parent: JobRecord, *, is_saved: bool, max_backlog: int) -> Readiness:
    """Judge a fork.

    Args:
        is_saved: it has completed a checkpoint or savepoint since it was restored.
        max_backlog: how many records may wait for a query that its parent has too.
    """
    problems = [*_not_running(fork)]
    if not is_saved:
        problems.append(
            f"it has completed no checkpoint since it was restored: coordctl checkpoint trigger {fork.name}"
        )
    own = {query.name: query for query in _started(fork)}
    unknown = []
    for before in _started(parent):
        query = own.get(before.name)
        if query is None:
            unknown.append(f"whether it replaces query {before.name} of job {parent.name}: it runs none of that name")
        elif query.backlog is None:
            unknown.append(f"the backlog of query {query.name}, because its sources report none")
        elif query.backlog > max(max_backlog, _CLEARLY * (before.backlog or 0)):
            theirs = "" if before.backlog is None else f", and {before.backlog:,} for that of job {parent.name}"
            problems.append(f"{query.backlog:,} records wait for query {query.name}{theirs}")
    return Readiness(tuple(problems), tuple(unknown))


def _not_running(job: JobRecord) -> Iterator[str]:
    if not job.is_alive:
        yield "it has no driver"
    elif job.state is not JobState.RUNNING:
        yield f"its driver is {job.state.value}"
    elif not _started(job):
        yield "none of its queries has started"
    else:
        yield from (f"query {query.name} is {query.state}" for query in _started(job) if query.state != _RUNNING)


def _started(job: JobRecord) -> list[QueryRecord]:
    return [query for query in job.queries if query.state]  # those that this driver has started
