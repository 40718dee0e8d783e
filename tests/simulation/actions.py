"""What can happen next: named actions with weights. Each draws its details from a generator of its own.

An action that is not possible now does nothing and says so; so a recorded list of (action, seed) can be shortened at
any place and is still a history (:mod:`.histories`).
"""

from __future__ import annotations

import random
from typing import Final

from coord_control.errors import StoreUnavailable
from tests.simulation import waking
from tests.simulation.checkpoint_actions import CHECKPOINT_ACTIONS
from tests.simulation.choices import Action, early_death, is_spared, running, some_driver
from tests.simulation.commit_actions import COMMIT_ACTIONS
from tests.simulation.driver import Driver, DriverStage
from tests.simulation.items import ITEM_ACTIONS
from tests.simulation.live import LIVE_ACTIONS, open_live
from tests.simulation.network import Connection
from tests.simulation.request_actions import REQUEST_ACTIONS
from tests.simulation.spark import AttemptStage, Plan, Run, RunStage, Task
from tests.simulation.values import Violation
from tests.simulation.world import World

__all__ = ["ACTIONS"]


def _some_run(world: World, rng: random.Random) -> tuple[Driver, Run] | None:
    driver = some_driver(world, rng)
    runs = running(driver) if driver is not None else []
    return (driver, rng.choice(runs)) if driver is not None and runs else None


def _some_connection(world: World, rng: random.Random, stages: tuple[AttemptStage, ...]) -> Connection | None:
    fitting = [each for each in world.network.connections.values() if each.attempt.stage in stages]
    return rng.choice(fitting) if fitting else None


# The network.


def _deliver(world: World, rng: random.Random) -> bool:
    under_way = world.network.under_way
    if not under_way:
        return False
    position = rng.randrange(len(under_way)) if world.is_hostile and rng.random() < 0.4 else 0
    message = under_way[position]
    if not (world.is_hostile and rng.random() < 0.1):
        del under_way[position]
    world.deliver(message)
    return True


def _cut_connection(world: World, rng: random.Random) -> bool:
    if is_spared(world, rng):
        return False
    stages = (AttemptStage.GREETING, AttemptStage.RUNNING, AttemptStage.ACKING)
    connection = _some_connection(world, rng, stages)
    if connection is None:
        return False
    if rng.random() < 0.7:
        world.network.drop(connection)
    world.fail_attempt(connection, reports=False)
    return True


# Drivers, one thread at a time.


def _flush(world: World, rng: random.Random) -> bool:
    driver = some_driver(world, rng)
    if driver is None or not driver.core.has_output:
        return False
    driver.flush()
    return True


def _write(world: World, rng: random.Random) -> bool:
    driver = some_driver(world, rng)
    if driver is None or not driver.writer:
        return False
    driver.write(rng.randint(1, len(driver.writer)))
    if driver.stage is DriverStage.FENCED:
        _stop_fenced(world, driver)
    return True


def _watch(world: World, rng: random.Random) -> bool:
    driver = some_driver(world, rng)
    if driver is None:
        return False
    if not driver.claim.is_current():
        driver.stage = DriverStage.FENCED
        _stop_fenced(world, driver)
    return True


def _stop_fenced(world: World, driver: Driver) -> None:
    world.say(f"{driver} finds a newer generation and stops itself")
    world.statistics.fenced += 1
    world.retire(driver)


def _pass_a_moment(world: World, rng: random.Random) -> bool:
    world.claims.passed += rng.choice((0.1, 0.4, 1.5))
    return True


def _drain(world: World, rng: random.Random) -> bool:
    driver = some_driver(world, rng)
    if driver is None or not driver.inbox:
        return False
    driver.drain(rng.randint(1, len(driver.inbox)))
    return True


def _call_coordinator(world: World, rng: random.Random) -> bool:
    driver = some_driver(world, rng)
    if driver is None or not driver.calls:
        return False
    world.call_coordinator(driver, rng)
    return True


def _complete_late(world: World, rng: random.Random) -> bool:
    driver = some_driver(world, rng)
    owing = [each for each in driver.coordinators.values() if each.owed] if driver is not None else []
    if driver is None or not owing:
        return False
    world.complete_snapshot(driver, rng.choice(owing))
    return True


def _send(world: World, rng: random.Random) -> bool:
    driver = some_driver(world, rng)
    if driver is None:
        return False
    coordinator = rng.choice(list(driver.coordinators.values()))
    if driver.query_of[coordinator.uid] not in driver.runs:
        return False
    world.send_event(driver, coordinator, rng.randrange(coordinator.parallelism), is_ping=rng.random() < 0.2)
    return True


# Spark. The query of an older driver runs on, but writes no sink: two drivers that write the same epoch's output are
# beyond what a control plane can put right.


def _plan(world: World, rng: random.Random) -> bool:
    driver = world.driver
    runs = [run for run in running(driver) if run.epoch is None] if driver is not None else []
    runs = [run for run in runs if not run.is_pausing]
    if driver is None or not runs:
        return False
    first = rng.choice(runs)
    return any(_plan_epoch(world, driver, run, rng) for run in (first, *(run for run in runs if run is not first)))


def _plan_epoch(world: World, driver: Driver, run: Run, rng: random.Random) -> bool:
    # False: there is nothing to do for Spark.
    if run.next_is_planned():
        world.plan(run, None)
        return True
    if (woken := waking.ask(world, driver, run)) is None:
        return True
    silent = waking.is_silent(world, run.query, rng)
    if silent and not woken:
        return False
    plan = Plan({}, salt=rng.getrandbits(20), is_idle=world.is_calm) if silent else world.draw_plan(run.query, rng)
    world.plan(run, waking.with_woken(world, plan, woken))
    return True


def _open_tasks(run: Run) -> list[Task]:
    action = run.current_action
    tasks = [task for task in run.tasks if task.action == action and not task.is_finished]
    return tasks[:1] if run.epoch is not None and run.plan.is_cut else tasks


def _some_task(world: World, rng: random.Random, alive: int) -> tuple[Driver, Run, Task] | None:
    driver = some_driver(world, rng)
    if driver is None:
        return None
    fitting = [(run, task) for run in running(driver) for task in _open_tasks(run) if len(task.alive) == alive]
    return (driver, *rng.choice(fitting)) if fitting else None


def _launch(world: World, rng: random.Random) -> bool:
    if (found := _some_task(world, rng, alive=0)) is None:
        return False
    world.launch(*found)
    return True


def _speculate(world: World, rng: random.Random) -> bool:
    if (found := _some_task(world, rng, alive=1)) is None:
        return False
    world.launch(*found)
    return True


def _run_stage_again(world: World, rng: random.Random) -> bool:
    found = _some_run(world, rng)
    # Between two epochs there is no output to lose.
    run = None if found is None else found[1]
    tasks = [task for task in run.tasks if task.is_finished] if run is not None and run.epoch is not None else []
    if found is None or not tasks:
        return False
    task = rng.choice(tasks)
    task.is_finished = False
    world.say(f"Spark has lost the output of {task.operator}[{task.subtask}]")
    world.launch(*found, task)
    return True


def _finish_function(world: World, rng: random.Random) -> bool:
    running = [each for each in world.network.connections.values() if each.attempt.stage is AttemptStage.RUNNING]
    running = [each for each in running if not each.plan.is_cut]
    if not running:
        return False
    connection = rng.choice(running)
    world.finish_function(connection)
    return True


def _fail_attempt(world: World, rng: random.Random) -> bool:
    connection = _some_connection(world, rng, (AttemptStage.RUNNING,))
    if connection is None:
        return False
    world.fail_attempt(connection, reports=True)
    return True


def _fail_batch(world: World, rng: random.Random) -> bool:
    if is_spared(world, rng):
        return False
    found = _some_run(world, rng)
    if found is None or found[1].epoch is None:
        return False
    world.fail_batch(found[1])
    return True


def _observe(world: World, rng: random.Random) -> bool:
    found = _some_run(world, rng)
    if found is None:
        return False
    found[0].observe(found[1].query)
    return True


def _pause(world: World, rng: random.Random) -> bool:
    found = _some_run(world, rng)
    if found is None or found[1].shall_pause:
        return False
    run = found[1]
    world.say(f"{run.query} shall pause after its epoch")
    world.statistics.pauses += 1
    run.shall_pause = True
    return True


def _go_on(world: World, rng: random.Random) -> bool:
    driver = some_driver(world, rng)
    pausing = [run for run in running(driver) if run.is_pausing] if driver is not None else []
    if driver is None or not pausing:
        return False
    unsettled = [run for run in pausing if driver.observed.get(run.query) != run.log.committed]
    if unsettled:
        driver.observe(rng.choice(unsettled).query)  # it sees that Spark has ended, and settles what was committed
        return True
    if world.is_calm and driver.desk.under_way and len(pausing) == len(world.specs):
        raise Violation(f"progress: checkpoints {list(driver.desk.under_way)} wait although every query pauses")
    run = rng.choice(pausing)
    world.abandon(run)
    world.say(f"{driver} lets {run.query} go on")
    driver.go_on(run)
    return True


# Faults, and what follows them.


def _crash(world: World, rng: random.Random) -> bool:
    if is_spared(world, rng):
        return False
    driver = some_driver(world, rng)
    if driver is None:
        return False
    world.kill(driver, "between two steps")
    return True


def _arm_crash(world: World, rng: random.Random) -> bool:
    if is_spared(world, rng):
        return False
    driver = some_driver(world, rng)
    if driver is None:
        return False
    if rng.random() < 0.3:
        driver.dies_between = True
    else:
        world.faults[driver.core.generation].dies_at = rng.randint(1, 6)
    return True


def _fail_storage(world: World, rng: random.Random) -> bool:
    if is_spared(world, rng):
        return False
    driver = some_driver(world, rng)
    if driver is None:
        return False
    world.faults[driver.core.generation].fails_at = rng.randint(1, 6)
    return True


def _fail_coordinator(world: World, rng: random.Random) -> bool:
    if is_spared(world, rng):
        return False
    driver = some_driver(world, rng)
    if driver is None:
        return False
    driver.coordinator_failed(rng.choice(list(driver.coordinators.values())))
    return True


def _take_over(world: World, rng: random.Random) -> bool:
    if world.driver is None:
        return False
    world.statistics.takeovers += 1
    world.start_driver(early_death(world, rng))
    return True


def _start_rivals(world: World, rng: random.Random) -> bool:
    world.say("two drivers claim the job at the same moment")
    # At the third step the storage has been asked for the claim, and does not have it yet.
    world.start_driver(early_death(world, rng), meets_at=rng.choice((3, 3, 3, *range(1, 9))))
    return True


def _start_driver_and_command(world: World, rng: random.Random) -> bool:
    if world.alive:
        return False
    world.say("a driver and a command on the storage claim the job at the same moment")
    meets_at, dead = rng.choice((3, 3, 3, *range(1, 9))), world.claims.newest(world.disk)
    if rng.random() < 0.5:
        world.start_driver(meets_at=meets_at, meet=lambda: world.run_command(dead))
    else:
        world.run_command(dead, meets_at=meets_at, meet=world.start_driver)
    return True


def _start_driver(world: World, rng: random.Random) -> bool:
    if world.driver is not None:
        return False
    world.start_driver(early_death(world, rng))
    return True


def _start_query(world: World, rng: random.Random) -> bool:
    driver = world.driver
    if driver is None:
        return False
    over = {*driver.runs, *driver.finished, *driver.ended}
    waiting = [query for query in world.specs if query not in over]
    if not waiting:
        return False
    try:
        open_live(world, driver)
    except StoreUnavailable:
        world.say(f"{driver} cannot read the storage now")
        return True
    world.start_query(driver, rng.choice(waiting))
    return True


def _end_run(world: World, rng: random.Random) -> bool:
    driver = some_driver(world, rng)
    stopped = [run for run in driver.runs.values() if run.stage is RunStage.STOPPED] if driver is not None else []
    if driver is None or not stopped:
        return False
    run = rng.choice(stopped)
    world.abandon(run)
    world.statistics.restarts_in_place += 1
    world.say(f"{driver} ends the run of {run.query}")
    driver.end_run(run.query)
    return True


def _set_back(world: World, rng: random.Random) -> bool:
    if world.alive:
        return False
    return world.set_back(rng.choice(list(world.specs)))


def _damage(world: World, rng: random.Random) -> bool:
    lineage = world.lineage
    if world.alive or lineage.undamaged:
        return False
    query = rng.choice(list(world.specs))
    paths = [path for path in world.disk.paths() if path.startswith(lineage.folder(query) + "/")]
    if not paths:
        return False
    path = rng.choice(paths)
    world.say(f"{path} is damaged ({lineage.damage(query, path, rng)})")
    return True


#: name: (weight, action). The weights keep a job busy and let it commit an epoch now and then between two faults.
ACTIONS: Final[dict[str, tuple[float, Action]]] = {
    "deliver": (30, _deliver),
    "flush": (14, _flush),
    "write": (12, _write),
    "drain": (8, _drain),
    "call": (12, _call_coordinator),
    "complete late": (3, _complete_late),
    "send": (2, _send),
    "plan": (6, _plan),
    "launch": (16, _launch),
    "finish": (14, _finish_function),
    "observe": (2, _observe),
    "pause": (0.3, _pause),
    "go on": (0.5, _go_on),
    "start driver": (4, _start_driver),
    "start query": (6, _start_query),
    "end run": (4, _end_run),
    "fail attempt": (0.7, _fail_attempt),
    "cut connection": (0.5, _cut_connection),
    "speculate": (1, _speculate),
    "run stage again": (0.7, _run_stage_again),
    "fail batch": (0.3, _fail_batch),
    "fail coordinator": (0.1, _fail_coordinator),
    "fail storage": (0.1, _fail_storage),
    "crash": (0.25, _crash),
    "arm crash": (0.4, _arm_crash),
    "take over": (0.15, _take_over),
    "start rivals": (0.05, _start_rivals),
    "start driver and command": (0.3, _start_driver_and_command),
    "watch": (0.2, _watch),
    "pass a moment": (1, _pass_a_moment),
    "set back": (0.4, _set_back),
    "damage": (0.1, _damage),
    **COMMIT_ACTIONS,
    **CHECKPOINT_ACTIONS,
    **ITEM_ACTIONS,
    **REQUEST_ACTIONS,
    **LIVE_ACTIONS,
}
