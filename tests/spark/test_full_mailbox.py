"""A subtask that gets no rows while its coordinator goes on sending: its mailbox fills up, and somebody empties it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from pydantic import BaseModel

import coord_control as cc
from coord_control import errors
from coord_control.durable.files.filesystem import LocalFiles, join
from coord_control.durable.offline.mailboxes import drop_mailbox
from coord_control.ids import OperatorUid, SubtaskIndex
from tests.patience import eventually
from tests.spark.conftest import MakeStream
from tests.spark.jobs import SCHEMA, MakeJob, drain, write

pytestmark = pytest.mark.spark

#: Of an event. A mailbox takes 32 MiB.
_BYTES: Final = 1_000_000
_PER_EPOCH: Final = 10
_FILES: Final = 6  # of a row each, and usually an epoch each


class Load(BaseModel):
    epoch: int
    text: str


class Ended(BaseModel):
    epoch: int
    rows: int


class Seen(BaseModel):
    epochs: list[int] = []
    rows: int = 0


class Sender(cc.StatefulCoordinator[Seen]):
    """Answers each epoch of a subtask with ten events to the other one, which has no rows."""

    def __init__(self) -> None:
        super().__init__(Seen())

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Ended) -> None:
        self.state.epochs.append(event.epoch)
        self.state.rows += event.rows
        for _ in range(_PER_EPOCH):
            self.context.send(1 - subtask, Load(epoch=event.epoch, text="x" * _BYTES))


def tell(subtask: cc.Subtask[Seen], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    subtask.state.epochs += [event.epoch for event in subtask.events if isinstance(event, Load)]
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        yield batch
    subtask.send(Ended(epoch=subtask.epoch, rows=rows))


def test_a_mailbox_that_is_full_ends_the_job_and_can_be_dropped(
    make_job: MakeJob, file_stream: MakeStream, tmp_path: Path
) -> None:
    stream = file_stream(SCHEMA)

    def run(coordinator: Sender) -> None:
        with make_job() as job:
            operator = job.operator("op", coordinator, parallelism=2, state=Seen, down=[Load], up=[Ended])
            drain(job, write(operator.apply(stream.read(), tell, schema=SCHEMA, partition_by=["key"])))
            # What it answers takes its time. An epoch that was interrupted while it was planned takes two files.
            eventually(lambda: coordinator.state.rows >= _FILES, lambda: f"told: {coordinator.state}")

    for number in range(_FILES):
        stream.add([{"key": "one key has one subtask", "value": number}])
    with pytest.raises(errors.QueryFailed, match=r"events that wait for subtask . take .*coordctl mailbox drop"):
        run(Sender())
    folder = join(str(tmp_path), "jobs", "job")
    found = [drop_mailbox(LocalFiles(), folder, OperatorUid("op"), SubtaskIndex(subtask)) for subtask in (0, 1)]
    dropped = sorted(mailbox.events for mailbox in found)
    assert dropped[0] == 0
    assert dropped[1] > 2 * _PER_EPOCH
    coordinator = Sender()
    run(coordinator)
    assert coordinator.state.rows == _FILES
    assert coordinator.state.epochs == list(range(len(coordinator.state.epochs))), "each was told once"
