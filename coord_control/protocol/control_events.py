"""Events from outside, applied to a coordinator exactly once: what of it is part of the coordinator's recorded state.

Whoever accepts events from outside numbers them per operator (1, 2, ...), keeps them, and gives them to the operator's
:class:`EventFeed`, which gives them to the coordinator in order. The number of the last one is recorded together with
the coordinator's state. After a recovery the coordinator is at an older state and an older number, and every event
above that number is given to it again. So neither the crash between applying and recording nor a second one loses or
doubles an event: state and number go back together.

**Which events does a snapshot contain?** Not those whose callback had returned when the state was asked for: the
snapshot point is the call of ``result.complete`` (rule C2), which may come later, from any thread, and overtake or be
overtaken by a callback. What decides is the order of posts in the job's first-in-first-out inbox, as for everything
that a coordinator sends. An event's *mark* is posted together with the first thing that is sent because of it, in one
step that no other post can divide, or when its callback ends if nothing is sent. The state is sealed with the number
of the last mark that was posted before it, of its own incarnation. Hence:

* A coordinator that only passes events on has no state that could disagree: event and mark are one post, so the event
  is before the snapshot point exactly when its number is.
* A coordinator without threads of its own gives its state in a callback. Callbacks come one at a time, and all marks of
  earlier ones were posted when they ended.
* A coordinator that answers from threads of its own must, by rule C2 already, read its state and complete under the
  lock under which it changes it and sends. Under that lock the change and the mark are one step too, if the change
  sends something. If it sends nothing, the coordinator says where the event counts, under the same lock:
  ``context.control_event_applied()``.
* What a coordinator posted before a reset belongs to an incarnation that is over: its marks go with its events.

**When can nothing undo an event?** When a begin record that contains it is durable: a recovery goes back to the newest
one, or to a newer. A completed checkpoint that contains it is not enough, since the job does not recover from
checkpoints unless somebody wants to go back to one.

The number is kept in an *envelope* around the user's bytes, and only when there is one, so an operator that was never
sent an event from outside writes what it always wrote. Numbers are kept per job: a fork under another name begins at 0,
and still says what it has of the job that it was forked from.

::

    \\0coord_control:1:flights=7,fork=2\\n<the user's bytes>

A user's state that begins with the same characters is put into an envelope without numbers.

Single-threaded values; who owns them says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from coord_control.errors import DamagedRecord, UnsupportedFormat

__all__ = ["EventFeed", "Numbered", "Seal", "Sealed", "unseal"]

_MAGIC: Final = b"\0coord_control:"
_VERSION: Final = 1

Event = TypeVar("Event")


@dataclass(frozen=True, slots=True)
class Sealed:
    """A coordinator's recorded state.

    Attributes:
        data: what the coordinator gave; None: it has never given any.
        numbers: of the last event from outside that is part of it, by job.
    """

    data: bytes | None
    numbers: Mapping[str, int] = field(default_factory=dict)


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
        if (found := int(version)) != _VERSION:
            raise UnsupportedFormat(what, found, _VERSION)
        pairs = [pair.split("=") for pair in numbers.decode("ascii").split(",") if pair]
        if not separator:
            raise ValueError("its end is missing")
        return Sealed(data, {job: int(number) for job, number in pairs})
    except ValueError as error:
        raise DamagedRecord(what, f"its numbers of control events cannot be read: {error}") from error


class Seal:
    """How far one incarnation of a coordinator is, in the order of the job's inbox; owned by the protocol core."""

    __slots__ = ("_header", "_job", "_numbers")

    def __init__(self, job: str = "", numbers: Mapping[str, int] | None = None) -> None:
        """Begin where the incarnation begins."""
        self._job = job
        self._numbers = dict(numbers or {})
        self._header: bytes | None = None

    @property
    def number(self) -> int:
        """Of the last event that counts."""
        return self._numbers.get(self._job, 0)

    def mark(self, number: int) -> None:
        """From here on, in the order of the inbox, the event counts."""
        self._numbers[self._job] = number
        self._header = None

    def seal(self, data: bytes) -> bytes:
        """At the snapshot point: put the state together with the number that belongs to it."""
        if not self._numbers and not data.startswith(_MAGIC):
            return data
        if self._header is None:
            pairs = ",".join(f"{job}={number}" for job, number in sorted(self._numbers.items()))
            self._header = b"%s%d:%s\n" % (_MAGIC, _VERSION, pairs.encode("ascii"))
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
        limit: how many bytes of events may be applied and not durable; the others wait, because what nobody consumes
            fills the channels.
    """

    __slots__ = ("_again", "_applied", "_durable", "_newest", "_outstanding", "_waiting", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._applied: int | None = None  # of the last event that the coordinator was given
        self._durable = 0
        self._newest = 0
        self._outstanding = 0  # bytes in _again
        self._again: deque[Numbered[Event]] = deque()  # applied and not durable: given again after a recovery
        self._waiting: deque[Numbered[Event]] = deque()

    @property
    def applied(self) -> int | None:
        """The number of the last event that was applied; None: nobody knows before the first recovery."""
        return self._applied

    @property
    def durable(self) -> int:
        """Up to this number a recovery finds all events applied."""
        return self._durable

    @property
    def waiting(self) -> int:
        """How many events are to be applied."""
        return len(self._waiting)

    def accept(self, number: int, event: Event, size: int = 0) -> bool:
        """Take an event; numbers must come in order, with gaps if need be.

        Returns:
            False: it is here already, or applied, or an event with a higher number is.
        """
        if self._applied is None or number <= max(self._newest, self._applied):
            return False
        self._newest = number
        self._waiting.append(Numbered(number, event, size))
        return True

    def recovered(self, number: int) -> None:
        """The coordinator has gone back, or is new: it has applied the events up to ``number``, durably."""
        everything = (*self._again, *self._waiting)
        self._waiting = deque(each for each in everything if each.number > number)
        self._again.clear()
        self._outstanding = 0
        self._applied = number
        self._newest = max((each.number for each in self._waiting), default=number)
        self._durable = number

    def take(self) -> Numbered[Event] | None:
        """The next event to apply; it counts as applied from here on. None: there is none, or too much is on its
        way."""
        if not self._waiting:
            return None
        taken = self._waiting[0]
        if self._again and self._outstanding + taken.size > self.limit:
            return None
        self._waiting.popleft()
        self._again.append(taken)
        self._outstanding += taken.size
        self._applied = taken.number
        return taken

    def refused(self, number: int) -> None:
        """The event has failed: it keeps its number and is never applied again."""
        self._outstanding -= sum(each.size for each in self._again if each.number == number)
        self._again = deque(each for each in self._again if each.number != number)

    def recorded(self, number: int) -> bool:
        """A record with this number is durable. False: that was known."""
        if self._applied is None or number <= self._durable:
            return False
        self._durable = number
        while self._again and self._again[0].number <= number:
            self._outstanding -= self._again.popleft().size
        return True
