"""The phases of an agent, and the steps of its passes: what follows from what has happened.

```
             registered
     away -------------> registered          closed
      ^ |  <------------  |      |              ^
      +-+      lost       |      | superseded   | close
      lost  superseded    |      v              |
        +-----------------|--> fenced ----------+
        |                 |                     |
        | close           | close               | ended
        v     registered  v                     |
   ending_away -------> ending -----------------+
```

- The driver registers before anything else is written, at the start and after each outage of the database.
- After a newer driver has taken over nothing more is written; that one reports what is open.
- While the job ends nothing new begins: outcomes are written, then the end. Another pass, or the database, may report
  something late; it changes nothing.

What a pass does is given out step by step (:meth:`AgentRun.steps`), because each may change what follows. A step that
was given out and did not come back with :meth:`AgentRun.done` is due again. ``now`` is in seconds of any monotonic
clock.

Single-threaded, but for :meth:`AgentRun.signalled`; the agent has a lock around it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Final

from coord_control.errors import InvalidTransition

__all__ = ["TRANSITIONS", "AgentRun", "Input", "Phase", "Step"]


class Phase(enum.Enum):
    """Where an agent stands with its database."""

    AWAY = "away"  #: not registered: nothing was written yet, or the database was away
    REGISTERED = "registered"
    FENCED = "fenced"  #: a newer driver has registered
    ENDING_AWAY = "ending_away"  #: the job ends, and has to be registered first
    ENDING = "ending"  #: the job ends
    CLOSED = "closed"  #: everything is written, or the time for it is over


class Input(enum.Enum):
    REGISTERED = "registered"  #: registered, and reconciled with the storage
    LOST = "lost"  #: the database cannot be used, or has forgotten the job
    SUPERSEDED = "superseded"  #: the database, or the job, knows a newer driver
    CLOSE = "close"  #: the job ends
    ENDED = "ended"  #: the end is written, or was not within the time


class Step(enum.Enum):
    """What a pass does, in this order."""

    LOOK = "look"  #: poll the commands in progress
    SAMPLE = "sample"  #: measure queries and operators
    REGISTER = "register"
    FLUSH = "flush"  #: write what has happened; before a look at claimed commands, because some may have finished
    TAKE_OLDER = "take_older"  #: take over what this driver, in an answer that was lost, or older ones had claimed
    HEARTBEAT = "heartbeat"
    CLAIM = "claim"  #: claim commands, and begin them
    SEND_EVENTS = "send_events"
    LOOK_AGAIN = "look_again"  #: commands that have just begun may have finished: a client waits for them
    FLUSH_AGAIN = "flush_again"
    PROGRESS = "progress"
    UPKEEP = "upkeep"


#: Every legal pair. A pair that is not here raises and changes nothing.
TRANSITIONS: Final[Mapping[tuple[Phase, Input], Phase]] = {
    (Phase.AWAY, Input.REGISTERED): Phase.REGISTERED,
    (Phase.AWAY, Input.LOST): Phase.AWAY,
    (Phase.AWAY, Input.SUPERSEDED): Phase.FENCED,
    (Phase.AWAY, Input.CLOSE): Phase.ENDING_AWAY,
    (Phase.REGISTERED, Input.LOST): Phase.AWAY,
    (Phase.REGISTERED, Input.SUPERSEDED): Phase.FENCED,
    (Phase.REGISTERED, Input.CLOSE): Phase.ENDING,
    (Phase.FENCED, Input.REGISTERED): Phase.FENCED,  # of a pass that was still busy
    (Phase.FENCED, Input.LOST): Phase.FENCED,
    (Phase.FENCED, Input.SUPERSEDED): Phase.FENCED,
    (Phase.FENCED, Input.CLOSE): Phase.CLOSED,
    (Phase.ENDING_AWAY, Input.REGISTERED): Phase.ENDING,
    (Phase.ENDING_AWAY, Input.LOST): Phase.ENDING_AWAY,
    (Phase.ENDING_AWAY, Input.SUPERSEDED): Phase.CLOSED,
    (Phase.ENDING_AWAY, Input.CLOSE): Phase.ENDING_AWAY,
    (Phase.ENDING_AWAY, Input.ENDED): Phase.CLOSED,
    (Phase.ENDING, Input.LOST): Phase.ENDING_AWAY,  # of a pass that was still busy
    (Phase.ENDING, Input.SUPERSEDED): Phase.CLOSED,
    (Phase.ENDING, Input.CLOSE): Phase.ENDING,
    (Phase.ENDING, Input.ENDED): Phase.CLOSED,
    (Phase.CLOSED, Input.REGISTERED): Phase.CLOSED,  # late, here and below
    (Phase.CLOSED, Input.LOST): Phase.CLOSED,
    (Phase.CLOSED, Input.SUPERSEDED): Phase.CLOSED,
    (Phase.CLOSED, Input.CLOSE): Phase.CLOSED,
    (Phase.CLOSED, Input.ENDED): Phase.CLOSED,
}

#: In these a pass has something to do, and the job may begin something new.
_AT_WORK: Final = (Phase.AWAY, Phase.REGISTERED)
#: Every pass does these once the driver is registered ...
_ALWAYS: Final = (Step.FLUSH, Step.SEND_EVENTS, Step.LOOK_AGAIN, Step.FLUSH_AGAIN, Step.PROGRESS, Step.UPKEEP)
#: ... and these when they are due.
_WHEN_DUE: Final = (Step.TAKE_OLDER, Step.HEARTBEAT, Step.CLAIM)


class AgentRun:
    """Decides what an agent does, from its first pass to its end.

    Args:
        heartbeat_seconds: from one heartbeat to the next.
    """

    __slots__ = ("_doing", "_due", "_has_registered", "_heartbeat_seconds", "_next_heartbeat", "_phase")

    def __init__(self, heartbeat_seconds: float) -> None:
        self._phase = Phase.AWAY
        self._has_registered = False
        self._heartbeat_seconds = heartbeat_seconds
        self._next_heartbeat = 0.0
        self._due: set[Step] = set()
        self._doing: set[Step] = set()  # given out, and not back

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def may_create(self) -> bool:
        """Whether a database that is missing may be created: not one that was used, and was moved away."""
        return not self._has_registered

    def seconds_until_due(self, now: float) -> float:
        """Return how long a registered agent may sleep."""
        return max(0.0, self._next_heartbeat - now)

    def happened(self, input_: Input) -> bool:
        """Take an input; return whether it has changed the phase.

        Raises:
            InvalidTransition: it cannot happen in this phase.
        """
        before = self._phase
        try:
            self._phase = TRANSITIONS[before, input_]
        except KeyError:
            raise InvalidTransition("agent", before, input_) from None
        if input_ is Input.REGISTERED and self._phase is Phase.REGISTERED:
            self._has_registered = True
            self._due = set(_WHEN_DUE)
            self._doing.clear()
            self._next_heartbeat = 0.0
        return self._phase is not before

    def signalled(self) -> None:
        """Note that the database has commands for this driver. Any thread."""
        self._due.add(Step.CLAIM)

    def steps(self, now: float, *, can_use_database: bool) -> Iterator[Step]:
        """Give out what a pass does, one after the other, as long as the phase allows it.

        Args:
            can_use_database: whether it is time to try; False shortly after a failure.
        """
        if self._phase not in _AT_WORK:
            return
        yield Step.LOOK
        yield Step.SAMPLE
        if not can_use_database:
            return
        if self._phase is Phase.AWAY:
            yield Step.REGISTER
        self._due |= self._doing
        self._doing.clear()
        if now >= self._next_heartbeat:
            self._due.add(Step.HEARTBEAT)
        for step in Step:
            if self._phase is not Phase.REGISTERED:
                return
            if step in _WHEN_DUE and step in self._due:
                self._due.discard(step)
                self._doing.add(step)
                yield step
            elif step in _ALWAYS:
                yield step

    def done(self, step: Step, now: float) -> None:
        """Note that a step that is only taken when it is due was taken."""
        self._doing.discard(step)
        if step is Step.HEARTBEAT:
            self._next_heartbeat = now + self._heartbeat_seconds
            self._due.add(Step.CLAIM)  # a signal may have been lost
