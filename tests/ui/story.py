"""A job with a history worth looking at: quick and slow checkpoints, savepoints, failures, gateways that hold events.

Written into a real control database; the numbers are made up, but always the same.
"""

from __future__ import annotations

import datetime
import random
from dataclasses import replace
from datetime import UTC, timedelta
from typing import Any, Final

from pydantic import BaseModel, Field

from coord_control.control.commands import Refusal
from coord_control.ids import Epoch
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.statistics import QueryStatistics
from coord_control.storage.records import (
    CheckpointKind,
    CheckpointState,
    CommandKind,
    CommandState,
    GatewayRecord,
    JobRegistration,
    JobState,
    LiveChangeRecord,
    LiveOperator,
    LiveQuery,
    LiveStatus,
    LiveUse,
    LiveValueRecord,
    OperatorRecord,
    Outcome,
    QueryRecord,
    SubtaskRecord,
)
from coord_control.storage.store import ControlStore
from tests import records_kit as records
from tests.control_kit import THRESHOLD, refused
from tests.records_kit import operator_part, query_part, subtask_part

JOB: Final = "flights"
NEWEST: Final = 31  #: the one under way
SLOW: Final = 30  #: with subtasks that acknowledge late
FAILED: Final = 19
SAVEPOINT: Final = 20
SUBTASKS: Final = {"delay-threshold": 12, "carrier-rank": 6}


def put_story(store: ControlStore) -> None:
    """The job, and everything that has happened to it."""
    now = datetime.datetime.now(UTC)
    _put_job(store)
    chance = random.Random(11)
    for number in range(1, NEWEST):
        _put_ended(store, number, now - timedelta(seconds=60 * (NEWEST - number)), chance)
    put_under_way(store, now - timedelta(seconds=4))
    _put_recoveries(store, now)
    _put_command(store)


def put_stopped(store: ControlStore, name: str) -> None:
    """A job that has ended, and has no checkpoint."""
    store.jobs.register(_registration(name))
    store.jobs.ended(name, 3, JobState.FAILED, "query alerts failed: the schema of the source has changed")


def put_under_way(store: ControlStore, triggered: datetime.datetime) -> None:
    """A checkpoint that is not over, and gateways that are closed for it."""
    store.checkpoints.save(
        JOB,
        records.checkpoint(
            NEWEST,
            CheckpointState.IN_PROGRESS,
            triggered_at=triggered,
            cause="periodic",
            generation=3,
            subtasks=18,
            passed_subtasks=13,
        ),
    )
    put_gateways(store, {2: 31, 5: 12, 7: 0}, NEWEST)


def put_gateways(store: ControlStore, closed: dict[int, int], checkpoint: int | None) -> None:
    """A heartbeat: these gateways of the first operator are closed, and hold so many events."""
    operators = []
    for uid, parallelism in SUBTASKS.items():
        here = closed if uid == "delay-threshold" else {}
        gateways = tuple(
            GatewayRecord(
                subtask=index,
                is_open=index not in here,
                blocked=here.get(index, 0),
                blocked_total=40 + here.get(index, 0),
                blocked_seconds=1.5 + 0.1 * index,
                mailbox=index % 3,
            )
            for index in range(parallelism)
        )
        operators.append(
            LiveOperator(
                uid=uid,
                epoch=1842,
                blocked_now=sum(here.values()),
                blocked_total=480 + sum(here.values()),
                blocked_seconds=24.6,
                mailbox=11,
                closed=len(here),
                gateways=gateways,
            )
        )
    query = LiveQuery(
        name="alerts", state="running", epoch=1842, rows_per_second=12_340.0, backlog=45_678, lag_seconds=2.5
    )
    store.jobs.heartbeat(JOB, 3, LiveStatus(queries=(query,), operators=tuple(operators), checkpoint=checkpoint))


def _registration(name: str) -> JobRegistration:
    operators = tuple(
        OperatorRecord(
            uid=uid,
            query="alerts" if uid == "delay-threshold" else "ranks",
            parallelism=parallelism,
            event_types=(THRESHOLD,) if uid == "delay-threshold" else (),
        )
        for uid, parallelism in SUBTASKS.items()
    )
    queries = tuple(QueryRecord(name=query, state="running", epoch=1842) for query in ("alerts", "ranks"))
    return records.registration(
        name,
        generation=3,
        host="driver-3",
        state=JobState.RUNNING,
        is_supervised=True,
        spark_version="4.1.0",
        queries=queries,
        operators=operators,
    )


def _put_job(store: ControlStore) -> None:
    store.jobs.register(_registration(JOB))
    _put_live_values(store)


class Limits(BaseModel):
    """From when on a departure is late, and which ones count."""

    minutes: int = Field(default=30, ge=1, description="Late from here on.")
    share: float = 0.5
    carrier: str | None = None
    since: datetime.date = datetime.date(2013, 1, 1)
    alerts: bool = True


def _put_live_values(store: ControlStore) -> None:
    before = {"minutes": 30, "share": 0.5, "carrier": None, "since": "2013-01-01", "alerts": True}
    now = datetime.datetime.now(UTC)
    changes = [
        LiveChangeRecord(
            name="limits",
            version=version,
            value=before | changed,
            by=by,
            at=now - timedelta(hours=4 - version),
            since=since,
        )
        for version, changed, by, since in (
            (1, {}, "the default of the job", {}),
            (2, {"minutes": 45}, "ada", {}),
            (3, {"minutes": 45, "carrier": "UA"}, "dagster:run:4f0a", {}),
        )
    ]
    newest = changes[-1]
    limits = LiveValueRecord(
        name="limits",
        version=newest.version,
        value=newest.value,
        by=newest.by,
        at=newest.at,
        schema=Limits.model_json_schema(),
    )
    for use in ({"alerts": 2, "ranks": 2}, {"alerts": 3, "ranks": 2}):
        uses = {
            query: LiveUse(
                version=version, since=Epoch(600 * version), next_epoch=None if version == 3 else Epoch(1843)
            )
            for query, version in use.items()
        }
        store.live.save(JOB, 3, [replace(limits, uses=uses)], changes)


def _put_ended(store: ControlStore, number: int, triggered: datetime.datetime, chance: random.Random) -> None:
    is_savepoint, is_slow = number % 10 == 0 and number != SLOW, number == SLOW
    seconds = 3.4 if is_slow else chance.uniform(0.6, 1.3) + (1.1 if is_savepoint else 0.0)
    kind = CheckpointKind.SAVEPOINT if is_savepoint else CheckpointKind.CHECKPOINT
    values: dict[str, Any] = {"state": CheckpointState.COMPLETED, "path": f"/jobs/{JOB}/{kind.value}s/{number}"}
    if number in (7, FAILED):
        sentence = FailureReason.EXPIRED.sentence
        values = {
            "state": CheckpointState.FAILED,
            "reason": FailureReason.EXPIRED.code,
            "message": f"{sentence} (after 10 s; subtask 5 of delay-threshold has not passed)",
        }
        seconds = 5.0
    elif number < 12 and not is_savepoint:
        values["state"] = CheckpointState.DISCARDED
    is_complete = values["state"] is not CheckpointState.FAILED
    subtasks = _subtasks(seconds, chance, slow=is_slow) if is_complete else _subtasks_with_one_missing(seconds)
    operators = {uid: [each for each in subtasks if each.operator == uid] for uid in SUBTASKS}
    queries = _queries(number, seconds, operators)
    store.checkpoints.save(
        JOB,
        records.checkpoint(
            number,
            kind=kind,
            triggered_at=triggered,
            label="nightly" if is_savepoint else None,
            cause="command" if is_savepoint else "periodic",
            requested_by="ada" if is_savepoint else None,
            generation=3,
            finished_at=triggered + timedelta(seconds=seconds),
            duration_seconds=seconds,
            state_bytes=48_200_000 + 1000 * number,
            new_bytes=3_450_000,
            linked_bytes=3_100_000,
            copied_bytes=350_000,
            channel_bytes=1_240,
            blocked_events=sum(each.blocked_events for each in subtasks),
            blocked_seconds=max((each.blocked_seconds for each in subtasks), default=0.0),
            snapshot_seconds=0.08,
            subtasks=18,
            passed_subtasks=18 if is_complete else 17,
            queries=queries if is_complete else tuple(_not_captured(query) for query in queries),
            **values,
        ),
    )


def _subtasks(seconds: float, chance: random.Random, *, slow: bool) -> list[SubtaskRecord]:
    found = []
    for uid, parallelism in SUBTASKS.items():
        answered = 0.1 if uid == "delay-threshold" else 0.18
        for index in range(parallelism):
            acknowledged = seconds * chance.uniform(0.2, 0.7)
            blocked = chance.choice((0, 0, 0, 0, 3))
            if slow and uid == "delay-threshold" and index in (2, 5):
                acknowledged, blocked = seconds * (0.86 if index == 5 else 0.72), 31 if index == 5 else 12
            early = index == 3 and uid == "carrier-rank"  # the coordinator was slower than this subtask
            opened = answered if early else acknowledged
            found.append(
                subtask_part(
                    operator=uid,
                    subtask=index,
                    passed_seconds=opened,
                    ack_seconds=0.05 if early else acknowledged,
                    state_bytes=2_000 + 17 * index,
                    blocked_events=0 if early else blocked,
                    blocked_seconds=max(0.0, opened - answered),
                    down_bytes=40 * index,
                    up_bytes=96,
                )
            )
    return found


def _subtasks_with_one_missing(seconds: float) -> list[SubtaskRecord]:
    """Subtask 5 of the first operator has not passed."""
    missing = ("delay-threshold", 5)
    return [
        replace(each, passed_seconds=None, ack_seconds=None, blocked_events=31, blocked_seconds=seconds - 0.1)
        if (each.operator, each.subtask) == missing
        else each
        for each in _subtasks(seconds / 2, random.Random(19), slow=False)
    ]


def _not_captured(query: QueryStatistics) -> QueryStatistics:
    return query_part(query=query.query, boundary=query.boundary, operators=query.operators)


def _queries(
    number: int, seconds: float, operators: dict[str, list[SubtaskRecord]]
) -> tuple[QueryStatistics, QueryStatistics]:
    parts = {
        uid: replace(
            operator_part(
                operator=uid,
                asked_seconds=0.02,
                snapshot_seconds=0.08 if uid == "delay-threshold" else 0.16,
                coordinator_bytes=812,
            ),
            subtasks=tuple(subtasks),
        )
        for uid, subtasks in operators.items()
    }
    made = []
    for query, uid, share in (("alerts", "delay-threshold", 0.9), ("ranks", "carrier-rank", 0.74)):
        made.append(
            query_part(
                query=query,
                boundary=1800 + number,
                boundary_seconds=seconds * share,
                pin_seconds=seconds * 0.08,
                files=46,
                file_bytes=24_000_000,
                linked_bytes=1_550_000,
                copied_bytes=175_000,
                offsets={"flights": {"logOffset": 1800 + number}},
                operators=(parts[uid],),
            )
        )
    return made[0], made[1]


def _put_recoveries(store: ControlStore, now: datetime.datetime) -> None:
    for minutes, cause, checkpoint, what in (
        (180, "restore", SAVEPOINT - 10, "restored from savepoint 10"),
        (35, "driver_died", None, "the driver of generation 2 has not said that it ended"),
        (12, "query_failed", None, "SparkException: task 3 failed 4 times"),
    ):
        store.recoveries.add(
            records.recovery(
                generation=3,
                cause=cause,
                started_at=now - timedelta(minutes=minutes),
                query="alerts",
                from_epoch=1700 - minutes,
                from_checkpoint=checkpoint,
                duration_seconds=2.4,
                epochs_rerun=1,
                message=what,
            )
        )


def _put_command(store: ControlStore) -> None:
    for index, state in enumerate((CommandState.COMPLETED, CommandState.REFUSED)):
        command = store.commands.submit(
            records.request(
                CommandKind.TRIGGER_SAVEPOINT if index == 0 else CommandKind.ABORT,
                payload={"label": "nightly"} if index == 0 else {"checkpoint": 12},
                key=f"story-{index}",
            )
        )
        store.commands.claim(JOB, 3)
        outcome = refused(Refusal.NOTHING_TO_ABORT, "it has already finished, or was never started")
        if state is CommandState.COMPLETED:
            outcome = Outcome(state=state, result={"checkpoint": SAVEPOINT}, checkpoint=SAVEPOINT)
        store.commands.finish(command.id, 3, outcome)
