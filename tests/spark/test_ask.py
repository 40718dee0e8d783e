"""Questions to a real job: before, while and after its query is restarted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import BaseModel

import coord_control as cc
from coord_control.control.settings import ControlSettings
from coord_control.errors import CommandExpired, CommandRefused, CommandTimeout
from coord_control.storage.records import CommandState
from tests.patience import SECONDS, eventually
from tests.spark.jobs import QUICK, SCHEMA, MakeJob, Trouble, rows, write
from tests.spark.streams import FileStream


class Limit(BaseModel):
    """From outside, to subtasks."""

    value: int


class Seen(BaseModel):
    """State of coordinator and subtasks: the limits that were set, in order."""

    limits: list[int] = []


class Report(BaseModel):
    """Subtask -> coordinator."""


class Current(cc.Request[Seen]):
    """Asks for the limits."""


class Answering(cc.StatefulCoordinator[Seen]):
    """Fails when it is told to, and is reset when it is allowed to."""

    def __init__(self) -> None:
        super().__init__(Seen())
        self.must_fail = False
        self.is_resetting = False
        self.may_reset = threading.Event()
        self.may_reset.set()

    def handle_control_event(self, event: Limit, subtask: int | None) -> None:
        self.state.limits.append(event.value)
        super().handle_control_event(event, subtask)

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Report) -> None:
        if self.must_fail:
            self.must_fail = False
            raise Trouble

    def handle_request(self, request: Current) -> Seen:
        assert not self.is_resetting
        return self.state

    def restore(self, data: bytes | None) -> None:
        self.is_resetting = not self.may_reset.is_set()
        assert self.may_reset.wait(SECONDS)
        super().restore(data)
        self.is_resetting = False


def note(subtask: cc.Subtask[Seen], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Keep every limit, and report each epoch."""
    subtask.state.limits += [event.value for event in subtask.events if isinstance(event, Limit)]
    yield from batches
    subtask.send(Report())


@pytest.fixture
def client(tmp_path: Path) -> Iterator[cc.ControlClient]:
    settings = ControlSettings.load(f"sqlite:///{tmp_path / 'control.db'}")
    with cc.ControlClient(settings=settings) as made:
        yield made


def start(job: cc.Job, source: FileStream, coordinator: Answering) -> None:
    operator = job.operator(
        "limits", coordinator, parallelism=2, state=Seen, down=[Limit], up=[Report], requests=[Current]
    )
    frame = operator.apply(source.read(), note, schema=SCHEMA, partition_by=["key"])
    job.start("q", write(frame))
    job.await_termination(0.0)  # everything is declared


def ask(client: cc.ControlClient, timeout: float = SECONDS) -> list[int]:
    return client.ask("job", "limits", Current(), timeout=timeout).limits


def test_questions_are_answered_before_while_and_after_a_query_is_restarted(
    make_job: MakeJob, source: FileStream, client: cc.ControlClient
) -> None:
    job = make_job(control=client.url, restart=QUICK)
    coordinator = Answering()
    start(job, source, coordinator)
    assert ask(client) == []

    event = client.send_event("job", "limits", "Limit", {"value": 7})
    eventually(lambda: ask(client) == [7])
    assert client.wait_event(event, "applied", SECONDS).sent_to == (0, 1)
    source.add(rows(100))
    client.wait(event, SECONDS)
    eventually(lambda: 7 in shown(client, 0) + shown(client, 1))
    page = client.states("job", "limits", limit=1, timeout=SECONDS)
    assert (page.coordinator, page.parallelism, page.next_after) == ({"limits": [7]}, 2, 0)
    assert [each.subtask for each in client.states("job", "limits", after=0, timeout=SECONDS).subtasks] == [1]

    coordinator.may_reset.clear()
    coordinator.must_fail = True
    source.add(rows(101))
    eventually(lambda: coordinator.is_resetting)
    with pytest.raises((CommandRefused, CommandExpired, CommandTimeout)) as refused:
        ask(client, timeout=0.5)
    assert refused.value.retry
    with ThreadPoolExecutor(1) as another:
        late = another.submit(ask, client)
        eventually(lambda: any(each.state is CommandState.CLAIMED for each in client.commands("job", limit=1)))
        assert not late.done()
        coordinator.may_reset.set()
        assert late.result(SECONDS) == [7]
    eventually(lambda: job.status().queries[0].state == "running")
    assert (ask(client), job.status().queries[0].restarts) == ([7], 1)


def shown(client: cc.ControlClient, subtask: int) -> list[int]:
    page = client.states("job", "limits", subtasks=[subtask], timeout=SECONDS)
    return [limit for each in page.subtasks for limit in Seen.model_validate(each.state).limits]
