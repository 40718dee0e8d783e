"""What can happen to checkpoints: they are triggered, aborted, refused, too slow, stored, and restored from.

An action that is not possible now does nothing and says so, as in :mod:`.actions`.
"""

from __future__ import annotations

import random
from typing import Final

from coord_control.ids import QueryName
from tests.simulation import checkpointing
from tests.simulation.checkpoints import Pinning, UnderWay
from tests.simulation.choices import Action, early_death, is_spared, some_driver
from tests.simulation.driver import Driver, DriverStage
from tests.simulation.spark import RunStage
from tests.simulation.world import World

__all__ = ["CHECKPOINT_ACTIONS"]

_MAX_UNDER_WAY: Final = 5


def _trigger(world: World, rng: random.Random) -> bool:
    driver = some_driver(world, rng)
    if driver is None or len(driver.desk.under_way) >= _MAX_UNDER_WAY:
        return False
    if not driver.is_beginning() and rng.random() < 0.6:
        return False
    for _ in range(rng.choice((1, 1, 1, 2))):
        checkpointing.trigger(world, driver)
    return True


def _take_up(world: World, rng: random.Random) -> bool:
    driver = some_driver(world, rng)
    if driver is None or not driver.desk.told:
        return False
    checkpointing.take_up(world, driver)
    return True


def _pin(world: World, rng: random.Random) -> bool:
    if (found := _some_pin(world, rng)) is None:
        return False
    checkpointing.pin(world, *found)
    return True


def _lose_file(world: World, rng: random.Random) -> bool:
    if is_spared(world, rng) or (found := _some_pin(world, rng)) is None:
        return False
    checkpointing.lose_file(world, *found, is_gone=rng.random() < 0.8)
    return True


def _some_pin(world: World, rng: random.Random) -> tuple[Driver, UnderWay, Pinning] | None:
    driver = some_driver(world, rng)
    if driver is None:
        return None
    pins = [(driver, pending, pinning) for pending in driver.desk.under_way.values() for pinning in pending.pins]
    return rng.choice(pins) if pins else None


def _write_metadata(world: World, rng: random.Random) -> bool:
    driver = some_driver(world, rng)
    writing = [each for each in driver.desk.under_way.values() if each.is_writing] if driver is not None else []
    if driver is None or not writing:
        return False
    is_crash = not world.is_calm and not is_spared(world, rng) and rng.random() < 0.05
    checkpointing.write(world, driver, rng.choice(writing), dies_after=is_crash)
    return True


def _abort(world: World, rng: random.Random) -> bool:
    driver = some_driver(world, rng)
    if driver is None or not driver.desk.under_way:
        return False
    checkpointing.abort(world, driver, rng.choice(list(driver.desk.under_way.values())))
    return True


def _refuse(world: World, rng: random.Random) -> bool:
    driver = some_driver(world, rng)
    owing = [each for each in driver.coordinators.values() if each.owed] if driver is not None else []
    if driver is None or not owing:
        return False
    coordinator = rng.choice(owing)
    barrier = coordinator.owed.pop(0)
    world.say(f"the coordinator of {coordinator.uid} ({driver}) refuses its state for barrier {barrier}")
    driver.refuse(coordinator, barrier)
    return True


def _let_time_pass(world: World, rng: random.Random) -> bool:
    driver = some_driver(world, rng)
    if driver is None:
        return False
    driver.let_time_pass(rng.choice((1.0, 30.0, 61.0)))
    return True


def _restore(world: World, rng: random.Random) -> bool:
    if not world.stored or is_spared(world, rng):
        return False
    stored = rng.choice(list(world.stored.values()))
    checkpointing.restore(world, stored, early_death(world, rng), job=_name(world, rng))
    return True


def _name(world: World, rng: random.Random) -> str | None:
    # Most go on as they are; a fork has a new name, or, the strangest of all, one that it was forked from.
    if rng.random() < 0.7:
        return None
    jobs = world.outside.jobs
    if rng.random() < 0.5:
        jobs.append(f"fork-{len(jobs)}")
        return jobs[-1]
    return rng.choice(jobs)


def _save_offline(world: World, rng: random.Random) -> bool:
    if world.alive or world.lineage.undamaged:
        return False
    checkpointing.save_offline(world)
    return True


def _stop_and_save(world: World, rng: random.Random) -> bool:
    driver = world.driver
    if driver is None or driver.runs.keys() != driver.logs.keys() or driver.lineage.undamaged or is_spared(world, rng):
        return False
    for query in list(driver.runs):
        _end(world, driver, query)
    if driver.stage is DriverStage.ALIVE:
        checkpointing.trigger(world, driver)
    return True


def _end_query(world: World, rng: random.Random) -> bool:
    driver = some_driver(world, rng)
    if driver is None or not driver.runs or is_spared(world, rng):
        return False
    _end(world, driver, rng.choice(list(driver.runs)))
    return True


def _end(world: World, driver: Driver, query: QueryName) -> None:
    world.say(f"{driver} stops {query}")
    run = driver.runs[query]
    run.stage = RunStage.STOPPED
    world.abandon(run)
    driver.end_run(query)
    driver.ended.add(query)


def _start_again(world: World, rng: random.Random) -> bool:
    driver = some_driver(world, rng)
    if driver is None or not driver.ended or (world.is_calm and driver.desk.under_way):
        return False
    driver.ended.remove(rng.choice(sorted(driver.ended)))
    return True


#: name: (weight, action).
CHECKPOINT_ACTIONS: Final[dict[str, tuple[float, Action]]] = {
    "trigger checkpoint": (3, _trigger),
    "take up checkpoint": (4, _take_up),
    "pin": (3, _pin),
    "lose file": (0.3, _lose_file),
    "write metadata": (4, _write_metadata),
    "abort checkpoint": (0.3, _abort),
    "refuse snapshot": (0.15, _refuse),
    "let time pass": (0.3, _let_time_pass),
    "restore": (0.2, _restore),
    "save offline": (0.5, _save_offline),
    "stop and save": (0.2, _stop_and_save),
    "end query": (0.3, _end_query),
    "start again": (1, _start_again),
}
