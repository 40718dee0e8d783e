"""One operator's coordinator, its gateways and the triggering phase between them.

A barrier goes through a *triggering phase*: all gateways are marked, the coordinator is asked for its state, and with
its answer (its snapshot point, rule C2) all gateways close. Only one phase runs at a time: the next barrier's
snapshot is asked for when the one before has closed, been aborted or failed, so that snapshots and barriers have one
order. From then on every subtask opens its own gateway in its own time (C3).

An *incarnation* is the life of the coordinator between two resets. Whatever an earlier incarnation sent or answered
late has not happened; there is one door for that, :meth:`OperatorChannel.is_current`.

Single-threaded; owned by the protocol core.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from coord_control.errors import NoSuchSubtask
from coord_control.ids import BarrierId, OperatorUid, SubtaskIndex
from coord_control.protocol.gateway import Gateway
from coord_control.protocol.records import EventBatch

__all__ = ["OperatorChannel"]


class OperatorChannel:
    """Coordinator -> subtasks of one operator, for one incarnation of the coordinator."""

    __slots__ = ("_asked", "_asked_at", "_waiting", "gateways", "incarnation", "operator")

    def __init__(self, operator: OperatorUid, parallelism: int, incarnation: int) -> None:
        self.operator = operator
        self.incarnation = incarnation
        self.gateways = [Gateway() for _ in range(parallelism)]
        self._asked: BarrierId | None = None  # whose snapshot the coordinator was asked for
        self._asked_at = 0.0
        self._waiting: deque[BarrierId] = deque()  # marked, to be asked for later

    def is_current(self, incarnation: int) -> bool:
        """Return whether a call of the coordinator belongs to this incarnation."""
        return incarnation == self.incarnation

    def send(self, subtask: SubtaskIndex, batch: EventBatch, now: float) -> None:
        """Send an event of the coordinator to one subtask.

        Raises:
            NoSuchSubtask: ``subtask`` is not in ``0..parallelism-1``.
        """
        if not 0 <= subtask < len(self.gateways):
            raise NoSuchSubtask(self.operator, subtask, len(self.gateways))
        self.gateways[subtask].send(batch, now)

    def trigger(self, barrier: BarrierId, now: float, *, is_checkpoint: bool = False) -> BarrierId | None:
        """Mark all gateways for ``barrier``. Returns the barrier whose snapshot must be asked for now, if any.

        Args:
            is_checkpoint: whether the barrier belongs to a checkpoint; otherwise it starts an epoch.

        Raises:
            InvalidTransition: ``barrier`` is not newer than every one before it (C9).
        """
        for gateway in self.gateways:
            gateway.mark(barrier, is_checkpoint=is_checkpoint)
        self._waiting.append(barrier)
        return self._next_phase(now)

    def answered(self, barrier: BarrierId, now: float) -> bool:
        """Close all gateways, because the coordinator gave its state. Return False if the barrier was aborted before
        (C8).

        Afterwards call :meth:`next_phase`.
        """
        if barrier != self._asked:
            return False
        self._asked = None
        for gateway in self.gateways:
            gateway.close(barrier)
        return True

    def abort(self, barrier: BarrierId, now: float) -> None:
        """Abort ``barrier`` in any state; nothing is dropped (C6). Afterwards call :meth:`next_phase`."""
        if barrier == self._asked:
            self._asked = None
        elif barrier in self._waiting:
            self._waiting.remove(barrier)
        for gateway in self.gateways:
            gateway.open(barrier, now)

    def next_phase(self, now: float) -> BarrierId | None:
        """Return the barrier whose snapshot must be asked for now, if any."""
        return self._next_phase(now)

    @property
    def asked(self) -> BarrierId | None:
        """The barrier for which the coordinator owes its state."""
        return self._asked

    def asked_for(self, now: float) -> float:
        """Return how long ago the coordinator was asked for the state that it owes, or gave last."""
        return now - self._asked_at

    def overdue(self, now: float, limit_seconds: float) -> BarrierId | None:
        """Return the barrier for which the coordinator has owed its state for longer than ``limit_seconds``."""
        return self._asked if now - self._asked_at > limit_seconds else None

    def close_again(self, barrier: BarrierId) -> None:
        """After a recovery: the snapshot point of ``barrier`` is durable already, its epoch will be run again."""
        for gateway in self.gateways:
            gateway.mark(barrier)
            gateway.close(barrier)

    def freeze(self) -> dict[SubtaskIndex, tuple[EventBatch, ...]]:
        """Take what waits in the mailboxes as an epoch's inputs; subtasks without events are left out."""
        return {
            SubtaskIndex(subtask): gateway.take_mailbox()
            for subtask, gateway in enumerate(self.gateways)
            if gateway.mailbox
        }

    def held(self) -> dict[SubtaskIndex, tuple[EventBatch, ...]]:
        """Return what waits behind closed barriers, in order; subtasks without events are left out."""
        return {
            SubtaskIndex(subtask): held for subtask, gateway in enumerate(self.gateways) if (held := gateway.held())
        }

    def put_back(self, inputs: Mapping[SubtaskIndex, tuple[EventBatch, ...]]) -> None:
        """Return unconsumed inputs to the front of the mailboxes."""
        for subtask, batches in inputs.items():
            self.gateways[subtask].put_back(batches)

    def _next_phase(self, now: float) -> BarrierId | None:
        if self._asked is not None or not self._waiting:
            return None
        self._asked, self._asked_at = self._waiting.popleft(), now
        return self._asked
