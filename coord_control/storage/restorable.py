"""Which control events a restore of a job may need again: those above the numbers that its checkpoints contain.

A checkpoint says, per operator, up to which number its coordinator has been given the events from outside. A restore
goes back to that number, and the events above it are given again. So an event can go when its number is contained in
every checkpoint that may still be restored, and in the durable state of the job itself:

- checkpoints and savepoints that are complete, and those in progress unless their driver is gone;
- savepoints that were imported for this job, until they are disposed of or forgotten;
- what the job's operators have durably now: a restored job may be behind every checkpoint that is left.

What a checkpoint does not say counts as 0, so it keeps every event. Savepoints that this database does not know, those
that were disposed of, and those of forks keep nothing. Only numbers are compared: drivers and databases
have different clocks.

Threads: any; within a transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlalchemy import ColumnElement, and_, false, or_, select, true

from coord_control.storage import tables
from coord_control.storage.database import Transaction
from coord_control.storage.records import CheckpointState

__all__ = ["is_in_every_restorable_state"]

_commands = tables.commands.c


def is_in_every_restorable_state(transaction: Transaction, job: int) -> ColumnElement[bool]:
    """Return the condition for numbered commands of a job that no restore of it needs again."""
    numbered = select(_commands.operator).distinct().where(_commands.job_id == job, _commands.number.is_not(None))
    operators = [str(operator) for operator in transaction.execute(numbered).scalars()]
    states = [*_of_checkpoints(transaction, job), *_of_imported(transaction, job)]
    now = tables.operators.c
    durable = select(now.uid, now.applied_number).where(now.job_id == job)
    current = {row.uid: int(row.applied_number) for row in transaction.execute(durable)}
    found: list[ColumnElement[bool]] = []
    for operator in operators:
        numbers = [state.get(operator, 0) for state in states]
        numbers += [current[operator]] if operator in current else []
        is_contained = _commands.number <= min(numbers) if numbers else true()
        found.append(and_(_commands.operator == operator, is_contained))
    return or_(false(), *found)


def _of_checkpoints(transaction: Transaction, job: int) -> Iterator[Mapping[str, int]]:
    checkpoints, details = tables.checkpoints.c, tables.checkpoint_details.c
    row = transaction.execute(
        select(tables.jobs.c.name, tables.jobs.c.generation).where(tables.jobs.c.id == job)
    ).one_or_none()
    if row is None:  # forgotten meanwhile, with its commands
        return
    is_under_way = and_(checkpoints.state == CheckpointState.IN_PROGRESS, checkpoints.generation >= row.generation)
    query = (
        select(details.queries)
        .select_from(tables.checkpoints)
        .outerjoin(
            tables.checkpoint_details,
            and_(details.job_id == checkpoints.job_id, details.checkpoint == checkpoints.checkpoint),
        )
        .where(checkpoints.job_id == job, or_(checkpoints.state == CheckpointState.COMPLETED, is_under_way))
    )
    for queries in transaction.execute(query).scalars():
        yield {
            part["operator"]: (part.get("applied_events") or {}).get(row.name, 0)
            for each in queries or ()
            for part in each.get("operators", ())
        }


def _of_imported(transaction: Transaction, job: int) -> Iterator[Mapping[str, int]]:
    savepoints, checkpoints = tables.savepoints.c, tables.checkpoints.c
    name = select(tables.jobs.c.name).where(tables.jobs.c.id == job).scalar_subquery()
    taken_here = select(checkpoints.path).where(
        checkpoints.job_id == job, checkpoints.state == CheckpointState.COMPLETED, checkpoints.path.is_not(None)
    )
    query = select(savepoints.applied_numbers).where(savepoints.job_name == name, savepoints.path.not_in(taken_here))
    yield from transaction.execute(query).scalars()
