"""The control plane of a real job: what is asked for through the database is done by Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import BaseModel
from pyspark.sql import DataFrame

import coord_control as cc
from coord_control.control.settings import ControlSettings
from coord_control.driver_process import SUPERVISED_VARIABLE
from coord_control.errors import DatabaseError, Fenced, QueryFailed
from coord_control.storage.commands import CommandRequest
from coord_control.storage.database import Database
from coord_control.storage.records import (
    CheckpointState,
    CommandKind,
    CommandRecord,
    CommandState,
    JobRegistration,
    JobState,
)
from coord_control.storage.store import ControlStore
from tests.patience import SECONDS, eventually
from tests.spark.jobs import (
    SCHEMA,
    MakeJob,
    rows,
    write,
)
from tests.spark.streams import FileStream
from tests.spark.test_checkpoints import check_nothing_was_processed_after
from tests.spark.test_job_refusals import pour


class Limit(BaseModel):
    """Coordinator -> subtask, and from outside."""

    value: int


class Seen(BaseModel):
    """State of a subtask: the limits that it has seen, in order."""

    limits: list[int] = []


class Report(BaseModel):
    """Subtask -> coordinator."""

    limits: list[int]


class Listening(cc.StatefulCoordinator[Seen]):
    """Keeps what the newest subtask has seen."""

    def __init__(self) -> None:
        super().__init__(Seen())

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Report) -> None:
        self.state.limits = event.limits


def listen(subtask: cc.Subtask[Seen], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Note every limit, and report them."""
    subtask.state.limits += [event.value for event in subtask.events if isinstance(event, Limit)]
    yield from batches
    subtask.send(Report(limits=subtask.state.limits))


class Client:
    """Asks through the database, as another process would."""

    def __init__(self, url: str) -> None:
        self.store = ControlStore(Database(url, application="test"))

    def ask(self, kind: CommandKind, **payload: Any) -> CommandRecord:
        operator = payload.get("operator")
        request = CommandRequest(job="job", kind=kind, payload=payload, operator=operator, requested_by="ada")
        command = self.store.commands.submit(request)
        return self.outcome(command.id)

    def submit(self, kind: CommandKind, **payload: Any) -> str:
        request = CommandRequest(job="job", kind=kind, payload=payload, operator=payload.get("operator"))
        return self.store.commands.submit(request).id

    def outcome(self, command: str) -> CommandRecord:
        eventually(lambda: self.store.commands.get(command).is_finished)
        return self.store.commands.get(command)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COORD_CONTROL_HEARTBEAT_SECONDS", "0.5")
    monkeypatch.setenv("COORD_CONTROL_LEASE_SECONDS", "5")
    return ControlSettings.load(f"sqlite:///{tmp_path / 'control.db'}").url


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    client = Client(url)
    yield client
    client.store.close()


def _start(job: cc.Job, source: FileStream, coordinator: cc.OperatorCoordinator) -> None:
    operator = job.operator("limits", coordinator, parallelism=1, state=Seen, down=[Limit], up=[Report])
    frame = operator.apply(source.read(), listen, schema=SCHEMA, partition_by=["key"])
    job.start("q", write(frame))
    job.await_termination(0.0)  # everything is declared


def _feed(source: FileStream, job: cc.Job) -> Callable[[], None]:
    epochs = iter(range(100, 10_000))

    def feed() -> None:
        before = job.status().queries[0].committed
        source.add(rows(next(epochs)))
        eventually(lambda: job.status().queries[0].committed > before)

    return feed


def test_a_job_does_what_is_asked_for_through_the_database(
    make_job: MakeJob, source: FileStream, url: str, client: Client, tmp_path: Path
) -> None:
    job = make_job(control=url)
    coordinator = Listening()
    _start(job, source, coordinator)
    eventually(lambda: job.status().queries[0].committed >= 2)

    checkpoint = client.ask(CommandKind.TRIGGER_CHECKPOINT, label="first")
    assert checkpoint.state is CommandState.COMPLETED, checkpoint.error
    savepoint = client.ask(CommandKind.TRIGGER_SAVEPOINT, target=str(tmp_path / "saved"), label=None)
    assert savepoint.state is CommandState.COMPLETED, savepoint.error
    assert (tmp_path / "saved" / "_metadata").exists()
    history = client.store.checkpoints.list("job")
    assert [(each.id, each.state) for each in history] == [
        (2, CheckpointState.COMPLETED),
        (1, CheckpointState.COMPLETED),
    ]
    [query] = client.store.checkpoints.get("job", 1).queries
    assert query.operators[0].operator == "limits"
    assert query.offsets == {"0": {"logOffset": query.boundary}}, "an epoch for each file"

    feed = _feed(source, job)
    event = {"operator": "limits", "event_type": "Limit", "subtask": None}
    first = client.submit(CommandKind.SEND_EVENT, payload={"value": 7}, **event)
    second = client.submit(CommandKind.SEND_EVENT, payload={"value": 8}, **event)
    eventually(lambda: "durable" in (client.store.commands.get(second).progress or {}).get("message", ""))
    feed()
    feed()
    assert [client.outcome(command).state for command in (first, second)] == [CommandState.COMPLETED] * 2
    eventually(lambda: coordinator.state.limits == [7, 8])
    wrong = client.ask(CommandKind.SEND_EVENT, payload={"value": "many"}, **event)
    assert wrong.error is not None
    assert (wrong.state, wrong.error.code) == (CommandState.REFUSED, "EVENT_INVALID")
    assert list(wrong.error.fields[0]["loc"]) == ["value"]

    status = client.store.jobs.get("job")
    assert (status.state, status.is_alive) == (JobState.RUNNING, True)
    assert [operator.uid for operator in status.operators] == ["limits"]
    assert [(query.state_rows, query.watermark) for query in status.queries] == [(None, None)], "it keeps no state"

    stop = client.ask(CommandKind.STOP, grace_seconds=20.0)
    assert stop.state is CommandState.COMPLETED
    assert job.await_termination(SECONDS)
    eventually(lambda: client.store.jobs.get("job").state is JobState.ENDED)
    refused = client.ask(CommandKind.TRIGGER_CHECKPOINT, label=None)
    assert refused.error is not None
    assert refused.error.code == "JOB_NOT_RUNNING"


def test_disposing_of_a_copy_leaves_the_savepoint_of_the_same_number(
    make_job: MakeJob, source: FileStream, url: str, client: Client, tmp_path: Path
) -> None:
    """Bug: whatever lay at the path, the history marked the job's own checkpoint of that number as discarded."""
    job = make_job(control=url)
    _start(job, source, Listening())
    saved, copy = tmp_path / "saved", tmp_path / "copy"
    assert client.ask(CommandKind.TRIGGER_SAVEPOINT, target=str(saved), label=None).state is CommandState.COMPLETED
    shutil.copytree(saved, copy)

    gone = client.ask(CommandKind.DISPOSE, ref=str(copy))

    assert gone.state is CommandState.COMPLETED, gone.error
    assert not (copy / "_metadata").exists()
    assert [each.state for each in client.store.checkpoints.list("job")] == [CheckpointState.COMPLETED]
    assert [each.path for each in client.store.savepoints.list("job")] == [str(saved)]
    own = client.ask(CommandKind.DISPOSE, ref=str(saved))
    assert own.state is CommandState.COMPLETED, own.error
    # The driver's loop reports it in its turn.
    eventually(lambda: [each.state for each in client.store.checkpoints.list("job")] == [CheckpointState.DISCARDED])
    assert client.store.savepoints.list("job") == ()


def test_a_job_starts_and_checkpoints_without_its_database_and_reports_later(
    make_job: MakeJob, source: FileStream, url: str, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "control.db").mkdir()
    job = make_job(control=url)
    _start(job, source, Listening())
    completed = job.trigger_checkpoint().wait(SECONDS)
    (tmp_path / "control.db").rmdir()
    eventually(lambda: _is_made(client))
    eventually(lambda: client.store.checkpoints.list("job", state=CheckpointState.COMPLETED))
    assert client.store.checkpoints.latest("job").id == completed.id  # type: ignore[union-attr]


def _is_made(client: Client) -> bool:
    try:
        return bool(client.store.jobs.list())
    except DatabaseError:  # not there, or without its tables
        return False


def test_a_stop_with_a_savepoint_processes_nothing_after_it(
    make_job: MakeJob, source: FileStream, url: str, client: Client
) -> None:
    job = make_job(control=url)
    _start(job, source, Listening())
    eventually(lambda: job.status().queries[0].committed >= 0)
    for epoch in range(3, 9):
        source.add(rows(epoch))
    done = client.ask(CommandKind.STOP_WITH_SAVEPOINT, label="last", target=None)
    assert done.result is not None, done.error
    assert job.await_termination(SECONDS)
    savepoint = done.result["savepoint"]["path"]
    check_nothing_was_processed_after(savepoint)
    again = make_job(control=url, restore_from=savepoint)
    assert again.generation == 2
    eventually(lambda: client.store.jobs.get("job").generation == 2)


def test_a_savepoint_that_an_older_driver_had_begun_is_one_of_all_queries(
    make_job: MakeJob, source: FileStream, url: str, client: Client
) -> None:
    """Bug: the next driver took it as soon as it lived, of the queries that happened to be started."""
    first = make_job(control=url)
    eventually(lambda: client.store.jobs.list())
    command = client.submit(CommandKind.TRIGGER_SAVEPOINT, label="both", target=None)
    assert client.store.commands.claim("job", first.generation, 1), "it is claimed, and its driver dies"
    first.stop()
    source.add(rows(1))
    job = make_job(control=url)
    for name in ("one", "two"):
        job.start(name, write(source.read()))
        eventually(lambda: job.status().queries[-1].committed >= 0)
        assert not client.store.commands.get(command).is_finished
    done = client.outcome(command)
    assert done.result is not None, done.error
    path = Path(done.result["path"], "_metadata")
    assert set(json.loads(path.read_text())["queries"]) == {"one", "two"}


def test_a_newer_generation_in_the_database_stops_a_driver_that_the_storage_does_not_tell(
    make_job: MakeJob, source: FileStream, url: str, client: Client
) -> None:
    job = make_job(control=url)
    _start(job, source, Listening())
    eventually(lambda: client.store.jobs.get("job").state is JobState.RUNNING)
    mine = client.store.jobs.get("job")
    _register_newer(client, mine.root, mine.folder)
    with pytest.raises(Fenced, match="generation 2"):
        job.await_termination(SECONDS)


def test_a_job_that_fails_with_what_no_restart_helps_is_not_expected_back(
    make_job: MakeJob, source: FileStream, url: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SUPERVISED_VARIABLE, "1")
    source.add(rows(1))
    with make_job(control=url) as job:
        operator = job.operator("limits", Listening(), parallelism=1, state=Seen, down=[Limit], up=[Report])
        out = operator.apply(source.read(), pour, schema=SCHEMA, partition_by=["key"])
        job.start("q", out.writeStream.foreachBatch(_look_only))
        with pytest.raises(QueryFailed):
            job.await_termination(SECONDS)
    found = client.store.jobs.get("job")
    assert (found.state, found.is_restarting) == (JobState.FAILED, False)


def test_a_job_whose_program_fails_has_failed_and_is_expected_back(
    make_job: MakeJob, source: FileStream, url: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: it had "stopped", and requests were refused while its supervisor was starting it again."""
    monkeypatch.setenv(SUPERVISED_VARIABLE, "1")

    def program() -> None:
        with make_job(control=url) as job:
            _start(job, source, Listening())
            raise ValueError("a bug of the program")

    with pytest.raises(ValueError, match="a bug"):
        program()
    found = client.store.jobs.get("job")
    assert (found.state, found.end_reason) == (JobState.FAILED, "ValueError: a bug of the program")
    assert found.is_restarting


def _look_only(frame: DataFrame, epoch: int) -> None:
    frame.take(1)


def _register_newer(client: Client, root: str, folder: str) -> None:
    client.store.jobs.register(
        JobRegistration(name="job", root=root, folder=folder, generation=2, host="elsewhere", pid=1)
    )
