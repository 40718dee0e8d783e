"""A driver dies at every point of every write; or it only seems dead, and goes on after another has taken over.

What must hold is said in `checkpoint_kit`: whatever is complete has all its files, at any moment; references equal
reality; nothing is left over; what was answered is true.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.removal import dispose_without_owner
from coord_control.errors import CheckpointInUse, CoordControlError, Fenced, StateFileMissing
from tests.simulation.memory_files import Crash, CrashAt, MemoryFiles
from tests.unit.durable.checkpoint_kit import (
    StoreDriver,
    check_all_verify,
    check_nothing_is_left,
    completed,
    ids,
    run_epoch,
)


def prepared_storage(generations: int = 1, *, has_links: bool = True) -> tuple[MemoryFiles, int]:
    """A job whose earlier drivers have left some of everything; the newest committed epoch."""
    files = MemoryFiles(torn_writes=True, has_links=has_links)
    epoch = 3
    for number in range(epoch + 1):
        run_epoch(files, number)
    for generation in range(1, generations + 1):
        driver = StoreDriver(files, generation)
        driver.make(epoch)
        epoch += 1
        run_epoch(files, epoch)
        driver.make(epoch)
        driver.make(epoch, "savepoint", label=f"of-{generation}")
        driver.pin(driver.claim("savepoint"), epoch)
        driver.pin(driver.claim("checkpoint"), epoch)
    return files, epoch


def live_a_life(driver: StoreDriver, epoch: int) -> None:
    """Take over, and do everything that a driver can do, once."""
    driver.make(epoch)
    early = driver.claim("checkpoint")
    snapshot = driver.pin(early, epoch)
    driver.retain(1)
    given_up = driver.claim("savepoint", target="/elsewhere/given-up")
    driver.pin(given_up, epoch)
    driver.store.discard(given_up)
    mine = driver.make(epoch, "savepoint", target=f"/elsewhere/mine-of-{driver.generation}")
    driver.complete(early, "checkpoint", snapshot)
    driver.retain(2)
    driver.dispose(mine)
    older = [entry.checkpoint for entry in completed(driver.files) if entry.kind == "checkpoint"][:-1]
    for checkpoint in older[:1]:  # a newer driver's retention may have been here
        driver.dispose(checkpoint)
    driver.retain(1)


def die(files: MemoryFiles, point: int, generation: int, epoch: int) -> StoreDriver | None:
    """Live a life that ends at a point; the driver as far as it got."""
    driver = None
    try:
        driver = StoreDriver(files.seen_by(CrashAt(point)), generation)
        live_a_life(driver, epoch)
    except Crash:
        return driver
    raise AssertionError(f"it has not died at point {point}")


def check_answers(driver: StoreDriver, files: MemoryFiles) -> None:
    """What the driver was told to be complete is there; what is there was asked for."""
    found = set(ids(files))
    assert set(driver.completed) - driver.doubtful <= found
    checkpoints = [one for one, kind in driver.completed.items() if kind == "checkpoint"]
    if checkpoints:
        assert max(checkpoints) in found


def successor(files: MemoryFiles, generation: int, epoch: int, dead: StoreDriver | None = None) -> StoreDriver:
    """Take over without faults, check what is found, and that work goes on."""
    check_all_verify(files)
    before = [entry for entry in Catalog(files, "/jobs/flights").entries() if entry.is_completed]
    driver = StoreDriver(files, generation)
    driver.store.open()
    assert ids(files) == [entry.checkpoint for entry in before]
    check_nothing_is_left(driver, files)
    if dead is not None:
        check_answers(dead, files)
    assert not files.walk("/elsewhere/given-up")
    driver.make(epoch)
    driver.make(epoch, "savepoint")
    driver.store.retain(1)
    check_all_verify(files)
    check_nothing_is_left(driver, files)
    return driver


@pytest.mark.parametrize("has_links", [True, False])
def test_a_crash_at_any_point(has_links: bool) -> None:
    prepared, epoch = prepared_storage(has_links=has_links)
    faults = CrashAt()
    live_a_life(StoreDriver(prepared.copy().seen_by(faults), 2), epoch)
    assert faults.passed > 150
    for point in range(1, faults.passed + 1):
        files = prepared.copy()
        highest = max(int(name) for name in files.list("/jobs/flights/checkpoints"))
        dying = die(files, point, 2, epoch)
        after = successor(files, 3, epoch, dying)
        if dying is not None:
            highest = max([highest, *dying.claimed])
        assert min(after.claimed) > highest


@pytest.mark.parametrize("first_point", [1, 7, 20, 45, 60, 90, 120])
def test_a_crash_while_what_a_crash_has_left_is_removed(first_point: int) -> None:
    prepared, epoch = prepared_storage()
    die(prepared, first_point, 2, epoch)
    for point in range(1, 400):
        files, faults = prepared.copy(), CrashAt(point)
        try:
            StoreDriver(files.seen_by(faults), 3).store.open()
        except Crash:
            successor(files, 4, epoch)
        else:
            break
    assert point > 2
    successor(files, 4, epoch)


def test_a_disposal_in_which_two_drivers_die_leaves_nothing() -> None:
    prepared, epoch = prepared_storage(0)
    driver = StoreDriver(prepared, 1)
    savepoint = driver.make(epoch, "savepoint", target="/elsewhere/mine")
    driver.make(epoch)
    points = []
    for first in range(1, 100):
        disposing = prepared.copy()
        try:
            StoreDriver(disposing.seen_by(CrashAt(first)), 2).dispose(savepoint)
        except Crash:
            points.append(_dies_everywhere_in_taking_over(disposing, epoch))
        else:
            break
    assert len(points) > 5
    assert max(points) > 5


def _dies_everywhere_in_taking_over(prepared: MemoryFiles, epoch: int) -> int:
    """Returns: at how many points a third driver can die; the fourth one finds everything in order."""
    for point in range(1, 100):
        files = prepared.copy()
        try:
            StoreDriver(files.seen_by(CrashAt(point)), 3).store.open()
        except Crash:
            successor(files, 4, epoch)
        else:
            return point
    raise AssertionError("it dies for ever")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 250), min_size=1, max_size=5))
def test_any_number_of_drivers_that_die_anywhere(deaths: list[int]) -> None:
    files, epoch = prepared_storage(0)
    for generation, point in enumerate(deaths, 1):
        try:
            live_a_life(StoreDriver(files.seen_by(CrashAt(point)), generation), epoch)
        except Crash:
            check_all_verify(files)
        epoch += 1
        run_epoch(files, epoch)
    successor(files, len(deaths) + 1, epoch)


class Interrupted:
    """At one point somebody else acts, and then we go on, as after a long pause."""

    def __init__(self, point: int, act: Callable[[], None]) -> None:
        self.passed = 0
        self._point, self._act = point, act

    def before_write(self, path: str) -> None:
        self._pass()

    def after_write(self, path: str) -> None:
        self._pass()

    def _pass(self) -> None:
        self.passed += 1
        if self.passed == self._point:
            self._act()


@pytest.mark.parametrize("has_links", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_driver_that_was_believed_dead_goes_on_at_any_point(has_links: bool) -> None:
    prepared, epoch = prepared_storage(has_links=has_links)
    point = fenced = 0
    while True:
        point += 1
        files = prepared.copy()
        newer: list[StoreDriver] = []
        stopped: list[CoordControlError] = []

        def take_over(files: MemoryFiles = files, newer: list[StoreDriver] = newer) -> None:
            driver = StoreDriver(files, 3)
            newer.append(driver)
            driver.make(epoch)
            driver.make(epoch)
            driver.make(epoch, "savepoint", target="/elsewhere/of-the-newer")
            driver.retain(1)

        faults = Interrupted(point, take_over)
        try:
            live_a_life(StoreDriver(files.seen_by(faults), 2), epoch)
        except CoordControlError as error:
            stopped.append(error)
        if not newer:
            break
        # A pinned file that cannot be found any more is the other sign of a takeover.
        assert all(isinstance(error, Fenced | StateFileMissing) for error in stopped)
        fenced += len(stopped)
        check_all_verify(files)
        check_answers(newer[0], files)
        successor(files, 4, epoch)
    assert point > 150
    assert fenced > 100


def test_somebody_without_a_generation_disposes_beside_a_driver_at_any_point() -> None:
    prepared, epoch = prepared_storage(2)
    catalog_ids = ids(prepared)
    point = 0
    while True:
        point += 1
        files = prepared.copy()
        refused: list[int] = []
        acted = False

        def dispose_all(files: MemoryFiles = files, refused: list[int] = refused) -> None:
            nonlocal acted
            acted = True
            for checkpoint in catalog_ids:
                found = [entry for entry in Catalog(files, "/jobs/flights").entries() if entry.checkpoint == checkpoint]
                for entry in found:
                    try:
                        dispose_without_owner(files, "/jobs/flights", entry, lambda path: files)
                    except CheckpointInUse:
                        refused.append(checkpoint)

        driver = StoreDriver(files.seen_by(Interrupted(point, dispose_all)), 3)
        driver.make(epoch)
        driver.make(epoch)
        driver.store.retain(1)
        if not acted:
            break
        assert max(driver.completed) in ids(files)
        check_all_verify(files)
        successor(files, 4, epoch)
    assert point > 50
