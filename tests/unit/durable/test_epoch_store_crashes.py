"""A driver dies at every point of every write, and others interfere between any two looks at the storage.

The oracle is a list in memory: what was appended and had returned must be there, what was being appended may be there
as a whole, nothing else is.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coord_control.durable.epochs.epoch_store import EpochStore
from coord_control.ids import Epoch, Generation
from coord_control.protocol.liveness import live
from coord_control.protocol.records import Ack, Begin, Record
from tests.simulation.memory_files import Crash, CrashAt, MemoryFiles
from tests.unit.durable.epoch_records import ack, begin, epoch_batches, started

FOLDER = "/epochs"
RETAIN = 2


class EpochDriver:
    """A driver of one generation, and what it knows to be durable."""

    def __init__(self, files: MemoryFiles, generation: int, durable: list[Record], committed: int) -> None:
        self.durable = durable  #: everything ever appended whose append has returned
        self.pending: list[Record] = []  #: what is being appended
        self.committed = committed
        self.store = EpochStore(files, FOLDER, Generation(generation), RETAIN, max_segments=3)
        self.store.committed(Epoch(committed))

    def open(self) -> None:
        assert self.store.open() == self.expected()

    def append(self, records: list[Record]) -> None:
        self.pending = records
        self.store.append(records)
        self.durable, self.pending = [*self.durable, *records], []

    def commit(self, epoch: int) -> None:
        self.committed = epoch
        self.store.committed(Epoch(epoch))

    def expected(self) -> list[Record]:
        return live(self.durable, Epoch(self.committed), RETAIN)

    def work(self, epochs: range) -> None:
        for epoch in epochs:
            for batch in epoch_batches(epoch):
                self.append(batch)
            self.commit(epoch)


def successor(files: MemoryFiles, dead: EpochDriver, generation: int) -> EpochDriver:
    """Open as the next generation without faults and check what is found."""
    found = EpochDriver(files, generation, dead.durable, dead.committed)
    records = found.store.open()
    if records != found.expected():
        found.durable = [*dead.durable, *dead.pending]
    assert records == found.expected()
    assert files.list(FOLDER) == ([str(generation)] if records or generation > 1 else [])
    return found


def check_it_works_on(files: MemoryFiles, driver: EpochDriver, generation: int) -> None:
    """A driver that took over works as if nothing had happened, and so does the one after it."""
    last = max((record.epoch for record in driver.durable if isinstance(record, Begin | Ack)), default=-1)
    driver.work(range(last + 1, last + 4))
    assert driver.store.read() == driver.expected()
    successor(files, driver, generation + 1)


def live_a_life(driver: EpochDriver) -> None:
    """Open, then enough appends for some compactions, with a restart in place between."""
    first = driver.committed + 1
    driver.open()
    driver.work(range(first, first + 3))
    driver.append([begin(first + 3)])
    driver.append([ack(first + 3)])
    driver.append([started(first + 2)])
    assert driver.store.read() == driver.expected()
    driver.work(range(first + 3, first + 5))


def points_of(prepared: MemoryFiles, make: Callable[[MemoryFiles], EpochDriver]) -> int:
    faults = CrashAt()
    live_a_life(make(prepared.copy().seen_by(faults)))
    return faults.passed


def prepared_storage(generations: int) -> tuple[MemoryFiles, list[Record], int]:
    files = MemoryFiles(torn_writes=True)
    durable: list[Record] = []
    committed = -1
    for generation in range(1, generations + 1):
        driver = EpochDriver(files, generation, durable, committed)
        driver.open()
        driver.work(range(committed + 1, committed + 4))
        durable, committed = driver.durable, driver.committed
    return files, durable, committed


@pytest.mark.parametrize("older", [0, 1, 2])
def test_a_crash_at_any_point_loses_nothing_that_was_answered(older: int) -> None:
    prepared, durable, committed = prepared_storage(older)
    generation = older + 1

    def make(files: MemoryFiles) -> EpochDriver:
        return EpochDriver(files, generation, durable, committed)

    points = points_of(prepared, make)
    assert points > 40
    for point in range(1, points + 1):
        files = prepared.copy()
        dying = make(files.seen_by(CrashAt(point)))
        with pytest.raises(Crash):
            live_a_life(dying)
        check_it_works_on(files, successor(files, dying, generation + 1), generation + 1)


@pytest.mark.parametrize("first_point", [1, 2, 3, 8, 9, 14, 15, 16, 17, 18])
def test_a_crash_at_any_point_of_taking_over_from_a_crashed_driver(first_point: int) -> None:
    prepared, durable, committed = prepared_storage(1)
    dying = EpochDriver(prepared.seen_by(CrashAt(first_point)), 2, durable, committed)
    with pytest.raises(Crash):
        live_a_life(dying)
    for point in range(1, 100):
        files = prepared.copy()
        second = EpochDriver(files.seen_by(CrashAt(point)), 3, dying.durable, dying.committed)
        try:
            second.store.open()
        except Crash:
            successor(files, dying, 4)
        else:
            break
    assert point > 4


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 3)), min_size=1, max_size=6))
def test_any_number_of_drivers_that_die_anywhere(deaths: list[tuple[int, int]]) -> None:
    files = MemoryFiles(torn_writes=True)
    driver = EpochDriver(files, 1, [], -1)
    for generation, (point, behind) in enumerate(deaths, 1):
        # What a driver knows about Spark's commits may lag behind the truth.
        committed = max(driver.committed - behind, -1)
        dying = EpochDriver(files.seen_by(CrashAt(point)), generation, driver.durable, committed)
        try:
            dying.store.open()
            dying.work(range(driver.committed + 1, driver.committed + 5))
        except Crash:
            pass
        dying.committed = max(dying.committed, driver.committed)
        driver = successor(files.copy(), dying, generation + 1)
    successor(files, driver, len(deaths) + 1)


#: Orders in which a file system may go through a folder while somebody writes into it.
ORDERS: dict[str, Callable[[str], object]] = {
    "rising": lambda name: name,
    "falling": lambda name: [-ord(letter) for letter in name],
    "bases first": lambda name: (name.endswith(".log"), name),
    "bases last": lambda name: (name.endswith(".base"), name),
}


class Interfering(MemoryFiles):
    """A view of a storage where somebody else acts just before one look of ours, or in the middle of it.

    In the middle of a listing: the first ``split`` names of an order are as they were before, the others as after.
    """

    def __init__(
        self, files: MemoryFiles, act: Callable[[], None], at: int, split: int, order: Callable[[str], object]
    ) -> None:
        super().__init__()
        self._disk = files._disk
        self._act, self._at, self._split, self._order = act, at, split, order
        self.looks = 0
        self.names = 0  #: how many the interrupted listing was about

    def _look(self) -> bool:
        self.looks += 1
        return self.looks == self._at

    def read(self, path: str) -> bytes:
        if self._look():
            self._act()
        return super().read(path)

    def exists(self, path: str) -> bool:
        if self._look():
            self._act()
        return super().exists(path)

    def list(self, path: str) -> list[str]:
        if not self._look():
            return super().list(path)
        before = super().list(path)
        self._act()
        after = super().list(path)
        names = sorted({*before, *after}, key=self._order)  # type: ignore[arg-type]
        self.names = len(names)
        return sorted(name for place, name in enumerate(names) if name in (before if place < self._split else after))


def interfere(
    prepared: MemoryFiles,
    act_on: Callable[[MemoryFiles], None],
    check: Callable[[MemoryFiles, Interfering], None],
    order: Callable[[str], object],
) -> int:
    """Let somebody act, wholly or up to any point, at every look of ours and in every half-way listing.

    Returns:
        How many schedules there were.
    """

    def run(point: int, at: int, split: int) -> tuple[Interfering, CrashAt]:
        files, faults = prepared.copy(), CrashAt(point)

        def act() -> None:
            with contextlib.suppress(Crash):
                act_on(files.seen_by(faults))

        view = Interfering(files, act, at, split, order)
        check(files, view)
        return view, faults

    schedules = 0
    for at in itertools.count(1):
        for point in itertools.count(1):
            split = 0
            while True:
                view, faults = run(point, at, split)
                schedules += 1
                split += 1
                if split > view.names:
                    break
            if faults.passed < point:
                break
        if view.looks < at:
            return schedules
    raise AssertionError("counting has no end")


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_driver_in_between_may_take_over_while_we_read(order: Callable[[str], object]) -> None:
    prepared, durable, committed = prepared_storage(1)

    def act_on(files: MemoryFiles) -> None:
        EpochDriver(files, 2, durable, committed).open()

    def check(files: MemoryFiles, view: Interfering) -> None:
        EpochDriver(view, 3, durable, committed).open()
        EpochDriver(files, 4, durable, committed).open()

    assert interfere(prepared, act_on, check, order) > 50


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_fenced_driver_may_append_and_compact_while_we_read(order: Callable[[str], object]) -> None:
    """Beside it an even older one has written its first records, long after it was fenced."""
    prepared = MemoryFiles()
    oldest = EpochStore(prepared, FOLDER, Generation(1), RETAIN)
    oldest.open()
    driver = EpochDriver(prepared, 2, [], -1)
    driver.open()
    driver.work(range(3))
    oldest.append([ack(99)])
    durable, committed = driver.durable, driver.committed
    late = [ack(3), ack(4), ack(5), ack(6)]

    def act_on(files: MemoryFiles) -> None:
        zombie = EpochDriver(files, 2, durable, committed)
        zombie.store.read()
        for record in late:
            zombie.append([record])

    def check(files: MemoryFiles, view: Interfering) -> None:
        found = EpochStore(view, FOLDER, Generation(3), RETAIN)
        found.committed(Epoch(committed))
        records = found.open()
        # All that was durable before we looked, then a beginning of what came while we did.
        beginnings = [[*durable, *late[:count]] for count in range(len(late) + 1)]
        assert records in [live(beginning, Epoch(committed), RETAIN) for beginning in beginnings]
        assert found.read() == records

    assert interfere(prepared, act_on, check, order) > 50
