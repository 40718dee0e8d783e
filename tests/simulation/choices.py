"""What all actions choose in the same way."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeAlias

from tests.simulation.driver import Driver
from tests.simulation.spark import Run, RunStage
from tests.simulation.world import World

__all__ = ["Action", "early_death", "is_spared", "running", "some_driver"]

#: Does something and returns True, or does nothing.
Action: TypeAlias = Callable[[World, random.Random], bool]


def some_driver(world: World, rng: random.Random) -> Driver | None:
    """The owner of the job, or an older driver that does not know yet."""
    alive = world.alive
    if not alive:
        return None
    return alive[0] if len(alive) == 1 or rng.random() < 0.6 else rng.choice(alive)


def running(driver: Driver) -> list[Run]:
    """What Spark runs in a driver."""
    return [run for run in driver.runs.values() if run.stage is RunStage.RUNNING]


def is_spared(world: World, rng: random.Random) -> bool:
    """Whether a fault does not happen in this world, or not now."""
    return world.is_gentle and rng.random() < 0.75


def early_death(world: World, rng: random.Random) -> int | None:
    """The durable step that a new driver does not survive; None: it survives them all."""
    return rng.randint(1, 8) if not world.is_calm and rng.random() < 0.15 else None
