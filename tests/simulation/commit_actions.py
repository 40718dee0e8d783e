"""How epochs are committed: by the driver, by an older one, and with a report that is lost.

Threads: the simulation has one.
"""

from __future__ import annotations

import random
from typing import Final

from coord_control.errors import CommittedElsewhere
from tests.simulation.choices import Action, running
from tests.simulation.driver import DriverStage
from tests.simulation.spark import Run, RunStage
from tests.simulation.values import Violation
from tests.simulation.world import World

__all__ = ["COMMIT_ACTIONS"]


def _commit(world: World, rng: random.Random) -> bool:
    return _commit_some(world, rng) is not None


def _commit_some(world: World, rng: random.Random) -> Run | None:
    driver = world.driver
    runs = [run for run in running(driver) if run.may_commit()] if driver is not None else []
    if driver is None or not runs:
        return None
    run = rng.choice(runs)
    world.commit(driver, run)
    return run


def _commit_and_interrupt(world: World, rng: random.Random) -> bool:
    # Spark's stream is interrupted between the commit and its report.
    if (run := _commit_some(world, rng)) is None:
        return False
    run.stage, run.is_interrupted = RunStage.STOPPED, True
    world.say(f"the run of {run.query} is interrupted, and reports nothing more")
    return True


def _commit_elsewhere(world: World, rng: random.Random) -> bool:
    # An older driver that has not noticed yet commits an epoch that its own subtasks have finished. The owner must not
    # take the commit for its own. Nothing tells whose acks the next driver should believe, so the history ends here.
    owner = world.driver
    older = [driver for driver in world.alive if driver is not owner and owner and driver.lineage is owner.lineage]
    runs = [
        run
        for driver in older
        for run in running(driver)
        if run.may_commit() and run.epoch is not None and run.epoch > run.log.committed
    ]
    runs = [run for run in runs if owner is not None and run.query in owner.runs]
    if owner is None or not runs:
        return False
    run = rng.choice(runs)
    world.statistics.foreign_commits += 1
    world.say(f"an older driver commits epoch {run.commit()} of {run.query}")
    own = owner.runs[run.query]
    own.is_interrupted = rng.random() < 0.5
    may_be_own = own.is_interrupted and own.begun >= run.log.committed and not own.is_unfinished()
    if not own.is_interrupted and rng.random() < 0.5:
        owner.observe(run.query)
    own.stage = RunStage.STOPPED  # Spark finds the commit when it comes to its own
    owner.end_run(run.query)
    is_refused = isinstance(owner.finished.get(run.query), CommittedElsewhere)
    if owner.stage is DriverStage.ALIVE and not is_refused and not may_be_own:
        raise Violation(f"settle: {owner} runs {run.query} on although another driver has committed its epoch")
    world.has_ended = True
    return True


def _write_sink(world: World, rng: random.Random) -> bool:
    driver = world.driver
    runs = [run for run in running(driver) if run.may_commit()] if driver is not None else []
    runs = [run for run in runs if run.log.sink != run.epoch]
    if not runs:
        return False
    run = rng.choice(runs)
    world.say(f"the sink of {run.query} has epoch {run.write_sink()}")
    return True


#: name: (weight, action)
COMMIT_ACTIONS: Final[dict[str, tuple[float, Action]]] = {
    "commit elsewhere": (10, _commit_elsewhere),
    "write sink": (4, _write_sink),
    "commit": (8, _commit),
    "commit and interrupt": (0.3, _commit_and_interrupt),
}
