"""Who asks operators from outside: the coordinator, or for committed states."""

from __future__ import annotations

import random
from typing import Final

from coord_control.ids import SubtaskIndex
from coord_control.protocol.messages import Batch
from tests.simulation.choices import Action, some_driver
from tests.simulation.requests import Shown, look_at_requests
from tests.simulation.world import World

__all__ = ["REQUEST_ACTIONS"]


def _ask(world: World, rng: random.Random) -> bool:
    driver = some_driver(world, rng)
    if driver is None:
        return False
    coordinator = rng.choice(list(driver.coordinators.values()))
    coordinator.requests += 1
    world.statistics.requests += 1
    world.statistics.requests_waited += driver.query_of[coordinator.uid] not in driver.runs
    world.say(f"the coordinator of {coordinator.uid} ({driver}) is to handle a request")
    look_at_requests(driver, coordinator)
    return True


def _show(world: World, rng: random.Random) -> bool:
    driver = world.driver
    running = list(driver.core.operators()) if driver is not None else []
    if driver is None or not running:
        return False
    spec = rng.choice(running).spec
    states = driver.core.committed_states(spec.uid, [SubtaskIndex(index) for index in range(spec.parallelism)])
    if states is None:
        return False
    driver.flush()
    shown = Shown(spec.uid, states.epoch, states.coordinator, states.subtasks)
    batch = Batch(notices=[shown])  # type: ignore[list-item] # what a notice stands for here: it comes when all is done
    if driver.writer:
        driver.writer.append(batch)
    else:
        driver.execute(batch)
    world.statistics.states_shown += 1
    return True


#: name: (weight, action).
REQUEST_ACTIONS: Final[dict[str, tuple[float, Action]]] = {
    "ask": (0.5, _ask),
    "show states": (0.5, _show),
}
