"""Live values in a simulated job: changed by whoever drives it, asked for by epochs, in all lineages.

The value of a job is a number that no change before it has had, so what an epoch has seen tells which change it was.
The log of the job is a real epoch store. What the product does on a thread of changes and on threads of streams is done
here in the same order: a change is durable and the claim verified before the core knows it; what an epoch has frozen is
durable before the answer is seen.
"""

from __future__ import annotations

import random
from typing import Final

from coord_control.errors import Fenced, LiveValuesRefused, StoreError
from coord_control.ids import Epoch
from coord_control.protocol.records import LiveChanged, LiveFrozen, LiveValue
from tests.simulation.choices import Action, some_driver
from tests.simulation.driver import Driver, DriverStage
from tests.simulation.spark import Run, RunStage
from tests.simulation.values import Violation
from tests.simulation.world import World

__all__ = ["LIVE_ACTIONS", "ask_all", "open_live"]

_NAME: Final = "a"


def open_live(world: World, driver: Driver) -> None:
    """The driver reads the log of live values before its first query starts.

    Raises:
        StoreError: it cannot; nothing was started.
        Violation: a change that was accepted is lost.
    """
    if driver.live_version:
        return
    book = driver.lineage.live
    changes = [record for record in driver.live_log.open() if isinstance(record, LiveChanged)]
    if not changes:
        changes = [LiveChanged(_NAME, 1, b"%d" % book.first, 0)]
        driver.live_log.append(changes)
    _accepted(driver, changes[-1])


def _accepted(driver: Driver, change: LiveChanged) -> None:
    # An older driver that reads and has not noticed yet knows less than the owner; nothing of it is answered.
    book, number = driver.lineage.live, int(change.value)
    if driver.claim.is_current():
        if number in book.accepted[:-1]:
            raise Violation(f"live: change {book.accepted[-1]} was accepted and is lost, {number} counts")
        if number not in book.accepted:
            book.accepted.append(number)
    driver.live_version = change.version
    driver.core.live_changed(_NAME, LiveValue(change.version, change.value))


def _change(world: World, rng: random.Random) -> bool:
    driver = some_driver(world, rng)
    if driver is None or not driver.live_version:
        return False
    if driver.live_pending is None:
        world.live_values += 1
        driver.live_pending = LiveChanged(_NAME, driver.live_version + 1, b"%d" % world.live_values, 0)
    change = driver.live_pending
    try:
        driver.live_log.append([change])
        driver.verify()
    except StoreError:
        world.say(f"{driver} does not know whether live value {int(change.value)} is durable")
        return True
    except Fenced:
        _fence(world, driver)
        return True
    driver.live_pending = None
    world.say(f"{driver} accepts live value {int(change.value)}")
    world.statistics.live_changes += 1
    _accepted(driver, change)
    return True


def _ask(world: World, rng: random.Random) -> bool:
    driver = some_driver(world, rng)
    runs = [] if driver is None or not driver.live_version else [run for run in driver.runs.values() if _asks(run)]
    if driver is None or not runs:
        return False
    _ask_for(world, driver, rng.choice(runs))
    return True


def _asks(run: Run) -> bool:
    return run.epoch is not None and run.stage is RunStage.RUNNING


def _ask_for(world: World, driver: Driver, run: Run) -> None:
    """An epoch is planned, or planned again: its thread waits for the answer."""
    assert run.epoch is not None
    epoch = run.epoch
    try:
        found = driver.core.freeze(run.query, run.id, epoch)
    except LiveValuesRefused as error:
        if driver.claim.is_current() and driver.core._queries[run.query].running:
            raise Violation(f"live: an epoch that runs is refused: {error}") from error
        return
    records = [each.record for each in driver.core._batch.persist if isinstance(each.record, LiveFrozen)]
    world.statistics.live_records += len(records)
    driver.flush()
    while driver.writer and driver.stage is DriverStage.ALIVE:
        driver.write(len(driver.writer))
    if driver.stage is DriverStage.ALIVE and not driver.claim.is_fresh():
        try:
            driver.verify()
        except Fenced:
            driver.stage = DriverStage.FENCED
    if driver.stage is DriverStage.FENCED:
        _fence(world, driver)
    elif driver.core._queries[run.query].running:  # otherwise the record is lost
        world.claims.answered(driver.core.generation)
        _seen(world, driver, run, epoch, int(found[_NAME].value))


def _seen(world: World, driver: Driver, run: Run, epoch: Epoch, number: int) -> None:
    world.statistics.live_answers += 1
    world.say(f"epoch {epoch} of {run.query} ({driver}) sees live value {number}")
    book, key = driver.lineage.live, (run.query, epoch)
    if book.seen.setdefault(key, number) != number:
        raise Violation(f"live: epoch {epoch} of {run.query} has seen {book.seen[key]}, and sees {number} now")
    planned_by, accepted = driver.lineage.live.planned.get(key, (None, 0))
    if planned_by == run.id and book.position(number) < book.position(accepted):
        raise Violation(f"live: {accepted} was accepted before epoch {epoch} of {run.query}, which sees {number}")
    before = max((other for query, other in book.seen if query == run.query and other < epoch), default=None)
    if before is not None and book.position(book.seen[run.query, before]) > book.position(number):
        raise Violation(f"live: epoch {before} of {run.query} has seen a later value than epoch {epoch}")


def _fence(world: World, driver: Driver) -> None:
    driver.stage = DriverStage.FENCED
    world.say(f"{driver} finds a newer generation and stops itself")
    world.statistics.fenced += 1
    world.retire(driver)


def ask_all(world: World, *, is_last: bool = False) -> None:
    """Every query that runs an epoch asks for its values.

    Args:
        is_last: nothing changes any more.

    Raises:
        Violation: one that is the last does not see the last change.
    """
    driver = world.driver
    if driver is None:
        return
    for run in list(driver.runs.values()):
        if _asks(run) and driver.live_version:
            _ask_for(world, driver, run)
            book, epoch = driver.lineage.live, run.epoch
            if is_last and epoch is not None and book.seen[run.query, epoch] != book.accepted[-1]:
                raise Violation(f"live: the last epoch of {run.query} does not see {book.accepted[-1]}")


LIVE_ACTIONS: Final[dict[str, tuple[float, Action]]] = {
    "change live value": (1, _change),
    "ask for live values": (4, _ask),
}
