"""All tickets of a job that have not ended, in the order in which they start, and the keys of those that have.

Savepoints stand before checkpoints, what people ask for before what schedules ask for, and the earlier before the
later. A key finds its ticket, pending or ended; of the ended ones the newest are remembered, and not those that came to
nothing before their coordinators were asked: such a request can be repeated as it is.

No rule about time lives here. Single-threaded; owned by the scheduler.
"""

from __future__ import annotations

import bisect
from typing import Final

from coord_control.ids import CheckpointId
from coord_control.protocol.scheduler.tickets import CheckpointRequest, Ticket, TicketId

__all__ = ["REMEMBERED_KEYS", "TicketBook"]

#: Ended tickets with a key that are remembered.
REMEMBERED_KEYS: Final = 1000


class TicketBook:
    """The tickets of one job in one driver."""

    __slots__ = ("_ended_keys", "_next_id", "_pending", "_queue", "_running")

    def __init__(self) -> None:
        self._next_id = 1
        self._pending: dict[TicketId, Ticket] = {}
        self._queue: list[tuple[int, TicketId]] = []  # rank and id, in the order in which they start
        self._running: dict[CheckpointId, TicketId] = {}  # in the order in which they were started
        self._ended_keys: dict[str, Ticket] = {}  # in the order in which they ended

    def new(self, request: CheckpointRequest, now: float) -> Ticket:
        """Return a ticket that is not in the book yet."""
        ticket = Ticket(TicketId(self._next_id), request, now)
        self._next_id += 1
        return ticket

    def enqueue(self, ticket: Ticket) -> None:
        """Append a ticket to the queue."""
        self._pending[ticket.id] = ticket
        bisect.insort(self._queue, (ticket.request.rank, ticket.id))

    def start_first(self, checkpoint: CheckpointId, now: float) -> Ticket:
        """Start the first ticket of the queue, under this id."""
        _, first = self._queue[0]
        started = self._pending[first].started(checkpoint, now)
        del self._queue[0]
        self._running[checkpoint] = first
        self._pending[first] = started
        return started

    def update(self, ticket: Ticket) -> None:
        """Replace a pending ticket, which is being aborted."""
        self._pending[ticket.id] = ticket

    def end(self, ticket: Ticket) -> None:
        """Remove a pending ticket, which has its outcome."""
        del self._pending[ticket.id]
        if ticket.checkpoint is None:
            self._queue.remove((ticket.request.rank, ticket.id))
        else:
            del self._running[ticket.checkpoint]
            self.remember(ticket)

    def remember(self, ticket: Ticket) -> None:
        """Keep an ended ticket for requests that repeat its key."""
        assert ticket.outcome is not None, "it has ended"
        key, reason = ticket.request.key, ticket.outcome.reason
        if key is None or (reason is not None and reason.is_preflight):
            return
        self._ended_keys.pop(key, None)
        self._ended_keys[key] = ticket
        if len(self._ended_keys) > REMEMBERED_KEYS:
            del self._ended_keys[next(iter(self._ended_keys))]

    def forget(self, checkpoint: CheckpointId) -> None:
        """Drop the key of a completed checkpoint."""
        for key in [key for key, ticket in self._ended_keys.items() if ticket.checkpoint == checkpoint]:
            del self._ended_keys[key]

    @property
    def pending(self) -> tuple[Ticket, ...]:
        """All that have not ended, in the order of their requests."""
        return tuple(self._pending.values())

    @property
    def queued(self) -> tuple[Ticket, ...]:
        """Those that wait, in the order in which they start."""
        return tuple(self._pending[ticket] for _, ticket in self._queue)

    @property
    def running(self) -> tuple[Ticket, ...]:
        """Those that were started and have not ended, oldest first."""
        return tuple(self._pending[ticket] for ticket in self._running.values())

    @property
    def first(self) -> Ticket | None:
        """Return the next ticket to start, or None if none waits."""
        return self._pending[self._queue[0][1]] if self._queue else None

    def by_id(self, ticket: TicketId) -> Ticket | None:
        """Return a pending ticket, or None."""
        return self._pending.get(ticket)

    def latest(self, ticket: Ticket) -> Ticket:
        """Return the current version of a pending ticket."""
        return self._pending[ticket.id]

    def by_checkpoint(self, checkpoint: CheckpointId) -> Ticket | None:
        """Return a ticket that was started and has not ended, or None."""
        ticket = self._running.get(checkpoint)
        return self._pending[ticket] if ticket is not None else None

    def by_key(self, key: str) -> Ticket | None:
        """Return a pending ticket, or an ended one that is remembered, or None."""
        pending = (ticket for ticket in self._pending.values() if ticket.request.key == key)
        return next(pending, None) or self._ended_keys.get(key)
