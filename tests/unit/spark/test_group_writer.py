"""The writer thread: order, group commit, the check of the generation, and what follows a lost write."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from coord_control.errors import CoordControlError, Fenced, StoreUnavailable
from coord_control.ids import QueryName
from coord_control.protocol.messages import Batch, Persist
from coord_control.protocol.records import Record
from coord_control.spark.loop.group_writer import GroupWriter, Work
from tests.core_kit import ack
from tests.patience import SECONDS

Q = QueryName("q")


def nothing() -> None:
    pass


@dataclass
class WriterRig:
    """A writer whose storage is a list, and whose owner notes what it is told."""

    on_append: Callable[[], None] = nothing
    on_verify: Callable[[], None] = nothing
    appended: list[tuple[str, list[Record]]] = field(default_factory=list)
    told: queue.SimpleQueue[tuple[list[Work], CoordControlError | None]] = field(default_factory=queue.SimpleQueue)
    steps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.writer = GroupWriter(self, self._written, self._failed)

    def append(self, query: QueryName, records: Sequence[Record]) -> None:
        self.steps.append("append")
        self.on_append()
        self.appended.append((query, list(records)))

    def verify(self) -> None:
        self.steps.append("verify")
        self.on_verify()

    def _written(self, group: list[Work]) -> None:
        self.steps.append("written")
        self.told.put((group, None))

    def _failed(self, group: list[Work], error: CoordControlError) -> None:
        self.steps.append("failed")
        self.told.put((group, error))

    def next(self) -> tuple[list[Work], CoordControlError | None]:
        return self.told.get(timeout=SECONDS)


def work(*epochs: int, era: int = 0, query: QueryName = Q) -> Work:
    return Work(era, Batch(persist=[Persist(query, ack(epoch)) for epoch in epochs]))


@pytest.fixture
def rig() -> Iterator[WriterRig]:
    rig = WriterRig()
    yield rig
    rig.on_append = rig.on_verify = nothing
    rig.writer.close(SECONDS)


def test_records_are_written_then_the_generation_is_checked_then_the_owner_is_told(rig: WriterRig) -> None:
    rig.writer.start()
    only = work(1, 2)
    rig.writer.submit(only)
    assert rig.next() == ([only], None)
    assert rig.steps == ["append", "verify", "written"]
    assert rig.appended == [(Q, [ack(1), ack(2)])]
    assert rig.writer.writes == 1


def test_what_waits_becomes_one_write_for_each_query(rig: WriterRig) -> None:
    other = QueryName("other")
    group = [work(1), work(2, query=other), work(3), work()]
    for one in group:
        rig.writer.submit(one)
    rig.writer.start()
    assert rig.next() == (group, None)
    assert rig.appended == [(Q, [ack(1), ack(3)]), (other, [ack(2)])]
    assert rig.steps == ["append", "append", "verify", "written"]
    assert rig.writer.writes == 1


def test_what_comes_during_a_write_becomes_the_next_one(rig: WriterRig) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        assert go_on.wait(SECONDS)

    rig.on_append = wait
    rig.writer.start()
    first, second, third = work(1), work(2), work(3)
    rig.writer.submit(first)
    assert entered.wait(SECONDS)
    rig.writer.submit(second)
    rig.writer.submit(third)
    go_on.set()
    assert rig.next() == ([first], None)
    assert rig.next() == ([second, third], None)
    assert rig.writer.writes == 2


def test_a_group_without_records_costs_nothing(rig: WriterRig) -> None:
    rig.writer.start()
    empty = work()
    rig.writer.submit(empty)
    assert rig.next() == ([empty], None)
    assert rig.steps == ["written"]
    assert rig.writer.writes == 0


def test_one_write_is_bounded(rig: WriterRig) -> None:
    everything = [work(epoch) for epoch in range(5000)]
    for one in everything:
        rig.writer.submit(one)
    rig.writer.start()
    (first, _), (second, _) = rig.next(), rig.next()
    assert (len(first), len(second)) == (4096, 904)
    assert first + second == everything


def test_after_a_lost_write_nothing_of_its_era_is_written(rig: WriterRig) -> None:
    lost = StoreUnavailable("folder", "create", "disk full")

    def fail() -> None:
        raise lost

    rig.on_append = fail
    first, same_era, newer = work(1), work(2), work(3, era=1)
    rig.writer.start()
    rig.writer.submit(first)
    assert rig.next() == ([first], lost)
    rig.on_append = nothing
    rig.writer.submit(same_era)
    assert rig.next() == ([same_era], lost)
    assert rig.appended == []
    rig.writer.submit(newer)
    assert rig.next() == ([newer], None)
    assert rig.appended == [(Q, [ack(3)])]


def test_a_group_of_two_eras_is_told_apart(rig: WriterRig) -> None:
    def fail() -> None:
        raise StoreUnavailable("folder", "create", "disk full")

    rig.on_append = fail
    rig.writer.start()
    rig.writer.submit(work(1))
    rig.next()
    entered, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        assert go_on.wait(SECONDS)

    rig.on_append = wait
    rig.writer.submit(work(2, era=1))
    assert entered.wait(SECONDS)
    old, new = work(3), work(4, era=1)
    rig.writer.submit(old)
    rig.writer.submit(new)
    go_on.set()
    rig.next()
    group, error = rig.next()
    assert group == [old]
    assert isinstance(error, StoreUnavailable)
    assert rig.next() == ([new], None)
    assert rig.appended == [(Q, [ack(2)]), (Q, [ack(4)])]


def test_a_newer_generation_turns_a_write_into_a_lost_one(rig: WriterRig) -> None:
    def newer() -> None:
        raise Fenced("job", 1)

    rig.on_verify = newer
    rig.writer.start()
    only = work(1)
    rig.writer.submit(only)
    group, error = rig.next()
    assert group == [only]
    assert isinstance(error, Fenced)
    assert rig.steps == ["append", "verify", "failed"]


def test_an_error_that_is_not_ours_is_told_as_one_of_the_storage(rig: WriterRig) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    rig.on_append = fail
    rig.writer.start()
    rig.writer.submit(work(1))
    _, error = rig.next()
    assert isinstance(error, StoreUnavailable)
    assert isinstance(error.__cause__, OSError)
    assert "No space left on device" in str(error)


def test_closing_writes_what_waits(rig: WriterRig) -> None:
    group = [work(1), work(2)]
    for one in group:
        rig.writer.submit(one)
    rig.writer.start()
    rig.writer.close(SECONDS)
    assert rig.appended == [(Q, [ack(1), ack(2)])]
    assert rig.next() == (group, None)
    assert (rig.writer.writes, rig.writer.records, rig.writer.durations.count) == (1, 2, 1)
