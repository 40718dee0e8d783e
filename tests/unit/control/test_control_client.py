"""The client on a real database, with a driver of the tests on the other side."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import coord_control as cc
from coord_control.control import commands
from coord_control.control.client.control_client import ControlClient
from coord_control.errors import (
    CommandCancelled,
    CommandExpired,
    CommandNotFound,
    CommandTimeout,
    ControlEventRefused,
    DatabaseNotFound,
    DatabaseUnavailable,
    JobNotFound,
    JobNotRunning,
    JobStillAlive,
    KeyReused,
    OperatorNotFound,
    RecordNotFound,
    RequestInvalid,
)
from coord_control.storage.database import Transaction
from coord_control.storage.records import (
    CheckpointKind,
    CommandRecord,
    CommandState,
    JobState,
    Outcome,
    QuerySample,
)
from coord_control.storage.store import ControlStore
from tests import control_kit as kit
from tests import records_kit
from tests.control_kit import JOB, OPERATOR


class Threshold(BaseModel):
    minutes: float


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ControlStore]:
    with kit.opened(tmp_path) as store:
        kit.put_job(store)
        yield store


@pytest.fixture
def client(tmp_path: Path, store: ControlStore) -> Iterator[ControlClient]:
    with ControlClient(actor="me", settings=kit.settings(tmp_path)) as client:
        yield client


def test_a_checkpoint_from_its_request_to_its_result(client: ControlClient, tmp_path: Path) -> None:
    seen: list[CommandRecord] = []

    with kit.driver(tmp_path):
        command = client.trigger_checkpoint(JOB, label="nightly")
        result = client.wait(command, on_progress=seen.append)

    assert isinstance(result, commands.CheckpointResult)
    assert (result.checkpoint, result.label, result.epochs) == (7, "nightly", {"alerts": 42})
    assert seen[-1].state is CommandState.COMPLETED
    assert (command.requested_by, command.requested_from) == ("me", client.host)
    assert len({(each.state, str(each.progress)) for each in seen}) == len(seen)


def test_the_loop_is_free_while_it_waits(client: ControlClient, tmp_path: Path) -> None:
    async def ask() -> tuple[commands.CommandResult, int]:
        waiting = asyncio.create_task(client.wait_async(client.trigger_savepoint(JOB, target="/s")))
        turns = 0
        while not waiting.done():
            await asyncio.sleep(0.001)
            turns += 1
        return await waiting, turns

    with kit.driver(tmp_path):
        result, turns = asyncio.run(ask())

    assert isinstance(result, commands.CheckpointResult)
    assert result.kind == "savepoint"
    assert turns > 1


_REQUESTS: dict[str, Callable[[ControlClient], CommandRecord]] = {
    "trigger_checkpoint": lambda client: client.trigger_checkpoint(JOB, label="x", key="k"),
    "trigger_savepoint": lambda client: client.trigger_savepoint(JOB, target="/s", label="x", key="k"),
    "abort": lambda client: client.abort(JOB, checkpoint=7, key="k"),
    "stop": lambda client: client.stop(JOB, grace_seconds=5, key="k"),
    "stop_with_savepoint": lambda client: client.stop_with_savepoint(JOB, target="/s", key="k"),
    "restart": lambda client: client.restart(JOB, key="k"),
    "restore": lambda client: client.restore(JOB, "latest", as_name="other", verify=False, force=True, key="k"),
    "dispose": lambda client: client.dispose(JOB, "7", key="k"),
    "verify": lambda client: client.verify(JOB, "7", key="k"),
    "send_event": lambda client: client.send_event(JOB, OPERATOR, "Threshold", Threshold(minutes=45), key="k"),
}


@pytest.mark.parametrize("kind", _REQUESTS)
def test_every_request_can_be_read_back_by_a_driver_and_is_one_command(
    client: ControlClient, store: ControlStore, kind: str
) -> None:
    first, again = _REQUESTS[kind](client), _REQUESTS[kind](client)

    assert (first.kind, first.key, first.state) == (kind, "k", CommandState.PENDING)
    assert again.id == first.id
    assert commands.parse_command(first.kind, first.payload).kind == kind
    assert [each.id for each in store.commands.claim(JOB, 1)] == [first.id]


def test_a_key_of_another_request_is_refused(client: ControlClient) -> None:
    client.trigger_checkpoint(JOB, label="a", key="k")
    with pytest.raises(KeyReused, match="a different payload"):
        client.trigger_checkpoint(JOB, label="b", key="k")


def test_without_a_key_every_request_is_a_new_one(client: ControlClient) -> None:
    assert client.trigger_checkpoint(JOB).id != client.trigger_checkpoint(JOB).id


def test_a_broken_connection_never_makes_two_of_one_request(
    client: ControlClient, store: ControlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, calls = store.commands.submit, itertools.count()

    def lose_the_answer(_self: Any, request: Any) -> CommandRecord:
        record = submit(request)
        if next(calls) < 2:
            raise DatabaseUnavailable("db", "the connection broke after the commit")
        return record

    monkeypatch.setattr(type(store.commands), "submit", lose_the_answer)
    command = client.trigger_checkpoint(JOB)

    assert next(calls) == 3
    assert [each.id for each in client.commands(JOB)] == [command.id]


def test_a_wrong_job_is_answered_with_the_near_ones(client: ControlClient) -> None:
    for ask in (client.trigger_checkpoint, client.job, client.checkpoints, client.summary, client.recoveries):
        with pytest.raises(JobNotFound, match="did you mean flights"):
            ask("flihgts")


def test_a_job_that_does_not_run_refuses_and_keeps_a_record_of_it(client: ControlClient, store: ControlStore) -> None:
    store.jobs.ended(JOB, 1, JobState.ENDED, "stopped by a user")

    with pytest.raises(JobNotRunning, match=r"stopped by a user.*coordctl run") as raised:
        client.trigger_checkpoint(JOB)
    assert raised.value.command is not None
    assert client.command(raised.value.command).state is CommandState.REFUSED
    with pytest.raises(JobNotRunning):  # and not that it has no such operator
        client.send_event(JOB, "unknown", "Threshold", {})


def test_a_wrong_operator_or_event_is_answered_with_the_near_ones(client: ControlClient) -> None:
    with pytest.raises(OperatorNotFound, match="did you mean delay-threshold"):
        client.send_event(JOB, "delay-treshold", "Threshold", {"minutes": 1})
    with pytest.raises(OperatorNotFound, match=r"no control event 'Treshold', only \['Threshold'\]; did you mean"):
        client.send_event(JOB, OPERATOR, "Treshold", {"minutes": 1})
    assert client.commands(JOB) == ()


def test_a_driver_that_has_not_told_its_operators_yet_decides_itself(
    client: ControlClient, store: ControlStore
) -> None:
    store.jobs.register(records_kit.registration(name="new", operators=()))
    assert client.send_event("new", "any", "Threshold", {}).state is CommandState.PENDING


def test_what_does_not_fit_the_model_comes_back_with_its_fields(client: ControlClient, tmp_path: Path) -> None:
    wrong = {"loc": ["minutes"], "msg": "Input should be a valid number"}
    outcome = kit.refused(commands.Refusal.EVENT_INVALID, "the payload is no Threshold", wrong)

    with kit.driver(tmp_path, lambda store, command: outcome):
        command = client.send_event(JOB, OPERATOR, "Threshold", {"minutes": "many"}, subtask=2)
        with pytest.raises(ControlEventRefused) as raised:
            client.wait(command)

    assert raised.value.fields == (wrong,)
    assert command.payload["subtask"] == 2


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.trigger_checkpoint(JOB, label="x" * 129),
        lambda client: client.trigger_savepoint(JOB, target=""),
        lambda client: client.abort(JOB),
        lambda client: client.stop(JOB, grace_seconds=-1),
        lambda client: client.send_event(JOB, OPERATOR, "Threshold", "x" * 300_000),
    ],
)
def test_what_no_driver_would_understand_is_not_sent(client: ControlClient, ask: Callable[..., Any]) -> None:
    with pytest.raises(RequestInvalid, match="nothing was sent"):
        ask(client)
    assert client.commands(JOB) == ()


def test_a_command_that_nobody_takes_can_be_cancelled(client: ControlClient) -> None:
    command = client.trigger_checkpoint(JOB)

    with pytest.raises(CommandTimeout):
        client.wait(command, timeout=0)
    assert client.cancel(command).state is CommandState.CANCELLED
    with pytest.raises(CommandCancelled):
        client.wait(command.id)
    with pytest.raises(CommandNotFound):
        client.cancel("nothing")


def test_a_command_that_nobody_takes_expires_for_whoever_waits(client: ControlClient) -> None:
    command = client.trigger_checkpoint(JOB, expires_seconds=0.01)

    with pytest.raises(CommandExpired):
        client.wait(command)


@pytest.mark.parametrize("ahead_seconds", [-3600.0, 3600.0])
def test_a_command_expires_by_the_clock_of_the_database_and_not_of_whoever_waits(
    client: ControlClient, store: ControlStore, monkeypatch: pytest.MonkeyPatch, ahead_seconds: float
) -> None:
    clock, ahead = Transaction._clock, timedelta(seconds=ahead_seconds)
    monkeypatch.setattr(Transaction, "_clock", lambda self: clock(self) + ahead)
    kit.put_job(store)
    command = client.trigger_checkpoint(JOB, expires_seconds=0.5)
    with pytest.raises(CommandExpired):
        client.wait(command, timeout=60.0)


def test_watching_gives_a_snapshot_at_a_time(client: ControlClient, store: ControlStore) -> None:
    kit.put_checkpoint(store, 1)
    command = client.trigger_checkpoint(JOB)
    watched = client.watch(JOB, interval=0)
    first = next(watched)
    kit.put_live(store)
    second = next(watched)

    assert [each.id for each in first.checkpoints] == [1]
    assert [each.id for each in first.commands] == [command.id]
    assert first.job.queries[0].epoch == 41
    assert (second.job.queries[0].epoch, second.job.operators[0].blocked_now) == (42, 12)
    assert second.to_json()["job"]["operators"][0]["gateways"][2]["blocked"] == 12


def test_watching_without_blocking_the_loop(client: ControlClient) -> None:
    async def names() -> list[str]:
        found: list[str] = []
        async for snapshot in client.watch_async(JOB, interval=0):
            found.append(snapshot.job.name)
            if len(found) == 3:
                break
        return found

    assert asyncio.run(names()) == [JOB] * 3


def test_everything_that_is_known_can_be_read(client: ControlClient, store: ControlStore) -> None:
    for number in (1, 2, 3):
        kit.put_checkpoint(store, number)
    kit.put_checkpoint(store, 4, kind=CheckpointKind.SAVEPOINT)
    kit.put_recovery(store, "the driver died")
    now = store.jobs.get(JOB).heartbeat_at
    store.samples.add([QuerySample(job=JOB, query="alerts", at=now - timedelta(seconds=30), rows=5)], [])

    assert [each.name for each in client.jobs()] == [JOB]
    assert [each.id for each in client.checkpoints(JOB, limit=2)] == [4, 3]
    assert [each.id for each in client.checkpoints(JOB, before=3)] == [2, 1]
    assert [each.id for each in client.checkpoints(JOB, kind=CheckpointKind.SAVEPOINT)] == [4]
    assert client.checkpoint(JOB, 2).queries[0].boundary == 42
    assert len(client.subtasks(JOB, 2)) == 4
    report = client.checkpoint_report(JOB, 2)
    assert (report.checkpoint, report.subtasks) == (client.checkpoint(JOB, 2), client.subtasks(JOB, 2))
    assert (report.job.name, report.last_recovery) == (JOB, client.recoveries(JOB, limit=1)[0])
    assert client.summary(JOB).duration.p50 == 2.0
    assert [each.message for each in client.recoveries(JOB)] == ["the driver died"]
    assert [each.generation for each in client.generations(JOB)] == [1]
    assert [each.rows for each in client.samples(JOB).queries] == [5]
    client.trigger_checkpoint(JOB)
    assert [(each.actor, each.host) for each in client.audit(JOB)] == [("me", client.host)]
    with pytest.raises(RecordNotFound):
        client.checkpoint(JOB, 99)


def test_a_job_that_runs_is_not_forgotten(client: ControlClient, store: ControlStore) -> None:
    with pytest.raises(JobStillAlive):
        client.forget(JOB)
    store.jobs.ended(JOB, 1, JobState.ENDED)
    client.forget(JOB)
    assert client.jobs() == ()


def test_looking_makes_no_database(tmp_path: Path) -> None:
    with ControlClient(settings=kit.settings(tmp_path)) as client, pytest.raises(DatabaseNotFound):
        client.jobs()
    assert not (tmp_path / "control.db").exists()


def test_one_client_serves_many_threads(client: ControlClient, tmp_path: Path) -> None:
    results: list[commands.CommandResult] = []

    def ask() -> None:
        results.append(client.wait(client.trigger_checkpoint(JOB)))

    with kit.driver(tmp_path) as taken:
        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert (len(results), len({each.id for each in taken})) == (8, 8)


def test_a_stop_with_a_savepoint_has_both_in_its_result(client: ControlClient, tmp_path: Path) -> None:
    with kit.driver(tmp_path):
        result = client.wait(client.stop_with_savepoint(JOB))

    assert isinstance(result, commands.StopResult)
    assert result.savepoint is not None
    assert result.savepoint.path == "/jobs/flights/savepoints/7"


def test_an_outcome_of_a_kind_is_typed(client: ControlClient, tmp_path: Path) -> None:
    outcomes: dict[str, Outcome] = {
        "restart": kit.completed(generation=2),
        "send_event": kit.completed(number=3),
        "dispose": kit.completed(path="/s", checkpoint=7),
    }
    with kit.driver(tmp_path, lambda store, command: outcomes[command.kind]):
        assert client.wait(client.restart(JOB)) == commands.RestartResult(generation=2)
        assert client.wait(client.dispose(JOB, "7")) == commands.DisposeResult(path="/s", checkpoint=7)
        sent = client.send_event(JOB, OPERATOR, "Threshold", {"minutes": 1})
        assert client.wait(sent) == commands.SendEventResult(number=3)


def test_neither_java_nor_spark_is_needed() -> None:
    program = (
        "import sys, coord_control as cc; cc.ControlClient; import coord_control.cli.main;"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'pyspark', 'py4j', 'pandas', 'pyarrow'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert cc.ControlClient is ControlClient
