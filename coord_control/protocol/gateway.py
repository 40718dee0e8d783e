"""The valve in the driver on the channel coordinator -> one subtask.

Guarantee: events reach the mailbox in the order in which they were sent, each once; an event sent after the
coordinator's snapshot point of a barrier stays behind that barrier until *this* subtask has passed it (rule C3).
Nothing is ever dropped by opening: an aborted barrier hands its events on like a completed one (C6, invariant I5).

```
sent         a . b . |1| c . |2| d . . . . . . . . . .
barrier 1    marked  closed . . . . . . open -> c moves on to the mailbox
barrier 2          marked    closed . . . . . . . . . open -> d
mailbox      a b                          c            d
```

Each barrier has a separate state at each gateway; there may be several at once (C11). Events are held by the *newest*
closed barrier; when a barrier opens they move to the next older one that is still closed, or to the mailbox, so the
order never changes (scenarios S2-S6 of the reference). Aborts name their barrier: nothing is targeted by "the last one"
(hazard H2).

Single-threaded; owned by the protocol core. Time comes in as ``now`` in seconds of any monotonic clock.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from coord_control.errors import InvalidTransition
from coord_control.ids import BarrierId
from coord_control.protocol.records import EventBatch, count, size

__all__ = ["TRANSITIONS", "Gateway", "Input", "State"]


class State(enum.Enum):
    """Where one barrier stands at one gateway."""

    UNSEEN = "unseen"  #: newer than every barrier so far
    MARKED = "marked"  #: the coordinator was asked for its state; events still pass
    CLOSED = "closed"  #: the coordinator has answered; events wait
    OPENED = "opened"  #: this subtask has passed it, or it was aborted


class Input(enum.Enum):
    MARK = "mark"
    CLOSE = "close"
    OPEN = "open"


#: Every legal pair. A pair that is not here raises and changes nothing.
TRANSITIONS: Final[Mapping[tuple[State, Input], State]] = {
    (State.UNSEEN, Input.MARK): State.MARKED,  # C9: ids only grow, so a regression finds OPENED or MARKED and raises
    (State.MARKED, Input.CLOSE): State.CLOSED,
    (State.MARKED, Input.OPEN): State.OPENED,  # aborted before the coordinator answered
    (State.CLOSED, Input.OPEN): State.OPENED,
    (State.OPENED, Input.OPEN): State.OPENED,  # late news: duplicate acks, an abort after the ack (C10)
    (State.OPENED, Input.CLOSE): State.OPENED,  # late news: the coordinator answers after the abort (C8)
}


class Gateway:
    """One subtask's valve and mailbox."""

    __slots__ = (
        "_barriers",
        "_checkpoint_holds_since",
        "_checkpoints",
        "_highest",
        "_holding_since",
        "blocked_seconds",
        "blocked_total",
        "checkpoint_blocked_seconds",
        "checkpoint_blocked_total",
        "mailbox",
        "waiting_bytes",
    )

    def __init__(self) -> None:
        # Barriers that are marked (None) or closed (their held events), oldest first: ids only grow.
        self._barriers: dict[BarrierId, list[EventBatch] | None] = {}
        self._highest = BarrierId(-1)
        self._holding_since: float | None = None
        self._checkpoints: set[BarrierId] = set()  # those of the barriers that belong to checkpoints
        self._checkpoint_holds_since: float | None = None
        self.mailbox: list[EventBatch] = []  #: events that wait for the subtask's next epoch
        self.waiting_bytes = 0  #: of all events that wait here, before and behind the valve
        self.blocked_total = 0  #: events that had to wait at this gateway, ever
        self.blocked_seconds = 0.0  #: time during which at least one event waited here
        self.checkpoint_blocked_total = 0  #: of the events: those that a checkpoint stopped; the others met an epoch
        self.checkpoint_blocked_seconds = 0.0  #: of the time: while one waited behind a checkpoint

    def state(self, barrier: BarrierId) -> State:
        """Return the state of ``barrier`` at this gateway."""
        if barrier > self._highest:
            return State.UNSEEN
        if barrier not in self._barriers:
            return State.OPENED
        return State.MARKED if self._barriers[barrier] is None else State.CLOSED

    def mark(self, barrier: BarrierId, *, is_checkpoint: bool = False) -> None:
        """Mark the point at which the coordinator is asked for its state at ``barrier``; events still pass.

        Args:
            is_checkpoint: whether the barrier belongs to a checkpoint; otherwise it starts an epoch.

        Raises:
            InvalidTransition: ``barrier`` is not newer than every one before it (C9).
        """
        self._check(barrier, Input.MARK)
        self._highest = barrier
        self._barriers[barrier] = None
        if is_checkpoint:
            self._checkpoints.add(barrier)

    def close(self, barrier: BarrierId) -> bool:
        """Let events wait behind ``barrier``, at the coordinator's snapshot point. Return False if it was opened
        before.

        Raises:
            InvalidTransition: ``barrier`` was not marked, or is closed already.
        """
        self._check(barrier, Input.CLOSE)
        if barrier not in self._barriers:
            return False
        self._barriers[barrier] = []
        return True

    def open(self, barrier: BarrierId, now: float) -> bool:
        """Open ``barrier``, because this subtask has passed it or it was aborted. Return False if it was open already.

        Raises:
            InvalidTransition: ``barrier`` was never marked here (C10).
        """
        self._check(barrier, Input.OPEN)
        if barrier not in self._barriers:
            return False
        held = self._barriers.pop(barrier)
        self._checkpoints.discard(barrier)
        if held:
            self._before(barrier).extend(held)
        self._stop_holding(now)
        return True

    def send(self, batch: EventBatch, now: float) -> None:
        """Put an event of the coordinator into the mailbox, or behind the newest closed barrier."""
        self.waiting_bytes += len(batch.payload)
        for barrier, held in reversed(self._barriers.items()):
            if held is not None:
                held.append(batch)
                self.blocked_total += batch.length
                if self._holding_since is None:
                    self._holding_since = now
                if barrier in self._checkpoints:
                    self.checkpoint_blocked_total += batch.length
                    self._time_checkpoints(now)
                return
        self.mailbox.append(batch)

    def take_mailbox(self) -> tuple[EventBatch, ...]:
        """Take everything that waits for the subtask's next epoch: the epoch's frozen inputs."""
        taken, self.mailbox = tuple(self.mailbox), []
        self.waiting_bytes -= size(taken)
        return taken

    def put_back(self, batches: Iterable[EventBatch]) -> None:
        """Return unconsumed inputs to the front: they were sent before everything that waits now."""
        returned = list(batches)
        self.mailbox[:0] = returned
        self.waiting_bytes += size(returned)

    def held(self) -> tuple[EventBatch, ...]:
        """Return everything that waits behind closed barriers, in the order in which it was sent."""
        return tuple(batch for held in self._barriers.values() if held for batch in held)

    def held_by(self, barrier: BarrierId) -> int:
        """Return how many events wait behind ``barrier`` now."""
        return count(self._barriers.get(barrier) or ())

    def blocked_seconds_at(self, now: float) -> float:
        """Time during which at least one event waited here, up to ``now``."""
        return self.blocked_seconds + self.blocked_age(now)

    def checkpoint_blocked_seconds_at(self, now: float) -> float:
        """Time during which at least one event waited behind a checkpoint here, up to ``now``."""
        since = self._checkpoint_holds_since
        return self.checkpoint_blocked_seconds + (0.0 if since is None else now - since)

    def blocked_age(self, now: float) -> float:
        """For how long at least one event has been waiting here without a break; 0: none does."""
        return now - self._holding_since if self._holding_since is not None else 0.0

    def blocked_by(self) -> Iterator[tuple[BarrierId, int]]:
        """Yield the closed barriers behind which events wait now, oldest first, and how many."""
        for barrier, held in self._barriers.items():
            if held:
                yield barrier, count(held)

    @property
    def blocked(self) -> int:
        """Events that wait behind a closed barrier now."""
        return sum(events for _, events in self.blocked_by())

    @property
    def is_open(self) -> bool:
        """Whether an event sent now would reach the mailbox."""
        return all(held is None for held in self._barriers.values())

    def _check(self, barrier: BarrierId, input_: Input) -> None:
        state = self.state(barrier)
        if (state, input_) not in TRANSITIONS:
            raise InvalidTransition("gateway", state, f"{input_.name} of barrier {barrier}")

    def _before(self, barrier: BarrierId) -> list[EventBatch]:
        older = [held for other, held in self._barriers.items() if other < barrier and held is not None]
        return older[-1] if older else self.mailbox

    def _stop_holding(self, now: float) -> None:
        if self._holding_since is not None and not any(self._barriers.values()):
            self.blocked_seconds += now - self._holding_since
            self._holding_since = None
        self._time_checkpoints(now)

    def _time_checkpoints(self, now: float) -> None:
        # An event that a newer barrier hands on may wait behind an older one of the other kind.
        is_holding = any(self._barriers[each] for each in self._checkpoints)
        if is_holding and self._checkpoint_holds_since is None:
            self._checkpoint_holds_since = now
        elif self._checkpoint_holds_since is not None and not is_holding:
            self.checkpoint_blocked_seconds += now - self._checkpoint_holds_since
            self._checkpoint_holds_since = None
