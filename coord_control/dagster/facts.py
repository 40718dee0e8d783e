"""What definitions need from the control database: the names of jobs, queries and operators, and the schemas of their
control events and live values.

Definitions must load without the database, so these facts are read beforehand and kept as JSON. Combined with the
user's configuration, they determine which jobs get assets.

Threads: :func:`read_facts` blocks on the database.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from coord_control.control.client.reader import ControlReader
from coord_control.dagster.spec import ControlPlaneSpec, QuerySpec, StreamingJobSpec
from coord_control.storage.records import JobRecord

__all__ = [
    "DatabaseFacts",
    "KnownJob",
    "KnownModel",
    "KnownOperator",
    "from_json",
    "read_facts",
    "resolved_jobs",
    "to_json",
]


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A control event that an operator accepts, or a live value, and the JSON schema of its model."""

    name: str
    schema: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnownOperator:
    """An operator and the control events that it accepts."""

    uid: str
    events: tuple[KnownModel, ...] = ()


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job as last declared by its driver."""

    name: str
    queries: tuple[str, ...] = ()
    operators: tuple[KnownOperator, ...] = ()
    live: tuple[KnownModel, ...] = ()


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """All jobs of a control database, by name."""

    jobs: tuple[KnownJob, ...] = ()


_FACTS: Final[TypeAdapter[DatabaseFacts]] = TypeAdapter(DatabaseFacts)


def read_facts(client: ControlReader) -> DatabaseFacts:
    """Read the facts from the database.

    Raises:
        DatabaseError: the database cannot be read.
    """
    return DatabaseFacts(tuple(_job_facts(overview.job) for overview in client.fleet().jobs))


def to_json(facts: DatabaseFacts) -> str:
    """Return the facts as JSON."""
    return _FACTS.dump_json(facts).decode()


def from_json(text: str) -> DatabaseFacts:
    """Parse facts from JSON; fields that a newer release has added are ignored.

    Raises:
        ValueError: the text does not contain facts.
    """
    try:
        return _FACTS.validate_json(text)
    except ValidationError as error:
        raise ValueError(f"not a valid description of a control database: {error.errors()[0]['msg']}") from error


def resolved_jobs(spec: ControlPlaneSpec, facts: DatabaseFacts | None) -> tuple[StreamingJobSpec, ...]:
    """Return the jobs to define: the configured ones, then the discovered ones by name, if `discover` is set.

    Args:
        facts: what is known about the database, or None; without it, jobs that do not name their queries have none.
    """
    known = {job.name: job for job in facts.jobs} if facts is not None else {}
    jobs = [_with_queries(job, known.get(job.name)) for job in spec.jobs]
    if spec.discover:
        written = {job.name for job in spec.jobs}
        jobs += [_discovered(spec.defaults, known[name]) for name in sorted(known) if name not in written]
    return tuple(jobs)


def _with_queries(job: StreamingJobSpec, facts: KnownJob | None) -> StreamingJobSpec:
    if job.queries is not None:
        return job
    names = facts.queries if facts is not None else ()
    return job.model_copy(update={"queries": [QuerySpec(name=name) for name in names]})


def _discovered(defaults: StreamingJobSpec, facts: KnownJob) -> StreamingJobSpec:
    # Schedules of several jobs cannot share a name, so each is named after its job.
    schedules = [schedule.model_copy(update={"name": None}) for schedule in defaults.schedules]
    job = defaults.model_copy(update={"name": facts.name, "queries": None, "schedules": schedules}, deep=True)
    return _with_queries(job, facts)


def _job_facts(job: JobRecord) -> KnownJob:
    return KnownJob(
        name=job.name,
        queries=tuple(query.name for query in job.queries),
        operators=tuple(
            KnownOperator(operator.uid, tuple(KnownModel(event.name, event.schema) for event in operator.event_types))
            for operator in job.operators
        ),
        live=tuple(KnownModel(value.name, value.schema) for value in job.live_values),
    )
