"""Events from outside, applied to a coordinator exactly once: what of it is part of the coordinator's recorded state.

The receiver of events from outside numbers them per operator (1, 2, ...), keeps them, and passes them to the operator's
:class:`EventFeed`, which passes them to the coordinator in order. The number of the last one is recorded together with
the coordinator's state. After a recovery the coordinator is at an older state and an older number, and every event
above that number is given to it again. So neither the crash between applying and recording nor a second one loses or
doubles an event: state and number go back together.

**Which events does a snapshot contain?** Not those whose callback had returned when the state was asked for: the
snapshot point is the call of ``result.complete`` (rule C2), which may come later, from any thread, and overtake or be
overtaken by a callback. What decides is the order of posts in the job's first-in-first-out inbox, as for everything
that a coordinator sends. An event's *mark* is posted together with the first thing that is sent because of it, in one
step that no other post can divide, or when its callback ends if nothing is sent. The state is sealed with the number of
the last mark that the same incarnation posted before it. Hence:

* A coordinator that only passes events on has no state that could disagree: event and mark are one post, so the event
  is before the snapshot point exactly when its number is.
* A coordinator that starts no threads returns its state in a callback. Callbacks come one at a time, and all marks of
  earlier ones were posted when they ended.
* A coordinator that answers from its own threads must, by rule C2 already, read its state and complete under the lock
  under which it changes it and sends. Under that lock the change and the mark are one step too, if the change sends
  something. If it sends nothing, the coordinator says where the event counts, under the same lock:
  ``context.control_event_applied()``.
* What a coordinator posted before a reset belongs to an incarnation that is over: its marks go with its events.

**When can nothing undo an event?** When a begin record that contains it is durable: a recovery goes back to the newest
one, or to a newer. A completed checkpoint that contains it is not enough, since the job recovers from a checkpoint only
on request.

**And an event that was refused?** Its number is passed like any other, so after a recovery it looks like one that was
applied. The owner of the events makes the refusal durable, and may not get to it: the driver dies, or the database is
away. So the numbers of refused events are recorded with the state, next to the number of the last event, until their
owner reports that their outcomes are durable (:meth:`EventFeed.forget`). They are few: while :data:`MAX_REFUSALS` wait
for that, no further event is applied. A refusal that is not recorded has not happened for a new driver, unless its
owner knows of it: the event is above the recorded number, and is applied again.

Numbers are kept in an *envelope* around the user's bytes, and only when there are any, so an operator that was never
sent an event from outside writes what it always wrote. They are kept per job: a fork under another name begins at 0,
and still says what it has of the job that it was forked from. Version 2 is written while there are refusals, which
follow the number of their job::

    \\0coord_control:1:flights=7,fork=2\\n<the user's bytes>
    \\0coord_control:2:flights=7!3!7,fork=2\\n<the user's bytes>

A user's state that begins with the same characters is put into an envelope without numbers.

Single-threaded values; their owner names the thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from coord_control.errors import DamagedRecord, UnsupportedFormat

__all__ = ["MAX_REFUSALS", "EventFeed", "Numbered", "Seal", "Sealed", "unseal"]

#: Of one operator, whose outcomes are not durable yet; their numbers are part of each record.
MAX_REFUSALS: Final = 1000

_MAGIC: Final = b"\0coord_control:"
_VERSION: Final = 1
_VERSION_WITH_REFUSALS: Final = 2

Event = TypeVar("Event")


@dataclass(frozen=True, slots=True)
class Sealed:
    """A coordinator's recorded state.

    Attributes:
        data: the coordinator's state; None if it has never returned any.
        numbers: of the last event from outside that is part of it, by job.
        refused: numbers of events that were refused and whose outcome may not be durable elsewhere, by job.
    """

    data: bytes | None
    numbers: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def unseal(operator: str, state: bytes | None) -> Sealed:
    """Take a recorded state apart.

    Raises:
        DamagedRecord: it is no envelope, though it begins as one.
        UnsupportedFormat: it was written by a newer release.
    """
    if state is None or not state.startswith(_MAGIC):
        return Sealed(state)
    header, separator, data = state[len(_MAGIC) :].partition(b"\n")
    version, _, numbers = header.partition(b":")
    what = f"the recorded state of the coordinator of operator {operator!r}"
    try:
        if (found := int(version)) > _VERSION_WITH_REFUSALS:
            raise UnsupportedFormat(what, found, _VERSION_WITH_REFUSALS)
        pairs = [pair.split("=") for pair in numbers.decode("ascii").split(",") if pair]
        if not separator:
            raise ValueError("its end is missing")
        parts = {job: [int(number) for number in text.split("!")] for job, text in pairs}
        refused = {job: tuple(rest) for job, (_, *rest) in parts.items() if rest}
        return Sealed(data, {job: number for job, (number, *_) in parts.items()}, refused)
    except ValueError as error:
        raise DamagedRecord(what, f"its numbers of control events cannot be read: {error}") from error


class Seal:
    """How far one incarnation of a coordinator is, in the order of the job's inbox; owned by the protocol core."""

    __slots__ = ("_header", "_job", "_numbers", "_refused")

    def __init__(
        self,
        job: str = "",
        numbers: Mapping[str, int] | None = None,
        refused: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """Begin where the incarnation begins."""
        self._job = job
        self._numbers = dict(numbers or {})
        self._refused = dict(refused or {})
        self._header: bytes | None = None

    @property
    def number(self) -> int:
        """Of the last event that counts."""
        return self._numbers.get(self._job, 0)

    @property
    def refused(self) -> tuple[int, ...]:
        """Of the events that were refused and whose outcome may not be durable elsewhere."""
        return self._refused.get(self._job, ())

    def mark(self, number: int, refused: Collection[int] = ()) -> None:
        """Count the event from here on, in the order of the inbox.

        Args:
            refused: the numbers that the feed says are refused and have no durable outcome yet.
        """
        self._numbers[self._job] = number
        self._refused[self._job] = tuple(refused)
        self._header = None

    def seal(self, data: bytes) -> bytes:
        """At the snapshot point: put the state together with the number that belongs to it."""
        if not self._numbers and not data.startswith(_MAGIC):
            return data
        if self._header is None:
            refused = {job: "".join(f"!{number}" for number in numbers) for job, numbers in self._refused.items()}
            pairs = ",".join(f"{job}={number}{refused.get(job, '')}" for job, number in sorted(self._numbers.items()))
            version = _VERSION_WITH_REFUSALS if any(refused.values()) else _VERSION
            self._header = b"%s%d:%s\n" % (_MAGIC, version, pairs.encode("ascii"))
        return self._header + data


class Numbered(NamedTuple, Generic[Event]):
    """An event with its number."""

    number: int
    event: Event
    size: int  #: bytes


class EventFeed(Generic[Event]):
    """The events of one operator that are accepted and not durable yet, and how far its coordinator is with them.

    Its owner must call it from one thread at a time.

    Args:
        limit: how many bytes of events may be applied and not durable; the others wait, because events that are not
            consumed fill the channels.
    """

    __slots__ = ("_again", "_applied", "_durable", "_newest", "_outstanding", "_refused", "_waiting", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._applied: int | None = None  # of the last event that the coordinator was given
        self._durable = 0
        self._newest = 0
        self._outstanding = 0  # bytes in _again
        self._again: deque[Numbered[Event]] = deque()  # applied and not durable: given again after a recovery
        self._waiting: deque[Numbered[Event]] = deque()
        self._refused: set[int] = set()

    @property
    def applied(self) -> int | None:
        """The number of the last event that was applied; None before the first recovery."""
        return self._applied

    @property
    def durable(self) -> int:
        """Up to this number a recovery finds all events applied."""
        return self._durable

    @property
    def waiting(self) -> int:
        """How many events are to be applied."""
        return len(self._waiting)

    @property
    def refused(self) -> tuple[int, ...]:
        """The numbers of refused events whose outcome is not known to be durable, in order."""
        return tuple(sorted(self._refused))

    def accept(self, number: int, event: Event, size: int = 0) -> bool:
        """Take an event; numbers must come in order, with gaps if need be.

        Returns:
            False: it is here already, or applied or refused, or an event with a higher number is.
        """
        if self._applied is None or number <= max(self._newest, self._applied) or number in self._refused:
            return False
        self._newest = number
        self._waiting.append(Numbered(number, event, size))
        return True

    def recovered(self, number: int, refused: Iterable[int] = ()) -> None:
        """Start from a recovered coordinator, which has applied the events up to ``number``, durably.

        Args:
            refused: the numbers that are recorded as refused. What was refused since stays refused as well.
        """
        self._refused.update(refused)
        everything = (*self._again, *self._waiting)
        self._waiting = deque(each for each in everything if each.number > number)
        self._again.clear()
        self._outstanding = 0
        self._applied = number
        self._newest = max((each.number for each in self._waiting), default=number)
        self._durable = number

    def take(self) -> Numbered[Event] | None:
        """Return the next event to apply, which counts as applied from here on. Return None if there is none, if too
        many bytes are in transit, or if the outcomes of too many refusals are not durable."""
        if not self._waiting or len(self._refused) >= MAX_REFUSALS:
            return None
        taken = self._waiting[0]
        if self._again and self._outstanding + taken.size > self.limit:
            return None
        self._waiting.popleft()
        self._again.append(taken)
        self._outstanding += taken.size
        self._applied = taken.number
        return taken

    def refuse(self, number: int) -> None:
        """Record that the event has failed: it keeps its number and is never applied again."""
        self._refused.add(number)
        self._outstanding -= sum(each.size for each in self._again if each.number == number)
        self._again = deque(each for each in self._again if each.number != number)

    def forget(self, refused: Iterable[int]) -> None:
        """Stop recording these refused events: their outcomes are durable elsewhere."""
        self._refused.difference_update(refused)

    def recorded(self, number: int) -> bool:
        """Note that a record with this number is durable. Return False if that was known."""
        if self._applied is None or number <= self._durable:
            return False
        self._durable = number
        while self._again and self._again[0].number <= number:
            self._outstanding -= self._again.popleft().size
        return True
