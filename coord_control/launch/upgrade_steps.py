"""The steps of an upgrade (``coordctl upgrade``): which one follows, and when the new program counts as healthy.

    CHECK     done -> STOP        failed -> REFUSED      the old program runs on, nothing was changed
    STOP      done -> START       failed -> NOT_STOPPED  the old program runs on
    START     done -> VERIFY      failed -> STOP_NEW     or LEFT, if no rollback is wanted
    VERIFY    done -> DONE        failed -> STOP_NEW     or LEFT
    STOP_NEW  done -> SET_BACK    failed -> STUCK
    SET_BACK  done -> START_OLD   failed -> STUCK
    START_OLD done -> ROLLED_BACK failed -> STUCK

The rollback is the same from everywhere. START, SET_BACK and START_OLD lead to LEFT if something else has run the job
since it was stopped: what that has done is not undone. Nothing here reads a clock or does I/O.

Threads: values; :class:`Watch` belongs to one thread.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from coord_control.durable.job_folder.upgrade_record import UpgradeStep
from coord_control.errors import InvalidTransition

__all__ = ["ENDS", "TRANSITIONS", "Look", "QueryLook", "StepOutcome", "Watch", "next_step"]


# When a backlog counts as growing.
_EPOCHS_OF_A_TREND: Final = 4
_CLEARLY: Final = 1.1


class StepOutcome(enum.Enum):
    """How a step has ended."""

    DONE = "done"
    FAILED = "failed"  #: and what was done before is to be undone
    GIVEN_UP = "given_up"  #: and nothing is to be undone


#: Every legal pair. A pair that is not here raises and changes nothing.
TRANSITIONS: Final[Mapping[tuple[UpgradeStep, StepOutcome], UpgradeStep]] = {
    (UpgradeStep.CHECK, StepOutcome.DONE): UpgradeStep.STOP,
    (UpgradeStep.CHECK, StepOutcome.FAILED): UpgradeStep.REFUSED,
    (UpgradeStep.CHECK, StepOutcome.GIVEN_UP): UpgradeStep.REFUSED,
    (UpgradeStep.STOP, StepOutcome.DONE): UpgradeStep.START,
    (UpgradeStep.STOP, StepOutcome.FAILED): UpgradeStep.NOT_STOPPED,
    (UpgradeStep.STOP, StepOutcome.GIVEN_UP): UpgradeStep.NOT_STOPPED,
    (UpgradeStep.START, StepOutcome.DONE): UpgradeStep.VERIFY,
    (UpgradeStep.START, StepOutcome.FAILED): UpgradeStep.STOP_NEW,
    (UpgradeStep.START, StepOutcome.GIVEN_UP): UpgradeStep.LEFT,
    (UpgradeStep.VERIFY, StepOutcome.DONE): UpgradeStep.DONE,
    (UpgradeStep.VERIFY, StepOutcome.FAILED): UpgradeStep.STOP_NEW,
    (UpgradeStep.VERIFY, StepOutcome.GIVEN_UP): UpgradeStep.LEFT,
    (UpgradeStep.STOP_NEW, StepOutcome.DONE): UpgradeStep.SET_BACK,
    (UpgradeStep.STOP_NEW, StepOutcome.FAILED): UpgradeStep.STUCK,
    (UpgradeStep.SET_BACK, StepOutcome.DONE): UpgradeStep.START_OLD,
    (UpgradeStep.SET_BACK, StepOutcome.FAILED): UpgradeStep.STUCK,
    (UpgradeStep.SET_BACK, StepOutcome.GIVEN_UP): UpgradeStep.LEFT,
    (UpgradeStep.START_OLD, StepOutcome.DONE): UpgradeStep.ROLLED_BACK,
    (UpgradeStep.START_OLD, StepOutcome.FAILED): UpgradeStep.STUCK,
    (UpgradeStep.START_OLD, StepOutcome.GIVEN_UP): UpgradeStep.LEFT,
}

#: The steps that nothing follows.
ENDS: Final = frozenset(TRANSITIONS.values()) - {step for step, _ in TRANSITIONS}


def next_step(step: UpgradeStep, outcome: StepOutcome) -> UpgradeStep:
    """Return the step that follows.

    Raises:
        InvalidTransition: no step has this outcome.
    """
    try:
        return TRANSITIONS[step, outcome]
    except KeyError:
        raise InvalidTransition("upgrade", step, outcome) from None


@dataclass(frozen=True, slots=True)
class QueryLook:
    """A query of the new program, at one moment.

    Attributes:
        epoch: the newest that was committed.
        backlog: what waits in its sources; None if they do not say.
    """

    epoch: int | None
    restarts: int = 0
    backlog: int | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """The new program, at one moment.

    Attributes:
        at: monotonic, in seconds.
        is_supervised: its supervisor lives.
    """

    at: float
    generation: int
    is_alive: bool
    is_supervised: bool
    queries: Mapping[str, QueryLook]


@dataclass(slots=True)
class Watch:
    """Watches the new program for some time.

    Attributes:
        generation: of its first driver that ran.
        before: the epochs of the savepoint, by query.
        seconds: for how long.
        accept_idle: do not expect an epoch of every query.
    """

    generation: int
    before: Mapping[str, int]
    seconds: float
    accept_idle: bool = False
    _looks: list[Look] = field(default_factory=list)

    def saw(self, look: Look) -> str | None:
        """Take a look into account; return why the program has failed, or None so far."""
        self._looks.append(look)
        if not look.is_supervised:
            return "its supervisor has ended"
        if look.generation != self.generation:
            return f"its driver was restarted: generation {look.generation} follows {self.generation}"
        restarted = sorted(name for name, query in look.queries.items() if query.restarts)
        return f"queries were restarted after a failure: {', '.join(restarted)}" if restarted else None

    @property
    def is_over(self) -> bool:
        """Whether it has been watched for long enough."""
        return bool(self._looks) and self._looks[-1].at - self._looks[0].at >= self.seconds

    def verdict(self) -> str | None:
        """Return why the program is not healthy at the end, or None if it is."""
        last = self._looks[-1]
        if not last.is_alive:
            return "its driver sends no heartbeats"
        if not self.accept_idle and (idle := sorted(name for name in self._names() if not self._has_run(name, last))):
            return f"queries have committed no epoch since the savepoint: {', '.join(idle)}"
        growing = [text for name in sorted(last.queries) if (text := self._growing(name)) is not None]
        return "; ".join(growing) or None

    def _names(self) -> set[str]:
        return {*self.before, *self._looks[-1].queries}

    def _has_run(self, name: str, last: Look) -> bool:
        query = last.queries.get(name)
        return query is not None and query.epoch is not None and query.epoch > self.before.get(name, -1)

    def _growing(self, name: str) -> str | None:
        # A backlog moves up and down, and one that the pause has left shrinks: it grows if its lowest point of late is
        # clearly above its highest one before. Between two commits it says nothing new, so it counts once an epoch.
        by_epoch = {
            query.epoch: query.backlog
            for look in self._looks
            if (query := look.queries.get(name)) is not None and query.backlog is not None
        }
        sizes = list(by_epoch.values())
        if len(sizes) < _EPOCHS_OF_A_TREND:
            return None
        half = len(sizes) // 2
        if min(sizes[half:]) <= _CLEARLY * max(sizes[:half]):
            return None
        return f"the backlog of query {name} grows: from {max(sizes[:half])} to {sizes[-1]}"
