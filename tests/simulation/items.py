"""Control events from outside on their way to a coordinator: accepted, applied, and found where they belong.

The feed of a coordinator is the real one. What the driver does with it on the coordinators' thread is done here in the
same order: the mark of an item is posted together with the first thing that is sent because of it, at the latest when
the call ends. A coordinator with threads of its own gives its state before or after the part of the call that is under
its lock, never within it.
"""

from __future__ import annotations

import random
from typing import Final

from coord_control.ids import Epoch, QueryName, SubtaskIndex
from tests.simulation.choices import Action, some_driver
from tests.simulation.coordinators import SimulatedCoordinator
from tests.simulation.driver import Driver
from tests.simulation.outside import Item, Style
from tests.simulation.values import CONTROL, Event, SubtaskState, Violation
from tests.simulation.world import World

__all__ = ["ITEM_ACTIONS", "check_items", "send_last_items"]


def _send_item(world: World, rng: random.Random) -> bool:
    driver = world.driver  # an older one may accept nothing any more
    open_ones = [each for each in driver.coordinators.values() if each.feed.applied is not None] if driver else []
    if driver is None or not open_ones:
        return False
    coordinator = rng.choice(open_ones)
    style = rng.choice((*Style, Style.STATE, Style.PASS, Style.BOTH))
    subtask = rng.choice((None, *range(coordinator.parallelism)))
    _accept(world, driver, coordinator, style, subtask, gap=rng.choice((1, 1, 1, 2)))
    return True


def _accept(
    world: World, driver: Driver, coordinator: SimulatedCoordinator, style: Style, subtask: int | None, *, gap: int
) -> None:
    job, uid = driver.lineage.job, coordinator.uid
    newest = max((item.number for item in world.outside.of(job, uid)), default=0)
    item = world.outside.accept(job, uid, max(newest, coordinator.feed.applied or 0) + gap, style, subtask)
    world.statistics.items += 1
    world.say(f"{item} is accepted for the coordinator of {uid}")
    coordinator.feed.accept(item.number, item, 1)


def _feed_again(world: World, rng: random.Random) -> bool:
    driver = world.driver
    open_ones = [each for each in driver.coordinators.values() if each.feed.applied is not None] if driver else []
    if driver is None or not open_ones:
        return False
    world.feed_again(driver, rng.choice(open_ones))
    return True


def _report_items(world: World, rng: random.Random) -> bool:
    driver = world.driver  # an older one may write nothing any more
    open_ones = [each for each in driver.coordinators.values() if each.feed.applied is not None] if driver else []
    if driver is None or not open_ones:
        return False
    _report(world, driver, rng.choice(open_ones))
    return True


def _report(world: World, driver: Driver, coordinator: SimulatedCoordinator) -> None:
    """Give items their outcomes, as the database keeps them, and tell the feed that they are there.

    Raises:
        Violation: one that was refused is reported as applied, or the other way round.
    """
    feed, outcomes = coordinator.feed, world.outside.outcomes
    items = world.outside.of(driver.lineage.job, coordinator.uid)
    for item in items:
        if item in outcomes or (item.number > feed.durable and item.number not in feed.refused):
            continue
        outcomes[item] = item.number not in feed.refused
        if outcomes[item] is (item.style is Style.POISON):
            word = "applied" if outcomes[item] else "refused"
            raise Violation(f"control: {item} of {coordinator.uid} is reported as {word}")
    feed.forget(item.number for item in items if outcomes.get(item) is False)


def _apply_item(world: World, rng: random.Random) -> bool:
    driver = some_driver(world, rng)
    waiting = [each for each in driver.coordinators.values() if each.feed.waiting] if driver is not None else []
    if driver is None or not waiting:
        return False
    coordinator = rng.choice(waiting)
    if (taken := coordinator.feed.take()) is None:
        return False
    item = taken.event
    world.say(f"the coordinator of {coordinator.uid} ({driver}) is given {item}")
    world.statistics.items_again += item in world.outside.applied
    world.outside.applied.add(item)
    _answer(world, driver, coordinator, rng)
    if item in coordinator.refused:
        raise Violation(f"control: {item} comes again to the coordinator of {coordinator.uid}, which has refused it")
    if item.style is Style.POISON:
        coordinator.feed.refuse(item.number)
        coordinator.refused.add(item)
        world.statistics.items_refused += 1
        driver.mark(coordinator, item.number)
        return True
    coordinator.handles(item, world.outside.before(driver.lineage.job, coordinator.uid, item))
    driver.mark(coordinator, item.number)
    if item.is_passed_on:
        _pass_on(world, driver, coordinator, item)
    _answer(world, driver, coordinator, rng)
    return True


def _answer(world: World, driver: Driver, coordinator: SimulatedCoordinator, rng: random.Random) -> None:
    # Another thread of the coordinator's, before it waits for the lock or after it had it.
    if coordinator.owed and not world.is_calm and rng.random() < 0.2:
        world.complete_snapshot(driver, coordinator)


def _pass_on(world: World, driver: Driver, coordinator: SimulatedCoordinator, item: Item) -> None:
    for subtask in range(coordinator.parallelism):
        if item.goes_to(subtask):
            world.uids += 1
            driver.send(coordinator, subtask, Event(CONTROL, item.id, world.uids))


def send_last_items(world: World, driver: Driver) -> None:
    """One more for each coordinator, that does nothing: nobody would be told of it if its number were not recorded."""
    for coordinator in driver.coordinators.values():
        if coordinator.feed.applied is not None:
            _accept(world, driver, coordinator, Style.NEITHER, None, gap=1)


def check_items(world: World, driver: Driver, query: QueryName) -> None:
    """Everything has been applied, is durable and has arrived: each item exactly once where it belongs.

    Raises:
        Violation: one is missing, or in the wrong place, or nobody will ever be told that it is durable.
    """
    view = driver.lineage.view(query, driver.core.generation)
    committed = driver.logs[query].committed
    for spec in world.specs[query]:
        uid, coordinator = spec.uid, driver.coordinators[spec.uid]
        _report(world, driver, coordinator)
        if coordinator.feed.durable != coordinator.feed.applied:
            raise Violation(
                f"progress: items up to {coordinator.feed.applied} of {uid} are applied, up to "
                f"{coordinator.feed.durable} they are durable"
            )
        items = world.outside.of(driver.lineage.job, uid)
        if silent := [str(item) for item in items if item not in world.outside.outcomes]:
            raise Violation(f"control: no outcome was reported for {', '.join(silent)} of {uid}")
        states = {f"the coordinator of {uid}": (coordinator.state.control, [i.id for i in items if i.changes_state])}
        for index in range(spec.parallelism):
            data = view.state_before((uid, SubtaskIndex(index)), Epoch(committed + 1))
            states[f"{uid}[{index}]"] = (SubtaskState.of(data).control, [i.id for i in items if i.goes_to(index)])
        ours = {item.id for item in items}
        for who, (seen, expected) in states.items():
            if (found := [item for item in seen if item in ours]) != expected:
                raise Violation(f"control: {who} has the items {found}, and must have {expected}")


#: name: (weight, action).
ITEM_ACTIONS: Final[dict[str, tuple[float, Action]]] = {
    "send item": (1.5, _send_item),
    "apply item": (3, _apply_item),
    "feed again": (0.1, _feed_again),
    "report items": (0.5, _report_items),
}
