"""One seed, one history: draw it, run it, bring it to rest, and make it short and readable when it fails.

A history is a list of steps, each an action's name and the seed of its details. Its beginning draws the shape of the
world; at its end all faults stop, and the job must come to rest with everything delivered: no loss, no duplicate,
nothing stuck.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from coord_control.errors import CoordControlError, InvalidTransition, NoSuchSubtask
from tests.simulation import rest
from tests.simulation.actions import ACTIONS
from tests.simulation.dice import Dice
from tests.simulation.memory_files import Crash
from tests.simulation.statistics import Statistics
from tests.simulation.values import Violation
from tests.simulation.world import World

__all__ = ["DEFAULT_STEPS", "Failure", "Step", "explain", "replay", "run_seed", "shorten", "take", "watch_seed"]

DEFAULT_STEPS: Final = 600

_NAMES: Final = list(ACTIONS)
_WEIGHTS: Final = list(itertools.accumulate(weight for weight, _ in ACTIONS.values()))
_TRIES: Final = 12  # until an action is possible; most are not at any moment


class Step(NamedTuple):
    action: str
    seed: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A history that broke a rule."""

    seed: int
    steps: tuple[Step, ...]  #: including the one that failed
    rule: str  #: the first word of the message
    message: str


def run_seed(seed: int, steps: int = DEFAULT_STEPS) -> tuple[Statistics, Failure | None]:
    """Draw and run one history.

    Args:
        seed: gives the same history every time, as long as :data:`ACTIONS` stays the same.
        steps: how many steps with faults; the way to rest comes on top.
    """
    world = World(random.Random(seed))
    done: list[Step] = []
    message = _run(world, _drawn(world, random.Random(seed), steps, done))
    world.statistics.steps = len(done)
    world.statistics.created_twice = world.disk.created_twice
    failure = Failure(seed, tuple(done), message.split(":")[0], message) if message is not None else None
    return world.statistics, failure


def watch_seed(seed: int, steps: int, tell: Callable[[str], None]) -> str | None:
    """Run one history and tell everything that happens; returns what it broke."""
    world = World(random.Random(seed), tell)
    return _run(world, _drawn(world, random.Random(seed), steps, []))


def _drawn(world: World, rng: random.Random, steps: int, done: list[Step]) -> Sequence[Callable[[], None]]:
    def draw() -> None:
        for _ in range(_TRIES):
            position = bisect.bisect(_WEIGHTS, rng.random() * _WEIGHTS[-1])
            step = Step(_NAMES[min(position, len(_NAMES) - 1)], rng.getrandbits(32))
            done.append(step)
            if take(world, step):
                return
            done.pop()

    return [draw] * steps


def take(world: World, step: Step) -> bool:
    """Take one step; a driver that dies in it is dead afterwards. False: it was not possible."""
    try:
        return ACTIONS[step.action][1](world, Dice(step.seed))
    except Crash as crash:
        world.crashed(str(crash))
        return True


def _run(world: World, calls: Sequence[Callable[[], object]]) -> str | None:
    try:
        for call in calls:
            if world.has_ended:
                break
            call()
        rest.come_to_rest(world)
    except Violation as violation:
        return str(violation)
    except (InvalidTransition, NoSuchSubtask, CoordControlError, AssertionError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def replay(seed: int, steps: Sequence[Step], tell: Callable[[str], None] | None = None) -> str | None:
    """Run recorded steps in the world of ``seed``; those that are not possible are left out. Returns what broke."""
    world = World(random.Random(seed), tell)
    return _run(world, [functools.partial(take, world, step) for step in steps])


def shorten(failure: Failure, budget: int = 1500) -> Failure:
    """Leave out steps as long as the same rule breaks.

    Args:
        budget: how many histories may be run for it.
    """
    steps, message = list(failure.steps), failure.message
    size = max(1, len(steps) // 2)
    while size and budget > 0:
        position, shorter = 0, False
        while position < len(steps) and budget > 0:
            budget -= 1
            candidate = steps[:position] + steps[position + size :]
            broken = replay(failure.seed, candidate)
            if broken is not None and broken.split(":")[0] == failure.rule:
                steps, message, shorter = candidate, broken, True
            else:
                position += size
        if not shorter or size > 1:
            size = size // 2 if size > 1 else (1 if shorter else 0)
    return Failure(failure.seed, tuple(steps), failure.rule, message)


def explain(failure: Failure) -> str:
    """The history in plain words, one line per event, and what it broke."""
    lines: list[str] = []
    message = replay(failure.seed, failure.steps, lines.append)
    numbered = [f"{number:4}  {line}" for number, line in enumerate(lines, 1)]
    head = f"seed {failure.seed}, {len(failure.steps)} steps:"
    return "\n".join([head, *numbered, f"broken: {message}"])
