"""One checkpoint or savepoint while it is being made: what follows from what has happened.

```
            begin        claimed        cut                   quiet           written
      new ------> claiming ----> cutting ----> pinning ---------------> writing ----> completed
                                    ^            |  file gone              | not written
                              quiet |            v                         |
                                    +---------- void                       |
                                                                           v
      a failure before the cut: failed           later: failing ----> draining ----> failed
                                                        measured        quiet
```

- It ends once, with one :class:`Ended`: completed when its ``_metadata`` is written, failed otherwise.
- The first failure stands. One that comes while the metadata is being written comes too late: only the write itself
  can fail then.
- A file that Spark has removed before it was pinned makes the cut void: the checkpoint is cut again, a few times.
- While a pin runs, nothing is cut again and nothing is removed: a slow pin and the next cut would write to one folder.
- Only what was claimed is discarded, so a driver that was replaced removes nothing of its successor's.
- News of the core name their barrier. News of an earlier cut change nothing.
- One that failed waits for what the core has measured of it, but not forever.

Inputs are calls. What must be done because of them is collected in order, and :meth:`CheckpointRun.take` hands it out;
the caller does it and reports back with the call that the effect names. ``now`` is in seconds of any monotonic clock.

Single-threaded; owned by the thread of the checkpoint service.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from coord_control.errors import InvalidTransition, StateFileMissing
from coord_control.ids import BarrierId, QueryName
from coord_control.protocol.failures import FailureReason, reason_of
from coord_control.protocol.scheduler.tickets import CheckpointOutcome

__all__ = [
    "MAX_CUTS",
    "MEASURED_SECONDS",
    "REMOVED_SECONDS",
    "TRANSITIONS",
    "AbortCut",
    "CheckpointRun",
    "ClaimNumber",
    "Confirm",
    "Cut",
    "Discard",
    "Effect",
    "Ended",
    "Input",
    "Pin",
    "Report",
    "State",
    "Withdraw",
    "Write",
]

#: How often a checkpoint is cut when Spark removes its files before they are pinned.
MAX_CUTS: Final = 3
#: What the core has measured of a failed checkpoint is a step of its loop away, but the loop may have ended.
MEASURED_SECONDS: Final = 2.0
#: How long an aborted checkpoint waits for its threads, and for the removal of its files. Its end is certain before: a
#: storage that hangs must not hold up those who wait for it.
REMOVED_SECONDS: Final = 30.0


class State(enum.Enum):
    """Where a checkpoint stands."""

    NEW = "new"  #: nothing has been done
    CLAIMING = "claiming"  #: its id is being claimed
    CUTTING = "cutting"  #: its id is claimed; its queries are looked up, and the core begins to cut them
    PINNING = "pinning"  #: queries are captured by the core, and their files pinned
    VOID = "void"  #: a file was gone; pins of this cut still run
    WRITING = "writing"  #: everything is pinned; its metadata is being written
    FAILING = "failing"  #: aborted; what the core has measured is waited for
    DRAINING = "draining"  #: aborted; its claim or pins still run
    REMOVING = "removing"  #: aborted; what it has left on the storage is being removed
    LEFT = "left"  #: it has ended, and its claim or pins hang
    COMPLETED = "completed"
    FAILED = "failed"


class Input(enum.Enum):
    BEGIN = "begin"
    CLAIMED = "claimed"
    NOT_CLAIMED = "not_claimed"
    CUT = "cut"
    CAPTURED = "captured"  #: the core has captured a query of this cut
    PINNED = "pinned"
    FILE_GONE = "file_gone"  #: a pin found a file removed, and the checkpoint may be cut again
    NOT_PINNED = "not_pinned"  #: a pin failed
    QUIET = "quiet"  #: nothing runs, and no boundary is waited for; follows from the other inputs
    WRITTEN = "written"
    NOT_WRITTEN = "not_written"
    FAIL = "fail"  #: aborted, or an error
    ABANDONED = "abandoned"  #: the core has aborted this cut by itself
    MEASURED = "measured"  #: the core has answered an :class:`AbortCut`, or was waited for long enough
    REMOVED = "removed"  #: what could be removed is removed
    OVERDUE = "overdue"  #: its threads were waited for long enough


@dataclass(frozen=True, slots=True)
class ClaimNumber:
    """Verify that the job is still this driver's, and claim the id, on another thread if that may hang; then
    ``claimed`` or ``not_claimed``, always."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Look up the queries and let the core cut them; then ``cut`` or ``fail``."""


@dataclass(frozen=True, slots=True)
class Pin:
    """Pin the files of a query, on another thread; then ``pinned`` or ``not_pinned``, always."""

    query: QueryName


@dataclass(frozen=True, slots=True)
class Report:
    """More is known of the checkpoint."""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Let the core abort a cut that is void; its gateways open."""


@dataclass(frozen=True, slots=True)
class Write:
    """Write the metadata, on another thread; then ``written`` or ``not_written``, always."""


@dataclass(frozen=True, slots=True)
class Confirm:
    """Let the core tell the coordinators that the checkpoint is complete."""


@dataclass(frozen=True, slots=True)
class AbortCut:
    """Let the core abort the checkpoint and report what it has measured; then ``measured``."""


@dataclass(frozen=True, slots=True)
class Discard:
    """Remove from the storage what the checkpoint has left there, on another thread; then ``removed``, always."""


@dataclass(frozen=True, slots=True)
class Ended:
    """It has ended, as :attr:`CheckpointRun.outcome` says; nothing follows."""


Effect: TypeAlias = ClaimNumber | Cut | Pin | Report | Withdraw | Write | Confirm | AbortCut | Discard | Ended
_Kinds: TypeAlias = tuple[type[Effect], ...]

#: Every legal pair, where it leads, and what must be done then, in order. A pair that is not here raises and changes
#: nothing.
TRANSITIONS: Final[Mapping[tuple[State, Input], tuple[State, _Kinds]]] = {
    (State.NEW, Input.BEGIN): (State.CLAIMING, (ClaimNumber,)),
    (State.NEW, Input.FAIL): (State.FAILED, (Ended,)),
    (State.CLAIMING, Input.CLAIMED): (State.CUTTING, (Cut,)),
    (State.CLAIMING, Input.NOT_CLAIMED): (State.FAILED, (Ended,)),  # nothing of it is ours: nothing is discarded
    (State.CLAIMING, Input.FAIL): (State.DRAINING, ()),
    (State.CUTTING, Input.CUT): (State.PINNING, (Pin,)),
    (State.CUTTING, Input.FAIL): (State.FAILING, (AbortCut,)),  # the core may have begun all the same
    (State.PINNING, Input.CAPTURED): (State.PINNING, (Pin,)),
    (State.PINNING, Input.PINNED): (State.PINNING, (Report,)),
    (State.PINNING, Input.QUIET): (State.WRITING, (Write,)),
    (State.PINNING, Input.FILE_GONE): (State.VOID, (Withdraw,)),
    (State.PINNING, Input.NOT_PINNED): (State.FAILING, (AbortCut,)),
    (State.PINNING, Input.FAIL): (State.FAILING, (AbortCut,)),
    (State.PINNING, Input.ABANDONED): (State.DRAINING, ()),  # the core has reported what it had measured
    (State.VOID, Input.CAPTURED): (State.VOID, ()),
    (State.VOID, Input.PINNED): (State.VOID, ()),
    (State.VOID, Input.FILE_GONE): (State.VOID, ()),
    (State.VOID, Input.NOT_PINNED): (State.VOID, ()),  # an error that stays is met by the next cut
    (State.VOID, Input.QUIET): (State.CUTTING, (Cut,)),
    (State.VOID, Input.FAIL): (State.FAILING, (AbortCut,)),
    (State.VOID, Input.ABANDONED): (State.DRAINING, ()),
    (State.WRITING, Input.WRITTEN): (State.COMPLETED, (Confirm, Ended)),
    (State.WRITING, Input.NOT_WRITTEN): (State.FAILING, (AbortCut,)),
    (State.WRITING, Input.FAIL): (State.WRITING, ()),  # too late
    (State.WRITING, Input.ABANDONED): (State.WRITING, ()),  # too late: what was captured stays good
    (State.FAILING, Input.CAPTURED): (State.FAILING, ()),
    (State.FAILING, Input.PINNED): (State.FAILING, ()),
    (State.FAILING, Input.FILE_GONE): (State.FAILING, ()),
    (State.FAILING, Input.NOT_PINNED): (State.FAILING, ()),
    (State.FAILING, Input.FAIL): (State.FAILING, ()),  # the first failure stands
    (State.FAILING, Input.ABANDONED): (State.DRAINING, ()),  # the core was faster than the abort
    (State.FAILING, Input.MEASURED): (State.DRAINING, ()),
    (State.DRAINING, Input.CAPTURED): (State.DRAINING, ()),
    (State.DRAINING, Input.PINNED): (State.DRAINING, ()),
    (State.DRAINING, Input.FILE_GONE): (State.DRAINING, ()),
    (State.DRAINING, Input.NOT_PINNED): (State.DRAINING, ()),
    (State.DRAINING, Input.CLAIMED): (State.DRAINING, ()),
    (State.DRAINING, Input.NOT_CLAIMED): (State.FAILED, (Ended,)),
    (State.DRAINING, Input.QUIET): (State.REMOVING, (Discard,)),
    (State.DRAINING, Input.OVERDUE): (State.LEFT, (Ended,)),
    (State.DRAINING, Input.FAIL): (State.DRAINING, ()),
    (State.DRAINING, Input.ABANDONED): (State.DRAINING, ()),
    (State.DRAINING, Input.MEASURED): (State.DRAINING, ()),
    (State.REMOVING, Input.REMOVED): (State.FAILED, (Ended,)),
    (State.REMOVING, Input.OVERDUE): (State.FAILED, (Ended,)),
    (State.REMOVING, Input.CAPTURED): (State.REMOVING, ()),
    (State.REMOVING, Input.FAIL): (State.REMOVING, ()),
    (State.REMOVING, Input.ABANDONED): (State.REMOVING, ()),
    (State.REMOVING, Input.MEASURED): (State.REMOVING, ()),
    (State.LEFT, Input.CLAIMED): (State.LEFT, ()),
    (State.LEFT, Input.NOT_CLAIMED): (State.FAILED, ()),
    (State.LEFT, Input.PINNED): (State.LEFT, ()),
    (State.LEFT, Input.FILE_GONE): (State.LEFT, ()),
    (State.LEFT, Input.NOT_PINNED): (State.LEFT, ()),
    (State.LEFT, Input.QUIET): (State.FAILED, (Discard,)),
    (State.LEFT, Input.CAPTURED): (State.LEFT, ()),  # late news, here and below
    (State.LEFT, Input.FAIL): (State.LEFT, ()),
    (State.LEFT, Input.ABANDONED): (State.LEFT, ()),
    (State.LEFT, Input.MEASURED): (State.LEFT, ()),
    (State.COMPLETED, Input.FAIL): (State.COMPLETED, ()),
    (State.COMPLETED, Input.ABANDONED): (State.COMPLETED, ()),
    (State.FAILED, Input.CAPTURED): (State.FAILED, ()),
    (State.FAILED, Input.FAIL): (State.FAILED, ()),
    (State.FAILED, Input.ABANDONED): (State.FAILED, ()),
    (State.FAILED, Input.MEASURED): (State.FAILED, ()),
    (State.FAILED, Input.REMOVED): (State.FAILED, ()),
}

_ABORTED: Final = (State.FAILING, State.DRAINING, State.REMOVING, State.LEFT, State.FAILED)
#: Where time has something to do with it, and what it then does.
_TIMED: Final = {
    State.FAILING: Input.MEASURED,
    State.DRAINING: Input.OVERDUE,
    State.REMOVING: Input.OVERDUE,
}


class CheckpointRun:
    """Decides what is done for one checkpoint, from its start to its end."""

    __slots__ = (
        "_awaited",
        "_barrier",
        "_cuts",
        "_effects",
        "_failed_at",
        "_is_claiming",
        "_outcome",
        "_pinning",
        "_state",
    )

    def __init__(self) -> None:
        self._state = State.NEW
        self._cuts = 0
        self._barrier: BarrierId | None = None  # of this cut
        self._awaited: set[QueryName] = set()  # queries that the core has not captured
        self._pinning: set[QueryName] = set()  # queries whose pin was ordered and has not come back
        self._is_claiming = False  # the claim was ordered and has not come back
        self._failed_at = 0.0
        self._outcome: CheckpointOutcome | None = None
        self._effects: list[Effect] = []

    # What comes out.

    def take(self) -> list[Effect]:
        """Take what must be done now, in order."""
        effects, self._effects = self._effects, []
        return effects

    @property
    def has_output(self) -> bool:
        """Whether :meth:`take` would return anything."""
        return bool(self._effects)

    @property
    def state(self) -> State:
        return self._state

    @property
    def outcome(self) -> CheckpointOutcome | None:
        """How it ends; None while that is open."""
        return self._outcome

    @property
    def awaited(self) -> frozenset[QueryName]:
        """The queries whose boundary is waited for."""
        return frozenset(self._awaited) if self._state is State.PINNING else frozenset()

    @property
    def needs_look(self) -> bool:
        """Whether time has something to do with it: boundaries may be reached, or something waited for too long."""
        return bool(self.awaited) or self._state in _TIMED

    # What was done.

    def begin(self) -> None:
        """Start.

        Raises:
            InvalidTransition: it was started, or aborted before.
        """
        self._step(Input.BEGIN)
        self._is_claiming = True

    def claimed(self) -> None:
        """Its id is claimed.

        Raises:
            InvalidTransition: it is not being claimed.
        """
        self._claim_returned(Input.CLAIMED)

    def not_claimed(self, error: BaseException, now: float) -> None:
        """Its id could not be claimed.

        Raises:
            InvalidTransition: it is not being claimed.
        """
        self._claim_returned(Input.NOT_CLAIMED)
        self._note(_failure(error), now)

    def cut(self, barrier: BarrierId, awaited: Iterable[QueryName], at_rest: Iterable[QueryName]) -> None:
        """The core has begun to cut.

        Args:
            awaited: queries that the core will report as captured.
            at_rest: queries that are taken at their last commit, without the core.

        Raises:
            InvalidTransition: no cut was ordered.
        """
        self._check(Input.CUT)
        self._cuts += 1
        self._barrier = barrier
        self._awaited = set(awaited)
        self._step(Input.CUT, at_rest)

    def pinned(self, query: QueryName) -> bool:
        """The files of a query are pinned. False: they do not count, the checkpoint was aborted or is cut again.

        Raises:
            InvalidTransition: its pin was not ordered, or has come back before.
        """
        counts = self._state is State.PINNING
        self._returned(query, Input.PINNED)
        return counts

    def not_pinned(self, query: QueryName, error: BaseException, now: float) -> bool:
        """The pin of a query has failed. True: therefore the checkpoint is cut again.

        Raises:
            InvalidTransition: its pin was not ordered, or has come back before.
        """
        is_first = self._state is State.PINNING
        if isinstance(error, StateFileMissing) and self._cuts < MAX_CUTS:
            self._returned(query, Input.FILE_GONE)
            return is_first
        self._returned(query, Input.NOT_PINNED)
        self._note(_failure(error), now)
        return False

    def written(self, path: str) -> None:
        """Its metadata is written: it exists.

        Raises:
            InvalidTransition: that was not ordered.
        """
        self._step(Input.WRITTEN)
        self._outcome = CheckpointOutcome(path=path)

    def not_written(self, error: BaseException, now: float) -> None:
        """Its metadata could not be written.

        Raises:
            InvalidTransition: that was not ordered.
        """
        self._step(Input.NOT_WRITTEN)
        failure = _failure(error)
        if failure.reason is FailureReason.STORAGE_ERROR:
            failure = CheckpointOutcome(FailureReason.FINALISE_FAILED, failure.detail)
        self._note(failure, now)

    # What the core says.

    def captured(self, query: QueryName, barrier: BarrierId) -> bool:
        """The core has captured a query; also reported of an aborted checkpoint. Return False for late news."""
        if barrier != self._barrier or query not in self._awaited:
            return False
        self._awaited.remove(query)
        self._step(Input.CAPTURED, [query])
        return True

    def abandoned(self, barrier: BarrierId, failure: CheckpointOutcome, now: float) -> bool:
        """The core has aborted a cut by itself. Return False for late news, of an earlier cut."""
        if barrier != self._barrier:
            return False
        self._step(Input.ABANDONED)
        self._note(failure, now)
        return True

    def measured(self) -> None:
        """The core has aborted the checkpoint, and has reported what it had measured of it.

        Raises:
            InvalidTransition: it was not asked.
        """
        self._step(Input.MEASURED)

    def removed(self) -> None:
        """What it had left on the storage is removed, as far as that was possible.

        Raises:
            InvalidTransition: that was not ordered.
        """
        self._step(Input.REMOVED)

    # What else happens.

    def fail(self, failure: CheckpointOutcome, now: float) -> None:
        """It is not wanted any more, or an error ends it; too late while its metadata is being written."""
        self._step(Input.FAIL)
        self._note(failure, now)

    def fail_with(self, error: BaseException, now: float) -> None:
        """Like :meth:`fail`, with the reason of an error."""
        self.fail(_failure(error), now)

    def tick(self, now: float) -> Input | None:
        """Time has passed. Return what was waited for long enough: MEASURED, the core's measurements are left out;
        OVERDUE, its threads or the removal of its files hang, and it ends without them."""
        input_ = _TIMED.get(self._state)
        seconds = MEASURED_SECONDS if input_ is Input.MEASURED else REMOVED_SECONDS
        if input_ is None or now < self._failed_at + seconds:
            return None
        self._step(input_)
        return input_

    # Inside.

    def _check(self, input_: Input) -> None:
        if (self._state, input_) not in TRANSITIONS:
            raise InvalidTransition("checkpoint run", self._state, input_)

    def _claim_returned(self, input_: Input) -> None:
        self._check(input_)
        self._is_claiming = False
        self._step(input_)

    def _returned(self, query: QueryName, input_: Input) -> None:
        if query not in self._pinning:  # pins run in states only that have a row for their return
            raise InvalidTransition("checkpoint run", self._state, f"{input_.name} of query {query!r}")
        self._pinning.remove(query)
        self._step(input_)

    def _step(self, input_: Input, pin: Iterable[QueryName] = ()) -> None:
        self._check(input_)
        self._state, kinds = TRANSITIONS[self._state, input_]
        for kind in kinds:
            if issubclass(kind, Pin):
                for query in pin:
                    self._pinning.add(query)
                    self._effects.append(Pin(query))
            else:
                self._effects.append(kind())
        if self._state is State.CUTTING:
            self._barrier = None  # news of the cut before come too late from now on
        is_quiet = not self._pinning and not self.awaited and not self._is_claiming
        if is_quiet and (self._state, Input.QUIET) in TRANSITIONS:
            self._step(Input.QUIET)

    def _note(self, failure: CheckpointOutcome, now: float) -> None:
        """Keep why it was aborted, if it was; the first failure stands."""
        if self._state in _ABORTED and self._outcome is None:
            self._outcome = failure
            self._failed_at = now


def _failure(error: BaseException) -> CheckpointOutcome:
    return CheckpointOutcome(reason_of(error), str(error))
