"""Jobs: their drivers, their state, and the generation of the newest driver.

The generation in a job's row is a fence across machines: a driver writes its own when it registers, its later writes
are conditional on it, and a driver that finds a newer generation stops. The storage has the final say (protocol section
6); this row only makes drivers notice it sooner.

Threads: any.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, delete, select, update

from coord_control.errors import GenerationSuperseded, JobNotFound, JobStillAlive
from coord_control.storage import tables
from coord_control.storage.command_rows import fail_claimed, fulfil_restarts, refuse_pending, tell_restarts
from coord_control.storage.database import Database, Transaction
from coord_control.storage.job_rows import (
    alive,
    driver_expected,
    is_overdue,
    job_record,
    of_live_values,
    restarting,
)
from coord_control.storage.records import (
    AgentMetrics,
    GenerationRecord,
    Heartbeat,
    JobRecord,
    JobRegistration,
    JobState,
    LiveStatus,
    OperatorRecord,
    QueryRecord,
    to_json,
)

__all__ = ["COMMANDS_CHANNEL", "Jobs", "job_not_found", "locked_generation", "read_job"]

#: The channel on which drivers listen on PostgreSQL; the payload is the name of a job.
COMMANDS_CHANNEL = "coord_commands"


class Jobs:
    """The jobs of a control database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def register(self, registration: JobRegistration) -> None:
        """Register a driver that has started, or the changed queries and operators of a registered one.

        Raises:
            GenerationSuperseded: a newer driver has registered.
            DatabaseError: nothing was written.
        """
        with self._database.transaction() as transaction:
            job = _register_job(transaction, registration)
            _register_generation(transaction, job, registration)
            _save_queries(transaction, job, registration.queries)
            _save_operators(transaction, job, registration.operators)
            transaction.notify(COMMANDS_CHANNEL, registration.name)

    def heartbeat(
        self,
        name: str,
        generation: int,
        live: LiveStatus | None = None,
        agent: AgentMetrics | None = None,
        *,
        state: JobState | None = None,
    ) -> Heartbeat:
        """Renew the lease of a driver and write its state.

        Raises:
            GenerationSuperseded: a newer driver has registered; nothing was written.
            JobNotFound: the job's history was removed: register again.
        """
        with self._database.transaction() as transaction:
            now = transaction.now
            values: dict[str, Any] = {"heartbeat_at": now}
            if live is not None:
                values["live"] = to_json(live)
            if agent is not None:
                values["agent"] = to_json(agent)
            if state is not None:
                values["state"] = state
            changed = transaction.execute(
                update(tables.jobs)
                .where(tables.jobs.c.name == name, tables.jobs.c.generation == generation)
                .values(values)
            )
            if changed.rowcount == 0:
                locked_generation(transaction, name, generation, self._database.display_url)
                raise _unregistered(name, generation)
            return Heartbeat(now=now)

    def ended(
        self,
        name: str,
        generation: int,
        state: JobState = JobState.ENDED,
        reason: str = "",
        *,
        is_clean: bool = True,
        is_final: bool = False,
        queries: Sequence[QueryRecord] = (),
    ) -> None:
        """Record that a driver has ended. Unless its supervisor starts it again, the commands that wait are refused.

        Args:
            is_final: no supervisor starts the driver again, because that cannot help.
            queries: how its queries have ended.

        Raises:
            GenerationSuperseded: a newer driver has registered; only the log of generations was written.
            JobNotFound: there is no such job.
        """
        with self._database.transaction() as transaction:
            job, newest, holder = _lock(transaction, name, self._database.display_url)
            ending = {"ended_at": transaction.now, "end_reason": reason}
            transaction.execute(
                update(tables.generations)
                .where(tables.generations.c.job_id == job, tables.generations.c.generation == generation)
                .values(**ending, is_clean=is_clean)
            )
            if newest == generation:
                values = {**ending, "state": JobState(state), **({"is_supervised": False} if is_final else {})}
                transaction.execute(update(tables.jobs).where(tables.jobs.c.id == job).values(values))
                _save_queries(transaction, job, queries)
                row = transaction.execute(select(tables.jobs).where(tables.jobs.c.id == job)).one()
                if not restarting(row, transaction.now):
                    refuse_pending(transaction, row)
        if newest > generation:
            raise GenerationSuperseded(name, generation, newest, holder)

    def driver_not_started(self, name: str, generation: int, reason: str, *, is_final: bool) -> None:
        """Record the supervisor's report that a job has failed, because its next driver does not start.

        Nothing is written if there is no such job, if a newer driver has registered, or if the job was to end.

        Args:
            generation: the last driver that has run the job; its process is gone.
            is_final: the supervisor has ended too: what waits for the next driver is refused, or has failed.
                Otherwise the restart only shows the reason.
        """
        with self._database.transaction() as transaction:
            # A lower one: the last driver could not reach the database.
            jobs = select(tables.jobs).where(tables.jobs.c.name == name, tables.jobs.c.generation <= generation)
            row = transaction.execute(jobs.with_for_update(key_share=True)).one_or_none()
            if row is None or not driver_expected(row):
                return
            values = {"state": JobState.FAILED, "end_reason": reason, "ended_at": row.ended_at or transaction.now}
            supervised = {"is_supervised": False} if is_final else {}
            transaction.execute(update(tables.jobs).where(tables.jobs.c.id == row.id).values({**values, **supervised}))
            if is_final:
                row = transaction.execute(jobs).one()
                refuse_pending(transaction, row)
                fail_claimed(transaction, row)
            else:
                tell_restarts(transaction, row, reason)

    def update_queries(self, name: str, generation: int, queries: Sequence[QueryRecord]) -> None:
        """Update the stored query records.

        Raises:
            GenerationSuperseded, JobNotFound: nothing was written.
        """
        with self._database.transaction() as transaction:
            job = locked_generation(transaction, name, generation, self._database.display_url)
            _save_queries(transaction, job, queries)

    def update_operators(self, name: str, generation: int, operators: Sequence[OperatorRecord]) -> None:
        """Update the stored operator records; ``applied_number`` follows the coordinator, also backwards.

        Raises:
            GenerationSuperseded, JobNotFound: nothing was written.
        """
        with self._database.transaction() as transaction:
            job = locked_generation(transaction, name, generation, self._database.display_url)
            _save_operators(transaction, job, operators)

    def get(self, name: str) -> JobRecord:
        """Return a job with its queries, operators and live values.

        Raises:
            JobNotFound: there is no such job; the message names similar ones.
        """
        with self._database.reading() as transaction:
            return read_job(transaction, name, self._database.display_url)

    def list(
        self, *, state: JobState | None = None, limit: int | None = None, after: str | None = None
    ) -> tuple[JobRecord, ...]:
        """Return jobs by name, without their parts; only those after ``after``, if given."""
        query = select(tables.jobs).order_by(tables.jobs.c.name).limit(limit)
        if state is not None:
            query = query.where(tables.jobs.c.state == state)
        if after is not None:
            query = query.where(tables.jobs.c.name > after)
        with self._database.reading() as transaction:
            rows = transaction.execute(query).all()
            return tuple(job_record(row, transaction.now) for row in rows)

    def generations(self, name: str, limit: int = 100) -> tuple[GenerationRecord, ...]:
        """Return the drivers of a job, newest first.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._database.reading() as transaction:
            job = find(transaction, name, self._database.display_url)
            rows = transaction.execute(
                select(tables.generations)
                .where(tables.generations.c.job_id == job)
                .order_by(tables.generations.c.generation.desc())
                .limit(limit)
            ).all()
        return tuple(_generation_record(name, row) for row in rows)

    def forget(self, name: str, *, force: bool = False) -> None:
        """Remove a job and its history from the database, but not its storage, savepoints or audit trail.

        Raises:
            JobNotFound: there is no such job.
            JobStillAlive: it has a live driver, and ``force`` is false.
        """
        with self._database.transaction() as transaction:
            _lock(transaction, name, self._database.display_url)
            row = transaction.execute(select(tables.jobs).where(tables.jobs.c.name == name)).one()
            if not force and alive(row, transaction.now):
                raise JobStillAlive(name, row.host)
            transaction.execute(delete(tables.jobs).where(tables.jobs.c.id == row.id))


def read_job(transaction: Transaction, name: str, database: str) -> JobRecord:
    """Return a job with its queries, operators and live values.

    Raises:
        JobNotFound: there is no such job.
    """
    row = transaction.execute(select(tables.jobs).where(tables.jobs.c.name == name)).one_or_none()
    if row is None:
        raise job_not_found(transaction, name, database)
    queries = transaction.execute(
        select(tables.queries).where(tables.queries.c.job_id == row.id).order_by(tables.queries.c.name)
    )
    operators = transaction.execute(
        select(tables.operators).where(tables.operators.c.job_id == row.id).order_by(tables.operators.c.uid)
    )
    live_values = transaction.execute(of_live_values(tables.jobs.c.id == row.id))
    return job_record(row, transaction.now, queries, operators, live_values)


def find(transaction: Transaction, name: str, database: str) -> int:
    """Return the row number of a job.

    Raises:
        JobNotFound: there is no such job.
    """
    job: int | None = transaction.execute(select(tables.jobs.c.id).where(tables.jobs.c.name == name)).scalar()
    if job is None:
        raise job_not_found(transaction, name, database)
    return job


def job_not_found(transaction: Transaction, name: str, database: str) -> JobNotFound:
    """Return an error that names the jobs that there are, and those with similar names."""
    names = transaction.execute(select(tables.jobs.c.name).order_by(tables.jobs.c.name)).scalars().all()
    near = difflib.get_close_matches(name, names, n=3)
    hint = "a job is recorded there when its driver starts"
    return JobNotFound(name, f"the control database {database}", near, hint, names)


def locked_generation(transaction: Transaction, name: str, generation: int, database: str) -> int:
    """Lock a job against registrations, check that ``generation`` is its newest, and return its row number.

    Raises:
        GenerationSuperseded: there is a newer one.
        JobNotFound: there is no such job.
    """
    job, newest, holder = _lock(transaction, name, database)
    if newest > generation:
        raise GenerationSuperseded(name, generation, newest, holder)
    if newest < generation:
        raise _unregistered(name, generation)
    return job


def _unregistered(name: str, generation: int) -> JobNotFound:
    return JobNotFound(name, f"the control database with generation {generation}", [], "its driver has to register")


def _lock(transaction: Transaction, name: str, database: str) -> tuple[int, int, str]:
    row = transaction.execute(
        select(tables.jobs.c.id, tables.jobs.c.generation, tables.jobs.c.host)
        .where(tables.jobs.c.name == name)
        .with_for_update(key_share=True)  # rows that refer to it can still be written
    ).one_or_none()
    if row is None:
        raise job_not_found(transaction, name, database)
    return row.id, row.generation, row.host


def _register_job(transaction: Transaction, registration: JobRegistration) -> int:
    now = transaction.now
    first = transaction.insert(tables.jobs).values(
        name=registration.name,
        root=registration.root,
        folder=registration.folder,
        created_at=now,
        generation=0,  # below that of every driver, so that the statement for existing jobs writes the rest
        state=JobState.STARTING,
        host=registration.host,
        pid=registration.pid,
        driver_started_at=now,
        heartbeat_at=now,
        lease_seconds=registration.lease_seconds,
        end_reason="",
        is_supervised=registration.is_supervised,
        spark_version="",
        version="",
    )
    transaction.execute(first.on_conflict_do_nothing(index_elements=["name"]))
    job, newest, holder = _lock(transaction, registration.name, "")
    if newest > registration.generation:
        raise GenerationSuperseded(registration.name, registration.generation, newest, holder)
    values: dict[str, Any] = {
        "root": registration.root,
        "folder": registration.folder,
        "generation": registration.generation,
        "state": JobState(registration.state),
        "host": registration.host,
        "pid": registration.pid,
        "heartbeat_at": now,
        "lease_seconds": registration.lease_seconds,
        "ended_at": None,
        "end_reason": "",
        "is_supervised": registration.is_supervised,
        "log_file": registration.log_file,
        "spark_version": registration.spark_version,
        "version": registration.version,
    }
    if newest < registration.generation:
        row = transaction.execute(select(tables.jobs).where(tables.jobs.c.id == job)).one()
        if is_overdue(row, now):  # a client was, or would have been, answered in this way
            refuse_pending(transaction, row)
        values |= {"driver_started_at": now, "live": None, "agent": None}
        _close_older(transaction, job, registration.generation)
        _forget_progress(transaction, job)
        fulfil_restarts(transaction, job, newest, registration.process_seconds)
    transaction.execute(update(tables.jobs).where(tables.jobs.c.id == job).values(values))
    return job


def _close_older(transaction: Transaction, job: int, generation: int) -> None:
    # Their drivers were killed, or could not reach the database when they ended.
    transaction.execute(
        update(tables.generations)
        .where(
            tables.generations.c.job_id == job,
            tables.generations.c.generation < generation,
            tables.generations.c.ended_at.is_(None),
        )
        .values(ended_at=transaction.now, end_reason=f"generation {generation} took over", is_clean=False)
    )


def _forget_progress(transaction: Transaction, job: int) -> None:
    # The positions of the queries are unknown until the new driver has started them: their rows date from an older
    # driver's declaration, its later values were in its heartbeats, and a restore may have set the queries back.
    transaction.execute(
        update(tables.queries)
        .where(tables.queries.c.job_id == job)
        .values(state="", epoch=None, restarts=0, last_failure="", updated_at=transaction.now)
    )


def _register_generation(transaction: Transaction, job: int, registration: JobRegistration) -> None:
    insert = transaction.insert(tables.generations).values(
        job_id=job,
        generation=registration.generation,
        host=registration.host,
        pid=registration.pid,
        started_at=transaction.now,
        end_reason="",
        is_clean=False,
    )
    transaction.execute(
        insert.on_conflict_do_update(
            index_elements=["job_id", "generation"],
            set_={"host": registration.host, "pid": registration.pid, "ended_at": None, "end_reason": ""},
        )
    )


def _save_queries(transaction: Transaction, job: int, queries: Sequence[QueryRecord]) -> None:
    insert = transaction.insert(tables.queries)
    changing = ("query_id", "lineage", "state", "epoch", "restarts", "last_failure", "updated_at")
    statement = insert.on_conflict_do_update(
        index_elements=["job_id", "name"], set_={name: insert.excluded[name] for name in changing}
    )
    for query in queries:
        values = {name: getattr(query, name) for name in ("name", *changing)}
        transaction.execute(statement, {**values, "job_id": job, "updated_at": query.updated_at or transaction.now})


def _save_operators(transaction: Transaction, job: int, operators: Sequence[OperatorRecord]) -> None:
    insert = transaction.insert(tables.operators)
    changing = ("query", "parallelism", "event_types", "applied_number")
    statement = insert.on_conflict_do_update(
        index_elements=["job_id", "uid"], set_={name: insert.excluded[name] for name in changing}
    )
    for operator in operators:
        values = {
            "job_id": job,
            "uid": operator.uid,
            "query": operator.query,
            "parallelism": operator.parallelism,
            "event_types": to_json((*operator.event_types, *operator.request_types)),
            "applied_number": operator.applied_number,
        }
        transaction.execute(statement, values)


def _generation_record(job: str, row: Row[Any]) -> GenerationRecord:
    values = {name: value for name, value in row._mapping.items() if name != "job_id"}
    return GenerationRecord(job=job, **values)
