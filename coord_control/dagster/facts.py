"""What the control database knows of its jobs, as far as definitions depend on it: names of queries, operators, events.

Definitions must load without the database, so these facts are read at one time and used at another; in between they are
JSON. Together with what a user has written they give the jobs that there are assets for.

Threads: values; :func:`read_facts` blocks on the database.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter, ValidationError

from coord_control.control.client.reader import ControlReader
from coord_control.dagster.spec import ControlPlaneSpec, QuerySpec, StreamingJobSpec
from coord_control.storage.records import JobRecord

__all__ = ["DatabaseFacts", "JobFacts", "OperatorFacts", "from_json", "read_facts", "resolved_jobs", "to_json"]


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """An operator, and the control events that it takes, by name."""

    uid: str
    events: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A job, as its driver last declared it."""

    name: str
    queries: tuple[str, ...] = ()
    operators: tuple[OperatorFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """All jobs of a control database, by name."""

    jobs: tuple[JobFacts, ...] = ()


_FACTS: Final[TypeAdapter[DatabaseFacts]] = TypeAdapter(DatabaseFacts)


def read_facts(client: ControlReader) -> DatabaseFacts:
    """Ask the database.

    Raises:
        DatabaseError: it cannot be read.
    """
    return DatabaseFacts(tuple(_job_facts(overview.job) for overview in client.fleet().jobs))


def to_json(facts: DatabaseFacts) -> str:
    """Facts as text."""
    return _FACTS.dump_json(facts).decode()


def from_json(text: str) -> DatabaseFacts:
    """Facts from text; what a newer release has added is ignored.

    Raises:
        ValueError: it says something else.
    """
    try:
        return _FACTS.validate_json(text)
    except ValidationError as error:
        raise ValueError(f"these are no facts about a control database: {error.errors()[0]['msg']}") from error


def resolved_jobs(spec: ControlPlaneSpec, facts: DatabaseFacts | None) -> tuple[StreamingJobSpec, ...]:
    """The jobs that there are definitions for: those that are written down, then, if wanted, all others by name.

    Args:
        facts: None: nothing is known; jobs that do not name their queries then have none.
    """
    known = {job.name: job for job in facts.jobs} if facts is not None else {}
    jobs = [_with_queries(job, known.get(job.name)) for job in spec.jobs]
    if spec.discover:
        written = {job.name for job in spec.jobs}
        jobs += [_discovered(spec.defaults, known[name]) for name in sorted(known) if name not in written]
    return tuple(jobs)


def _with_queries(job: StreamingJobSpec, facts: JobFacts | None) -> StreamingJobSpec:
    if job.queries is not None:
        return job
    names = facts.queries if facts is not None else ()
    return job.model_copy(update={"queries": [QuerySpec(name=name) for name in names]})


def _discovered(defaults: StreamingJobSpec, facts: JobFacts) -> StreamingJobSpec:
    # A schedule of many jobs cannot have one name: each gets that of its job.
    schedules = [schedule.model_copy(update={"name": None}) for schedule in defaults.schedules]
    job = defaults.model_copy(update={"name": facts.name, "queries": None, "schedules": schedules}, deep=True)
    return _with_queries(job, facts)


def _job_facts(job: JobRecord) -> JobFacts:
    return JobFacts(
        name=job.name,
        queries=tuple(query.name for query in job.queries),
        operators=tuple(
            OperatorFacts(operator.uid, tuple(event.name for event in operator.event_types))
            for operator in job.operators
        ),
    )
