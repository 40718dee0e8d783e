"""Requests from outside: when a coordinator is given them, and what is shown of committed states.

A request lives as long as its driver. That it waits is posted to the inbox, as the driver does it: at once, and again
whenever a run of its query has begun.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coord_control.ids import Epoch, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol import messages
from coord_control.protocol.control_events import unseal
from coord_control.protocol.records import Begin
from tests.simulation.coordinators import SimulatedCoordinator
from tests.simulation.values import Violation

if TYPE_CHECKING:
    from tests.simulation.driver import Driver
    from tests.simulation.world import World

__all__ = ["Shown", "check_requests", "check_shown", "handle_requests", "look_at_requests"]


@dataclass(frozen=True, slots=True)
class Shown:
    """Committed states, when all that the core said before is durable."""

    operator: OperatorUid
    epoch: Epoch
    coordinator: bytes | None
    subtasks: Mapping[SubtaskIndex, bytes | None]


def look_at_requests(driver: Driver, coordinator: SimulatedCoordinator) -> None:
    """Post that requests wait, if any do.

    Raises:
        Violation: the core hands them over although the query has failed, or no run of it exists.
    """
    uid = coordinator.uid

    def post() -> None:
        before = len(driver.core._batch.notices)
        driver.core.requested(uid)
        operator = driver.operator(uid)
        may = operator is not None and driver.core._queries[operator.query].running
        if len(driver.core._batch.notices) > before and not may:
            raise Violation(f"requests: the coordinator of {uid} is to handle one, and its query does not run")

    if coordinator.requests:
        driver.inbox.append(post)


def handle_requests(world: World, coordinator: SimulatedCoordinator, notice: messages.HandleRequests) -> None:
    """``handle_request``, for all that wait.

    Raises:
        Violation: the coordinator has not been reset before, or has been reset since.
    """
    if coordinator.requests and notice.incarnation != coordinator.incarnation:
        raise Violation(
            f"requests: incarnation {coordinator.incarnation} of the coordinator of {coordinator.uid} handles what is "
            f"for {notice.incarnation}"
        )
    world.say(f"the coordinator of {coordinator.uid} handles {coordinator.requests} request(s)")
    coordinator.requests = 0


def check_requests(driver: Driver, query: QueryName) -> None:
    """None is left behind.

    Raises:
        Violation: one was never given to its coordinator.
    """
    for uid, coordinator in driver.coordinators.items():
        if coordinator.requests and driver.query_of[uid] == query:
            raise Violation(f"requests: the coordinator of {uid} was never given {coordinator.requests}")


def check_shown(driver: Driver, shown: Shown) -> None:
    """A driver that started now would find the same.

    Raises:
        Violation: it would not.
    """
    operator = driver.operator(shown.operator)
    if not driver.claim.is_current() or operator is None or operator.committed != shown.epoch:
        return  # what is durable may be newer
    view = driver.lineage.view(operator.query, driver.core.generation)
    for subtask, state in shown.subtasks.items():
        durable = view.state_before((shown.operator, subtask), Epoch(shown.epoch + 1))
        if durable != state:
            raise Violation(
                f"requests: {state!r} is shown of {shown.operator}[{subtask}] at epoch {shown.epoch}, {durable!r} is "
                "durable"
            )
    begins = [record for record in view.records if isinstance(record, Begin) and record.operator == shown.operator]
    states = {unseal(shown.operator, begin.state).data for begin in begins}
    if all(begin.epoch > shown.epoch for begin in begins):
        states.add(None)  # it had none at the epoch that is shown
    if shown.coordinator not in states:
        raise Violation(f"requests: {shown.coordinator!r} is shown of {shown.operator}, and is in no begin record")
