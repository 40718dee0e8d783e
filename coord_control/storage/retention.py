"""Removes history that is old or exceeds a limit, except rows that are still referred to.

Never removed are

- a completed checkpoint that is on storage, and the newest one that was ever completed;
- a checkpoint in progress, unless its driver is gone and it is old;
- a checkpoint that a recovery, a savepoint or an unfinished command refers to;
- a command that is not finished, and the highest control event of each operator, which the next number depends on;
- a control event that a restore may need again (:mod:`.restorable`);
- the change of a live value that is accepted;
- the newest drivers of a job; jobs and savepoints, which only users remove;
- samples that have not been rolled up yet.

One process at a time removes history, in transactions of a few hundred rows, so that no writer waits for long.

Threads: any; any number of processes may try.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, Table, and_, delete, exists, func, select, tuple_, update

from coord_control.storage import tables
from coord_control.storage.database import Database, Transaction
from coord_control.storage.records import FINISHED_COMMAND_STATES, CheckpointState, Record
from coord_control.storage.restorable import is_in_every_restorable_state
from coord_control.storage.samples import KEEP_FINEST, RESOLUTIONS, rolled_up_to

__all__ = ["PruneReport", "RetentionPolicy", "prune"]

_DUTY: Final = "retention"

#: A process that has not reported for this long counts as dead, and another one may start.
_LEASE: Final = timedelta(minutes=2)

_BATCH: Final = 500

_checkpoints = tables.checkpoints.c
_commands = tables.commands.c
_changes = tables.live_changes.c


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy(Record):
    """How much history is kept: rows that are within both the age limit and the count limit.

    Attributes:
        history: maximum age of removed and failed checkpoints, commands, recoveries, changes of live values and audit
            entries.
        checkpoints: maximum number per job.
        commands: maximum number of finished ones per job.
        generations: maximum number of drivers per job.
        live_changes: maximum number of changes per live value.
        audit: maximum number of entries in total.
        samples: maximum age of samples of each resolution; at least an hour for the finest.
    """

    history: timedelta = timedelta(days=90)
    checkpoints: int = 100_000
    commands: int = 100_000
    generations: int = 1_000
    live_changes: int = 1_000
    audit: int = 1_000_000
    samples: tuple[timedelta, ...] = (timedelta(hours=1), timedelta(days=1), timedelta(days=90))


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport(Record):
    """The number of removed rows; not ``is_leader`` if another process was removing, and nothing was done."""

    is_leader: bool
    removed: dict[str, int]


def prune(database: Database, policy: RetentionPolicy | None = None, *, now: datetime | None = None) -> PruneReport:
    """Remove history that the policy does not keep.

    Args:
        now: the time; None for the database's time.

    Raises:
        DatabaseError: some rows may already be removed; the next call removes the rest.
    """
    policy = policy or RetentionPolicy()
    with database.transaction() as transaction:
        if not _lead(transaction):
            return PruneReport(is_leader=False, removed={})
        moment = now or transaction.now
        jobs = transaction.execute(select(tables.jobs.c.id).order_by(tables.jobs.c.id)).scalars().all()
    removed: dict[str, int] = {}

    def remove(name: str, table: Table, doomed: Callable[[Transaction], Select[Any] | None]) -> None:
        removed[name] = removed.get(name, 0) + _in_batches(database, table, doomed)

    begin = moment - policy.history
    # Recoveries before the checkpoints that they refer to.
    remove("recoveries", tables.recoveries, lambda _: _older(tables.recoveries, "started_at", begin))
    for job in jobs:
        for doomed in (_old_checkpoints(job, begin), _surplus_checkpoints(job, policy.checkpoints)):
            remove("checkpoints", tables.checkpoints, doomed)
        for doomed in (_old_commands(job, begin), _surplus_commands(job, policy.commands)):
            remove("commands", tables.commands, doomed)
        for query in (_old_changes(job, begin), _surplus_changes(job, policy.live_changes)):
            remove("live_changes", tables.live_changes, query)
        remove("generations", tables.generations, _surplus_generations(job, policy.generations))
    remove("audit", tables.audit, lambda _: _older(tables.audit, "at", begin))
    remove("audit", tables.audit, lambda transaction: _surplus_audit(transaction, policy.audit))
    for resolution, kept in zip(RESOLUTIONS, policy.samples, strict=True):
        for table in (tables.query_samples, tables.operator_samples):
            remove(table.name, table, _old_samples(table, resolution, moment - kept, moment))
    with database.transaction() as transaction:
        _give_up_lead(transaction)
    return PruneReport(is_leader=True, removed=removed)


def _lead(transaction: Transaction) -> bool:
    table = tables.upkeep
    insert = transaction.insert(table).values(duty=_DUTY, at=transaction.now)
    taken = insert.on_conflict_do_update(
        index_elements=["duty"], set_={"at": insert.excluded.at}, where=table.c.at < transaction.now - _LEASE
    )
    return transaction.execute(taken.returning(table.c.duty)).first() is not None


def _renew(transaction: Transaction) -> None:
    transaction.execute(update(tables.upkeep).where(tables.upkeep.c.duty == _DUTY).values(at=transaction.now))


def _give_up_lead(transaction: Transaction) -> None:
    transaction.execute(delete(tables.upkeep).where(tables.upkeep.c.duty == _DUTY))


def _in_batches(database: Database, table: Table, doomed: Callable[[Transaction], Select[Any] | None]) -> int:
    key = tuple_(*table.primary_key.columns)
    removed = 0
    while True:
        # The search blocks no writer, so it may be slow. Its results are checked again when they are removed.
        with database.reading() as transaction:
            query = doomed(transaction)
            rows = [] if query is None else [tuple(row) for row in transaction.execute(query.limit(_BATCH))]
        if query is None or not rows:
            return removed
        with database.transaction() as transaction:
            _renew(transaction)
            still = query.where(key.in_(rows)).order_by(None).correlate(None)
            removed += transaction.execute(delete(table).where(key.in_(still))).rowcount
        if len(rows) < _BATCH:
            return removed


def _keys(table: Table) -> Select[Any]:
    return select(*table.primary_key.columns)


def _older(table: Table, column: str, begin: datetime) -> Select[Any]:
    return _keys(table).where(table.c[column] < begin).order_by(table.c[column])


def _old_checkpoints(job: int, begin: datetime) -> Callable[[Transaction], Select[Any] | None]:
    def doomed(transaction: Transaction) -> Select[Any] | None:
        return _removable_checkpoints(job).where(_checkpoints.triggered_at < begin).order_by(_checkpoints.checkpoint)

    return doomed


def _surplus_checkpoints(job: int, kept: int) -> Callable[[Transaction], Select[Any] | None]:
    def doomed(transaction: Transaction) -> Select[Any] | None:
        ids = select(_checkpoints.checkpoint).where(_checkpoints.job_id == job)
        last = transaction.execute(ids.order_by(_checkpoints.checkpoint.desc()).offset(kept).limit(1)).scalar()
        if last is None:
            return None
        return _removable_checkpoints(job).where(_checkpoints.checkpoint <= last).order_by(_checkpoints.checkpoint)

    return doomed


def _removable_checkpoints(job: int) -> Select[Any]:
    over = (CheckpointState.COMPLETED, CheckpointState.DISCARDED)
    others = tables.checkpoints.alias("others").c
    newest = select(func.max(others.checkpoint)).where(others.job_id == job, others.state.in_(over)).scalar_subquery()
    generation = select(tables.jobs.c.generation).where(tables.jobs.c.id == job).scalar_subquery()
    abandoned = and_(_checkpoints.state == CheckpointState.IN_PROGRESS, _checkpoints.generation < generation)
    return _keys(tables.checkpoints).where(
        _checkpoints.job_id == job,
        _checkpoints.state.in_((CheckpointState.FAILED, CheckpointState.DISCARDED)) | abandoned,
        _checkpoints.checkpoint != func.coalesce(newest, -1),
        *(~each for each in _references(job)),
    )


def _references(job: int) -> tuple[ColumnElement[bool], ...]:
    recoveries, savepoints = tables.recoveries.c, tables.savepoints.c
    name = select(tables.jobs.c.name).where(tables.jobs.c.id == job).scalar_subquery()
    return (
        exists().where(recoveries.job_id == job, recoveries.from_checkpoint == _checkpoints.checkpoint),
        exists().where(savepoints.job_name == name, savepoints.checkpoint == _checkpoints.checkpoint),
        exists().where(
            _commands.job_id == job,
            _commands.checkpoint == _checkpoints.checkpoint,
            _commands.state.not_in(FINISHED_COMMAND_STATES),
        ),
    )


def _old_commands(job: int, begin: datetime) -> Callable[[Transaction], Select[Any] | None]:
    def doomed(transaction: Transaction) -> Select[Any] | None:
        return _removable_commands(transaction, job).where(_commands.finished_at < begin).order_by(_commands.id)

    return doomed


def _surplus_commands(job: int, kept: int) -> Callable[[Transaction], Select[Any] | None]:
    def doomed(transaction: Transaction) -> Select[Any] | None:
        ids = select(_commands.id).where(_commands.job_id == job, _commands.state.in_(FINISHED_COMMAND_STATES))
        last = transaction.execute(ids.order_by(_commands.id.desc()).offset(kept).limit(1)).scalar()
        if last is None:
            return None
        return _removable_commands(transaction, job).where(_commands.id <= last).order_by(_commands.id)

    return doomed


def _removable_commands(transaction: Transaction, job: int) -> Select[Any]:
    others = tables.commands.alias("others")
    higher = exists().where(
        others.c.job_id == job, others.c.operator == _commands.operator, others.c.number > _commands.number
    )
    is_in_all = and_(higher, is_in_every_restorable_state(transaction, job))
    return _keys(tables.commands).where(
        _commands.job_id == job,
        _commands.state.in_(FINISHED_COMMAND_STATES),
        _commands.number.is_(None) | is_in_all,
    )


def _old_changes(job: int, begin: datetime) -> Callable[[Transaction], Select[Any] | None]:
    return lambda _: _removable_changes(job).where(_changes.at < begin).order_by(_changes.at)


def _surplus_changes(job: int, kept: int) -> Callable[[Transaction], Select[Any] | None]:
    others = tables.live_changes.alias("others").c
    last = (
        select(others.version)
        .where(others.job_id == job, others.name == _changes.name)
        .order_by(others.version.desc())
        .offset(kept)
        .limit(1)
        .correlate(tables.live_changes)
        .scalar_subquery()
    )
    return lambda _: _removable_changes(job).where(_changes.version <= last)


def _removable_changes(job: int) -> Select[Any]:
    values = tables.live_values.c
    is_accepted = exists().where(
        values.job_id == _changes.job_id, values.name == _changes.name, values.version == _changes.version
    )
    return _keys(tables.live_changes).where(_changes.job_id == job, ~is_accepted)


def _surplus_generations(job: int, kept: int) -> Callable[[Transaction], Select[Any] | None]:
    generations = tables.generations.c

    def doomed(transaction: Transaction) -> Select[Any] | None:
        of_job = _keys(tables.generations).where(generations.job_id == job)
        newest = select(generations.generation).where(generations.job_id == job)
        last = transaction.execute(newest.order_by(generations.generation.desc()).offset(kept).limit(1)).scalar()
        return None if last is None else of_job.where(generations.generation <= last)

    return doomed


def _surplus_audit(transaction: Transaction, kept: int) -> Select[Any] | None:
    ids = select(tables.audit.c.id).order_by(tables.audit.c.id.desc())
    last = transaction.execute(ids.offset(kept).limit(1)).scalar()
    return None if last is None else _keys(tables.audit).where(tables.audit.c.id <= last)


def _old_samples(
    table: Table, resolution: int, begin: datetime, now: datetime
) -> Callable[[Transaction], Select[Any] | None]:
    coarser = next((each for each in RESOLUTIONS if each > resolution), None)

    def doomed(transaction: Transaction) -> Select[Any] | None:
        end = min(begin, now - KEEP_FINEST)
        if coarser is not None:
            computed = rolled_up_to(transaction, coarser)
            if computed is None:
                return None
            end = min(end, computed)
        old = (table.c.resolution_seconds == resolution, table.c.at < end)
        return _keys(table).where(*old).order_by(table.c.at)

    return doomed
