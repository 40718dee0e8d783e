"""Sources that wake subtasks, as Spark has them: asked before an epoch is planned, and silent while their flag is down.

What the product does on the thread of a stream is done here in the same order: the core is asked, the answer rests on a
check of the generation, and only then is an epoch planned; who is woken is fixed with its rows.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final, TypeAlias

from coord_control.errors import Fenced
from coord_control.ids import OperatorUid, QueryName, SubtaskIndex
from tests.simulation.driver import Driver, DriverStage
from tests.simulation.spark import Plan, Run, RunStage
from tests.simulation.values import Violation
from tests.simulation.world import World

__all__ = ["Woken", "ask", "check_silent", "is_silent", "send_to_all", "with_woken"]

Woken: TypeAlias = Mapping[OperatorUid, tuple[SubtaskIndex, ...]]

#: Of the epochs of a query with such a source, those that nothing but the source would cause.
_SILENCE: Final = 0.4


def ask(world: World, driver: Driver, run: Run) -> Woken | None:
    """Let Spark look for something to do: each source answers who is to be woken.

    Returns:
        None: the driver or the run has ended meanwhile.
    """
    woken: dict[OperatorUid, tuple[SubtaskIndex, ...]] = {}
    for spec in driver.specs[run.query]:
        if not spec.wake or spec.uid not in driver.flags:
            continue
        driver.flags.discard(spec.uid)
        found = driver.core.to_wake(spec.uid, run.id)
        driver.flush()
        while driver.writer and driver.stage is DriverStage.ALIVE:
            driver.write(len(driver.writer))
        if driver.stage is DriverStage.ALIVE and not driver.claim.is_fresh():
            try:
                driver.verify()
            except Fenced:
                driver.stage = DriverStage.FENCED
        if driver.stage is DriverStage.FENCED:
            world.say(f"{driver} finds a newer generation and stops itself")
            world.statistics.fenced += 1
            world.retire(driver)
            return None
        if run.stage is not RunStage.RUNNING:
            return None
        if found:
            driver.flags.add(spec.uid)
            woken[spec.uid] = found
    return woken


def is_silent(world: World, query: QueryName, rng: random.Random) -> bool:
    """Whether the other sources of a query have no rows now."""
    if not any(spec.wake for spec in world.specs[query]):
        return world.is_silent
    return world.is_silent or (not world.is_calm and rng.random() < _SILENCE)


def with_woken(world: World, plan: Plan, woken: Woken) -> Plan:
    """Return the plan of an epoch that wakes these subtasks as well."""
    if not woken:
        return plan
    world.statistics.woken += 1
    world.statistics.woken_alone += not plan.rows
    rows = {uid: tuple(sorted({*plan.rows.get(uid, ()), *woken.get(uid, ())})) for uid in {*plan.rows, *woken}}
    return Plan(dict(sorted(rows.items())), plan.actions, plan.is_cut, plan.is_idle, plan.salt)


def send_to_all(world: World, driver: Driver) -> None:
    """Let the coordinators send an event to each subtask that can be woken."""
    for query in driver.runs:
        for spec in driver.specs[query]:
            for subtask in range(spec.parallelism if spec.wake else 0):
                world.send_event(driver, driver.coordinators[spec.uid], subtask, is_ping=False)


def check_silent(driver: Driver) -> None:
    """Check that nothing waits for an epoch that could have been planned.

    Raises:
        Violation: something does, and the stream is silent.
    """
    for operator in driver.core.operators():
        if not operator.spec.wake or operator.query in driver.finished:
            continue
        for subtask, gateway in enumerate(operator.channel.gateways):
            if gateway.waiting_bytes:
                raise Violation(f"wake: events wait for {operator.spec.uid}[{subtask}], and no epoch is planned")
        if operator.has_unrecorded_event:
            raise Violation(f"wake: no record contains a control event of {operator.spec.uid}, and no epoch is planned")
