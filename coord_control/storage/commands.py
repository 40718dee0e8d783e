"""Commands: requests of clients to jobs, each with exactly one outcome.

A command's state only moves forward, because every change is conditional on the state that it comes from and, once a
driver has claimed it, on that driver's generation:

    pending --claim--> claimed --finish--> completed | failed | refused | cancelled
       |-- cancel --> cancelled
       |-- expire_due --> expired
       |-- the last driver has failed for good --> refused
    (refused at once: the job has no driver, and no supervisor is starting one)

A newer driver adopts the commands that an older one had claimed; after that the older one can no longer change them. A
driver that locks the job's row numbers the control events of each operator, once each and without gaps.

Threads: any; also any number of processes.
"""

from __future__ import annotations

import builtins
import difflib
import secrets
from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import Row, func, literal, select, update

from coord_control.errors import CommandNotCancellable, CommandNotFound, KeyReused
from coord_control.storage import tables
from coord_control.storage.command_rows import (
    DATABASE,
    NEED_DRIVER,
    conclude,
    fail_claimed,
    new_id,
    not_running,
    record,
    refuse_pending,
    selected,
    write_audit,
)
from coord_control.storage.database import Database, Transaction
from coord_control.storage.job_rows import alive, is_overdue, restarting
from coord_control.storage.jobs import COMMANDS_CHANNEL, find, job_not_found, locked_generation
from coord_control.storage.records import (
    FINISHED_COMMAND_STATES,
    CommandError,
    CommandKind,
    CommandRecord,
    CommandRequest,
    CommandState,
    Outcome,
    to_json,
)

__all__ = ["CommandRequest", "Commands", "Outcome"]

_commands = tables.commands.c


class Commands:
    """The commands of a control database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def submit(self, request: CommandRequest) -> CommandRecord:
        """Record a command, or return the existing command with the same key, whatever its state.

        If the job is not running, the returned record is ``refused`` with ``JOB_NOT_RUNNING``. While its supervisor
        restarts its driver, commands are recorded and wait for that driver.

        Raises:
            JobNotFound: there is no such job.
            KeyReused: the key belongs to another command.
            RecordRefused: a text is too long.
        """
        with self._database.transaction() as transaction:
            # Locked: a command that comes while the job ends is refused here or by that end.
            named = select(tables.jobs).where(tables.jobs.c.name == request.job)
            job = transaction.execute(named.with_for_update(read=True)).one_or_none()
            if job is None:
                raise job_not_found(transaction, request.job, self._database.display_url)
            values = _new_row(transaction, job, request)
            insert = transaction.insert(tables.commands).values(values)
            insert = insert.on_conflict_do_nothing(index_elements=["job_id", "key"])
            row = transaction.execute(insert.returning(*_commands, literal(job.name).label("job_name"))).one_or_none()
            if row is None:
                return _same(transaction, job, request, values["key"])
            write_audit(transaction, row, request.requested_by, "requested", {"operator": request.operator})
            if row.state == CommandState.REFUSED:
                write_audit(transaction, row, DATABASE, CommandState.REFUSED, {"code": row.error["code"]})
            else:
                transaction.notify(COMMANDS_CHANNEL, request.job)
            return record(row)

    def get(self, command: str) -> CommandRecord:
        """Return a command.

        Raises:
            CommandNotFound: there is none with this id.
        """
        with self._database.reading() as transaction:
            return record(self._row(transaction, command))

    def look(self, command: str) -> CommandRecord:
        """Return a command; if it has waited too long for a driver, give it an outcome first.

        Raises:
            CommandNotFound: there is none with this id.
        """
        with self._database.reading() as transaction:
            row = self._row(transaction, command)
            # By the database's clock, because the client's may differ.
            is_due = row.state == CommandState.PENDING and row.expires_at <= transaction.now
            if row.state == CommandState.PENDING or (row.state == CommandState.CLAIMED and row.kind in NEED_DRIVER):
                is_due = is_due or is_overdue(_job(transaction, row.job_id), transaction.now)
        if not is_due:
            return record(row)
        with self._database.transaction() as transaction:
            job = _job(transaction, row.job_id, is_locked=True)
            _expire(transaction, row.job_id)
            if is_overdue(job, transaction.now):  # a driver may have registered meanwhile
                refuse_pending(transaction, job)
                if job.ended_at is not None:  # otherwise it may run, and only the database was away
                    fail_claimed(transaction, job)
        return self.get(command)

    def of_key(self, job: str, key: str) -> CommandRecord | None:
        """Return the command of an idempotency key, or None if the key is unused.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._database.reading() as transaction:
            job_id = find(transaction, job, self._database.display_url)
            query = selected().where(_commands.job_id == job_id, _commands.key == key)
            row = transaction.execute(query).one_or_none()
            return None if row is None else record(row)

    def list(
        self,
        job: str | None = None,
        state: CommandState | None = None,
        kind: CommandKind | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> tuple[CommandRecord, ...]:
        """Return commands, newest first; only those older than the command ``before``, if given.

        Raises:
            JobNotFound: there is no such job.
        """
        query = selected().order_by(_commands.id.desc()).limit(limit)
        if state is not None:
            query = query.where(_commands.state == state)
        if kind is not None:
            query = query.where(_commands.kind == kind)
        if before is not None:
            query = query.where(_commands.id < before)
        with self._database.reading() as transaction:
            if job is not None:
                query = query.where(_commands.job_id == find(transaction, job, self._database.display_url))
            return tuple(record(row) for row in transaction.execute(query))

    def claim(self, job: str, generation: int, limit: int = 10) -> tuple[CommandRecord, ...]:
        """Claim pending commands that have not expired, oldest first.

        Raises:
            GenerationSuperseded: a newer driver has registered.
            JobNotFound: there is no such job.
        """
        with self._database.transaction() as transaction:
            job_id = locked_generation(transaction, job, generation, self._database.display_url)
            now = transaction.now
            oldest = (
                selected()
                .where(_commands.job_id == job_id, _commands.state == CommandState.PENDING)
                .order_by(_commands.id)
                .limit(limit)
                .with_for_update(of=tables.commands)
            )
            claimed = tuple(record(row) for row in transaction.execute(oldest))
            if any(each.expires_at <= now for each in claimed):
                _expire(transaction, job_id)
                claimed = tuple(record(row) for row in transaction.execute(oldest))
            if claimed:
                ids = [each.id for each in claimed]
                values = {"state": CommandState.CLAIMED, "generation": generation, "claimed_at": now}
                transaction.execute(update(tables.commands).where(_commands.id.in_(ids)).values(values))
            return tuple(
                replace(each, state=CommandState.CLAIMED, generation=generation, claimed_at=now) for each in claimed
            )

    def claimed_by_older(self, job: str, generation: int) -> tuple[CommandRecord, ...]:
        """Return the unfinished commands that drivers before ``generation`` had claimed, oldest first.

        Raises:
            JobNotFound: there is no such job.
        """
        return self._claimed(job, _commands.generation < generation)

    def claimed_by(self, job: str, generation: int) -> tuple[CommandRecord, ...]:
        """Return the unfinished commands that this driver has claimed, oldest first.

        Raises:
            JobNotFound: there is no such job.
        """
        return self._claimed(job, _commands.generation == generation)

    def adopt(self, command: str, generation: int) -> bool:
        """Take over a command of an older driver; its number and its progress are kept.

        Returns:
            Whether it was taken over; False if it is finished, or this or a newer driver already has it.

        Raises:
            GenerationSuperseded: a newer driver has registered.
            CommandNotFound: there is none with this id.
        """
        with self._database.transaction() as transaction:
            row = self._row(transaction, command)
            locked_generation(transaction, row.job_name, generation, self._database.display_url)
            changed = transaction.execute(
                update(tables.commands)
                .where(
                    _commands.id == command,
                    _commands.state == CommandState.CLAIMED,
                    _commands.generation < generation,
                )
                .values(generation=generation, claimed_at=transaction.now)
            )
            return changed.rowcount == 1

    def accept_event(self, command: str, generation: int, at_least: int = 0) -> int:
        """Assign a control event its position, unless it already has one.

        Args:
            at_least: the highest position that the coordinator, or a checkpoint, contains.

        Raises:
            GenerationSuperseded: a newer driver has registered.
            CommandNotFound: this driver has claimed no such control event.
        """
        with self._database.transaction() as transaction:
            row = self._row(transaction, command)
            locked_generation(transaction, row.job_name, generation, self._database.display_url)
            row = self._row(transaction, command)  # read again, under the lock
            if row.number is not None:
                return int(row.number)
            if row.kind != CommandKind.SEND_EVENT or row.state != CommandState.CLAIMED or row.generation != generation:
                raise CommandNotFound(command)
            number = max(self._highest(transaction, row), at_least) + 1
            transaction.execute(update(tables.commands).where(_commands.id == command).values(number=number))
            write_audit(transaction, row, _driver(generation), "accepted", {"number": number})
            return number

    def events_after(
        self, job: str, operator: str, number: int, *, include_completed: bool = False
    ) -> tuple[CommandRecord, ...]:
        """Return the accepted control events of an operator after position ``number``, in order.

        Args:
            include_completed: include those that a durable state of the coordinator has contained.

        Raises:
            JobNotFound: there is no such job.
        """
        states = [CommandState.CLAIMED, CommandState.COMPLETED] if include_completed else [CommandState.CLAIMED]
        with self._database.reading() as transaction:
            query = (
                selected()
                .where(
                    _commands.job_id == find(transaction, job, self._database.display_url),
                    _commands.operator == operator,
                    _commands.number > number,
                    _commands.state.in_(states),
                )
                .order_by(_commands.number)
            )
            return tuple(record(row) for row in transaction.execute(query))

    def progress(
        self, command: str, generation: int, progress: dict[str, Any], *, checkpoint: int | None = None
    ) -> bool:
        """Write the progress of a command.

        Returns:
            Whether it was written; False if the command is finished, or another driver has it.
        """
        values: dict[str, Any] = {"progress": to_json(progress)}
        if checkpoint is not None:
            values["checkpoint"] = checkpoint
        with self._database.transaction() as transaction:
            changed = transaction.execute(
                update(tables.commands).where(_commands.id == command, _held_by(generation)).values(values)
            )
            return changed.rowcount > 0

    def finish(self, command: str, generation: int, outcome: Outcome) -> bool:
        """Write the outcome of a command.

        Returns:
            Whether it was written; False if it already has one, or another driver has the command.

        Raises:
            CommandNotFound: there is none with this id.
        """
        if outcome.state not in FINISHED_COMMAND_STATES or outcome.state == CommandState.EXPIRED:
            raise ValueError(f"{outcome.state} cannot be set by a driver")
        with self._database.transaction() as transaction:
            row = self._row(transaction, command)
            return conclude(transaction, row, outcome, _held_by(generation), _driver(generation))

    def cancel(
        self, command: str, actor: str, host: str = "", *, cancellable: Collection[CommandKind] = ()
    ) -> CommandRecord:
        """Cancel a command: at once if no driver has claimed it, otherwise by a request to its driver.

        Args:
            cancellable: the kinds that a driver can cancel.

        Returns:
            The command in its current state; a finished one is unchanged.

        Raises:
            CommandNotFound: there is none with this id.
            CommandNotCancellable: a driver is executing it, and it cannot be interrupted.
        """
        with self._database.transaction() as transaction:
            row = self._row(transaction, command)
            cancelled = Outcome(state=CommandState.CANCELLED)
            if conclude(transaction, row, cancelled, _commands.state == CommandState.PENDING, actor):
                return record(self._row(transaction, command))
            asked = transaction.execute(
                update(tables.commands)
                .where(
                    _commands.id == command,
                    _commands.state == CommandState.CLAIMED,
                    _commands.kind.in_(builtins.list(cancellable)),
                    _commands.cancel_requested_at.is_(None),
                )
                .values(cancel_requested_at=transaction.now)
            )
            row = self._row(transaction, command)
            if asked.rowcount == 1:
                write_audit(transaction, row, actor, "cancel requested", {"from": host} if host else None)
                transaction.notify(COMMANDS_CHANNEL, row.job_name)
            elif row.state == CommandState.CLAIMED and row.cancel_requested_at is None:
                raise CommandNotCancellable(command, row.kind, row.state)
            return record(row)

    def cancel_requests(self, job: str, generation: int) -> tuple[CommandRecord, ...]:
        """Return the commands of this driver whose cancellation was requested.

        Raises:
            JobNotFound: there is no such job.
        """
        return self._claimed(job, _commands.generation == generation, _commands.cancel_requested_at.is_not(None))

    def expire_due(self, limit: int = 1000) -> int:
        """Mark pending commands whose time is over as expired, and return their number.

        Args:
            limit: maximum number, to keep transactions short.
        """
        with self._database.transaction() as transaction:
            return _expire(transaction, None, limit)

    def _claimed(self, job: str, *conditions: Any) -> tuple[CommandRecord, ...]:
        with self._database.reading() as transaction:
            query = (
                selected()
                .where(
                    _commands.job_id == find(transaction, job, self._database.display_url),
                    _commands.state == CommandState.CLAIMED,
                    *conditions,
                )
                .order_by(_commands.id)
            )
            return tuple(record(row) for row in transaction.execute(query))

    def _row(self, transaction: Transaction, command: str) -> Row[Any]:
        row = transaction.execute(selected().where(_commands.id == command)).one_or_none()
        if row is None:
            recent = select(_commands.id).order_by(_commands.id.desc()).limit(1000)
            ids = transaction.execute(recent).scalars().all()
            raise CommandNotFound(command, _near(command, ids))
        return row

    def _highest(self, transaction: Transaction, row: Row[Any]) -> int:
        # Retention keeps the highest number of each operator.
        of_commands = select(func.max(_commands.number)).where(
            _commands.job_id == row.job_id, _commands.operator == row.operator
        )
        return transaction.execute(of_commands).scalar() or 0


def _near(command: str, ids: Any) -> builtins.list[str]:
    begun = [each for each in ids if len(command) >= 4 and each.startswith(command)]
    return begun[:3] or difflib.get_close_matches(command, ids, n=3, cutoff=0.85)


def _held_by(generation: int) -> Any:
    return (_commands.state == CommandState.CLAIMED) & (_commands.generation == generation)


def _driver(generation: int) -> str:
    return f"driver, generation {generation}"


def _new_row(transaction: Transaction, job: Row[Any], request: CommandRequest) -> dict[str, Any]:
    now = transaction.now
    command = new_id(now)
    values: dict[str, Any] = {
        "id": command,
        "job_id": job.id,
        "kind": CommandKind(request.kind),
        "key": request.key or f"auto:{secrets.token_hex(12)}",
        "operator": request.operator,
        "payload": to_json(request.payload),
        "state": CommandState.PENDING,
        "requested_by": request.requested_by,
        "requested_from": request.requested_from,
        "requested_at": now,
        "expires_at": now + timedelta(seconds=request.expires_seconds),
    }
    if not alive(job, now) and not restarting(job, now):
        values |= {"state": CommandState.REFUSED, "finished_at": now, "error": to_json(not_running(job))}
    return values


def _job(transaction: Transaction, job: int, *, is_locked: bool = False) -> Row[Any]:
    found = select(tables.jobs).where(tables.jobs.c.id == job)
    return transaction.execute(found.with_for_update(key_share=True) if is_locked else found).one()


def _same(transaction: Transaction, job: Row[Any], request: CommandRequest, key: str) -> CommandRecord:
    row = transaction.execute(selected().where(_commands.job_id == job.id, _commands.key == key)).one()
    asked = {
        "kind": CommandKind(request.kind).value,
        "operator": request.operator,
        "payload": to_json(request.payload),
    }
    for name, value in asked.items():
        if row._mapping[name] != value:
            raise KeyReused(request.job, key, row.id, name)
    return record(row)


def _expire(transaction: Transaction, job: int | None, limit: int = 1000) -> int:
    due = selected().where(_commands.state == CommandState.PENDING, _commands.expires_at <= transaction.now)
    due = due.order_by(_commands.id).limit(limit)
    if job is not None:
        due = due.where(_commands.job_id == job)
    expired = 0
    for row in transaction.execute(due).all():
        error = CommandError(code="COMMAND_EXPIRED", message="no driver took it in time", retry=True)
        outcome = Outcome(state=CommandState.EXPIRED, error=error)
        expired += conclude(transaction, row, outcome, _commands.state == CommandState.PENDING, DATABASE)
    return expired
