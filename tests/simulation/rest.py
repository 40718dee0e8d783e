"""The end of every history: no more faults, and the job must come to rest with everything delivered.

Two epochs with rows for everybody carry every event to its receiver; in the third nothing changes, so nothing may be
written. Then the same for a job that is restored from one of the checkpoints of this history, whichever.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from coord_control.ids import Epoch, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.operator import MAX_CHANNEL_BYTES
from tests.simulation import checkpointing
from tests.simulation.actions import ACTIONS
from tests.simulation.dice import Dice
from tests.simulation.driver import Driver
from tests.simulation.items import check_items, send_last_items
from tests.simulation.live import ask_all
from tests.simulation.requests import check_requests
from tests.simulation.spark import RunStage
from tests.simulation.values import CoordinatorState, SubtaskState, Violation
from tests.simulation.waking import check_silent, send_to_all
from tests.simulation.world import World

__all__ = ["come_to_rest"]

_MAX_ROUNDS: Final = 3000
_LAST_EPOCHS: Final = 4
#: Epochs that bring what waits: one, and a few more for what is on its way, or was planned by another driver.
_MAX_WOKEN: Final = 8
#: A driver that is fenced here has its epoch run again, with empty inputs and without a record: what was to be written
#: then comes later.
_MORE_EPOCHS: Final = 2

#: In this order: what is under way is finished before anything new begins.
_WAY: Final = (
    "start driver",
    "end run",
    "start query",
    "drain",
    "flush",
    "write",
    "call",
    "apply item",
    "complete late",
    "take up checkpoint",
    "pin",
    "write metadata",
    "start again",
    "deliver",
    "finish",
    "launch",
    "commit",
    "go on",
)


def come_to_rest(world: World) -> None:
    """Bring the job to rest and check that nothing was lost; then once more, from one of its checkpoints.

    Raises:
        Violation: something was lost, doubled or written without a reason, or the job is stuck.
    """
    world.calm_down()
    _lift_limits(world)
    rng = Dice(world.uids)
    _rest(world, rng)
    if world.stored:
        stored = rng.choice(list(world.stored.values()))
        world.has_ended = False
        checkpointing.restore(world, stored)
        world.calm_down()
        _rest(world, rng)
    if world.driver is not None:
        world.count(world.driver)


def _lift_limits(world: World) -> None:
    # A channel that is full stays so until its subtask has rows: a job that sends at each start fails at each start.
    limited = {
        query for query, specs in world.specs.items() if any(spec.channel_bytes < MAX_CHANNEL_BYTES for spec in specs)
    }
    for query in limited:
        world.specs[query] = [replace(spec, channel_bytes=MAX_CHANNEL_BYTES) for spec in world.specs[query]]
    if limited and world.driver is not None:
        world.kill(world.driver, "to be started with larger channels")


def _rest(world: World, rng: random.Random) -> None:
    if not _run_until_idle(world, rng) or not _wake_all(world, rng):
        return
    for number in range(_LAST_EPOCHS + _MORE_EPOCHS):
        before = world.statistics.writes
        plan_all(world, rng)
        ask_all(world, is_last=number >= _LAST_EPOCHS - 1)
        if not _run_until_idle(world, rng):
            return
        if number >= _LAST_EPOCHS - 1 and world.statistics.writes == before:
            break
    else:
        raise Violation("cost: an epoch in which nothing changed was written down")
    driver = world.driver
    assert driver is not None, "it was started on the way"
    send_last_items(world, driver)
    plan_all(world, rng)
    if not _run_until_idle(world, rng):
        return
    if driver.desk.under_way:
        raise Violation(f"progress: checkpoints {list(driver.desk.under_way)} are stuck")
    for query in driver.logs:
        if query not in driver.finished:
            _check_delivered(world, driver, query)
            check_items(world, driver, query)
            check_requests(driver, query)
    if not driver.finished:
        _check_idle_checkpoint(world, driver, rng)


def _check_idle_checkpoint(world: World, driver: Driver, rng: random.Random) -> None:
    # At once, without any epoch; everything has arrived, so nothing is on its way.
    checkpoint = checkpointing.trigger(world, driver)
    if not _run_until_idle(world, rng) or world.driver is not driver:
        return
    if (stored := world.stored.get(checkpoint)) is None:
        raise Violation("progress: a checkpoint of an idle job does not complete")
    for part in stored.parts.values():
        for cut in part.cuts:
            if cut.down or cut.up:
                raise Violation(f"I6: events of {cut.operator} are on their way in an idle job")


def _wake_all(world: World, rng: random.Random) -> bool:
    """Let sources that wake subtasks do what there is to do, while no other has rows; False: the job has ended.

    Then the same for one more event to each subtask, when nothing has happened for a while.
    """
    world.is_silent = True
    for is_last in (False, True):
        for _ in range(_MAX_WOKEN):
            if not plan_all(world, rng):
                break
            if not _run_until_idle(world, rng):
                return False
        else:
            raise Violation("wake: subtasks are woken again and again")
        driver = world.driver
        assert driver is not None, "it was started on the way"
        check_silent(driver)
        if not is_last:
            send_to_all(world, driver)
            if not _run_until_idle(world, rng):
                return False
    world.is_silent = False
    return True


def plan_all(world: World, rng: random.Random) -> bool:
    """Begin an epoch in every query; return whether any had something to do."""
    is_any = False
    while ACTIONS["plan"][1](world, rng):
        is_any = True
    return is_any


def _run_until_idle(world: World, rng: random.Random) -> bool:
    # False: the job has ended, because the epoch store was lost.
    for _ in range(_MAX_ROUNDS):
        if world.has_ended:
            return False
        if not any(ACTIONS[name][1](world, rng) for name in _WAY):
            break
    else:
        raise Violation("progress: the job does not come to rest")
    driver = world.driver
    assert driver is not None
    for query, run in driver.runs.items():
        if run.stage is not RunStage.RUNNING or run.epoch is not None:
            raise Violation(f"progress: epoch {run.epoch} of query {query} is stuck")
    for query in driver.runs:
        driver.observe(query)
    while driver.core.has_output or driver.writer or driver.calls or driver.inbox:
        driver.flush()
        driver.write(len(driver.writer))
        if driver.calls:
            world.call_coordinator(driver, rng)
        driver.drain(len(driver.inbox))
    return True


def _check_delivered(world: World, driver: Driver, query: QueryName) -> None:
    view = driver.lineage.view(query, driver.core.generation)
    for spec in world.specs[query]:
        coordinator = driver.coordinators[spec.uid].state
        for subtask in range(spec.parallelism):
            data = view.state_before((spec.uid, SubtaskIndex(subtask)), Epoch(driver.logs[query].committed + 1))
            _compare(spec.uid, subtask, coordinator, SubtaskState.of(data), is_deaf=world.is_deaf)


def _compare(
    uid: OperatorUid, subtask: int, coordinator: CoordinatorState, state: SubtaskState, *, is_deaf: bool
) -> None:
    if state.received != coordinator.sent[subtask]:
        raise Violation(f"I1: {uid}[{subtask}] has received {state.received} of {coordinator.sent[subtask]} events")
    if not is_deaf and state.sent != coordinator.received[subtask]:
        raise Violation(f"I2: the coordinator of {uid} has received {coordinator.received[subtask]} of {state.sent}")
