"""A control database with a job in it, and the other side of a client: a driver that is only its claims and outcomes.

The real agent has tests of its own; here nothing matters but what the database sees of a driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from coord_control.control.commands import Refusal
from coord_control.control.settings import ControlSettings
from coord_control.ids import Epoch
from coord_control.storage.database import Database
from coord_control.storage.records import (
    CommandError,
    CommandRecord,
    CommandState,
    EventType,
    GatewayRecord,
    LiveOperator,
    LiveQuery,
    LiveStatus,
    LiveUse,
    LiveValueRecord,
    OperatorRecord,
    Outcome,
    QueryRecord,
    RequestType,
)
from coord_control.storage.store import ControlStore
from tests import records_kit as records
from tests.records_kit import operator_part, query_part, subtask_part, with_subtasks

JOB, NOON = records.JOB, records.NOON
OPERATOR = "delay-threshold"
THRESHOLD = EventType(
    name="Threshold",
    schema={"properties": {"minutes": {"type": "number"}, "note": {"type": "string"}}, "required": ["minutes"]},
)
LIMITS_SCHEMA = {
    "title": "Limits",
    "type": "object",
    "properties": {
        "minutes": {"type": "integer", "minimum": 1, "description": "Late from here on."},
        "carrier": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "on": {"type": "boolean", "default": True},
    },
    "required": ["minutes"],
}
CURRENT = RequestType(
    name="Current",
    schema={"properties": {"carrier": {"type": "string"}}},
    answer={"title": "Minutes", "properties": {"minutes": {"type": "number"}}, "required": ["minutes"]},
)
#: What users can write into a label, and what no terminal may get to see.
NASTY = "[red]x[/red]\x1b]0;owned\x07\x9b31m\u202eevil"

#: Carries a command out; None: it goes on.
Handler = Callable[[ControlStore, CommandRecord], Outcome | None]


def settings(folder: Path, **values: Any) -> ControlSettings:
    return ControlSettings.load(f"sqlite:///{folder / 'control.db'}", **values)


@contextmanager
def opened(folder: Path) -> Iterator[ControlStore]:
    database = Database(settings(folder).url, application="test")
    try:
        yield ControlStore(database)
    finally:
        database.close()


def operator(requests: tuple[RequestType, ...] = (CURRENT,)) -> OperatorRecord:
    return OperatorRecord(uid=OPERATOR, query="alerts", parallelism=4, event_types=(THRESHOLD,), request_types=requests)


def put_job(store: ControlStore, name: str = JOB, **changes: Any) -> None:
    """A job whose driver lives, and goes on doing so for as long as any test takes."""
    values: dict[str, Any] = {
        "is_supervised": True,
        "queries": (QueryRecord(name="alerts", state="running", epoch=41),),
        "operators": (operator(),),
    }
    store.jobs.register(records.registration(name, **values | changes))


def put_live(store: ControlStore, job: str = JOB) -> None:
    gateways = tuple(
        GatewayRecord(subtask=index, is_open=index != 2, blocked=12 * (index == 2), blocked_seconds=0.5)
        for index in range(4)
    )
    operator = LiveOperator(uid=OPERATOR, epoch=42, blocked_now=12, closed=1, gateways=gateways)
    query = LiveQuery(name="alerts", state="running", epoch=42, rows_per_second=1234.0, backlog=56789, lag_seconds=2.5)
    store.jobs.heartbeat(job, 1, LiveStatus(queries=(query,), operators=(operator,), metrics="127.0.0.1:9404"))


def put_live_value(store: ControlStore, version: int = 3, job: str = JOB, **fields: Any) -> None:
    """A live value ``limits``, of which the query has not seen the newest version yet."""
    value = LiveValueRecord(
        name="limits",
        version=version,
        value=fields,
        by="ada",
        at=NOON,
        schema=LIMITS_SCHEMA,
        uses={"alerts": LiveUse(version=version - 1, since=Epoch(7), next_epoch=Epoch(43))},
    )
    store.live.save(job, 1, [value])


def put_checkpoint(store: ControlStore, number: int, **changes: Any) -> None:
    operator = operator_part(operator=OPERATOR, subtasks=4, passed_subtasks=4, blocked_events=12, subtask_bytes=100)
    values: dict[str, Any] = {
        "triggered_at": NOON + timedelta(minutes=number),
        "finished_at": NOON + timedelta(minutes=number, seconds=2),
        "duration_seconds": 2.0,
        "state_bytes": 1_234_567,
        "new_bytes": 4_567,
        "blocked_events": 12,
        "blocked_seconds": 0.5,
        "subtasks": 4,
        "passed_subtasks": 4,
        "path": f"/jobs/{JOB}/checkpoints/{number}",
        "cause": "command",
        "generation": 1,
        "queries": (
            query_part(
                query="alerts", boundary=40 + number, offsets={"0": {"logOffset": 40 + number}}, operators=(operator,)
            ),
        ),
    }
    parts = [
        subtask_part(operator=OPERATOR, subtask=index, passed_seconds=0.1, ack_seconds=0.04, blocked_events=3)
        for index in range(4)
    ]
    store.checkpoints.save(JOB, with_subtasks(records.checkpoint(number, **values | changes), parts))


def put_recovery(store: ControlStore, message: str) -> None:
    store.recoveries.add(
        records.recovery(
            cause="driver_died",
            query="alerts",
            from_epoch=40,
            duration_seconds=3.0,
            epochs_rerun=1,
            message=message,
        )
    )


def completed(**result: Any) -> Outcome:
    return Outcome(state=CommandState.COMPLETED, result=result)


def refused(code: Refusal, message: str, *fields: dict[str, Any], retry: bool = False) -> Outcome:
    error = CommandError(code=code, message=message, fault="user", retry=retry, fields=fields)
    return Outcome(state=CommandState.REFUSED, error=error)


def checkpoint_outcome(store: ControlStore, command: CommandRecord) -> Outcome:
    """Two looks at a checkpoint under way, then its end."""
    for passed in (1, 3):
        progress = {"checkpoint": 7, "subtasks": 4, "passed_subtasks": passed, "blocked_events": 12}
        store.commands.progress(command.id, 1, progress)
    kind = "savepoint" if "savepoint" in command.kind else "checkpoint"
    made = {
        "checkpoint": 7,
        "kind": kind,
        "path": f"/jobs/{JOB}/{kind}s/7",
        "duration_seconds": 1.5,
        "state_bytes": 2_000_000,
        "label": command.payload.get("label"),
        "epochs": {"alerts": 42},
    }
    return completed(savepoint=made) if command.kind == "stop_with_savepoint" else completed(**made)


@contextmanager
def driver(folder: Path, handler: Handler = checkpoint_outcome, job: str = JOB) -> Iterator[list[CommandRecord]]:
    """Let a driver carry out, one after the other, what is asked of a job; gives what it has taken."""
    is_over = threading.Event()
    taken: list[CommandRecord] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with opened(folder) as store:
                while not is_over.is_set():
                    for command in store.commands.claim(job, 1):
                        taken.append(command)
                        if (outcome := handler(store, command)) is not None:
                            store.commands.finish(command.id, 1, outcome)
                    is_over.wait(0.01)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="driver")
    thread.start()
    try:
        yield taken
    finally:
        is_over.set()
        thread.join()
    assert not errors, errors
