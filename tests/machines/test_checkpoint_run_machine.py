"""Every history of one checkpoint with two queries, in every order of what may happen around it.

The model: a core that cuts, whose news arrive in order but late, and whose loop may have ended; threads that claim,
pin, write and remove on a storage that may hang; an abort at any time; and time. Each step may fail. All states that
can be reached are visited, and all that must hold is checked on the way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from coord_control.errors import StateFileMissing, StoreUnavailable
from coord_control.ids import BarrierId, QueryName
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.scheduler.checkpoint_run import (
    MAX_CUTS,
    AbortCut,
    CheckpointRun,
    ClaimNumber,
    Confirm,
    Cut,
    Discard,
    Effect,
    Ended,
    Pin,
    Report,
    State,
    Withdraw,
    Write,
)
from coord_control.protocol.scheduler.tickets import CheckpointOutcome

AWAITED, AT_REST = QueryName("awaited"), QueryName("at rest")
GONE = StateFileMissing("state/0/0/1.delta", "it was removed")
UNAVAILABLE = StoreUnavailable("flights", "write", "no answer")
ABORTED, ABANDONED = CheckpointOutcome(FailureReason.ABORTED), CheckpointOutcome(FailureReason.QUERY_FAILED)


@dataclass(slots=True)
class RunModel:
    """A run, and everything around it."""

    run: CheckpointRun = field(default_factory=CheckpointRun)
    to_do: list[Effect] = field(default_factory=list)  #: what the run has ordered and was not begun
    is_claimed: bool = False
    is_written: bool = False
    is_discarded: bool = False
    is_over: bool = False
    cuts: int = 0
    in_core: BarrierId | None = None  #: the cut that the core knows
    in_core_awaited: bool = False  #: and has not captured its query
    news: list[tuple[str, BarrierId]] = field(default_factory=list)  #: of the core, on their way
    threads: list[str] = field(default_factory=list)  #: that claim, pin a query, write or remove
    pinned: list[QueryName] = field(default_factory=list)  #: in this cut

    def key(self) -> str:
        run = [repr(_sorted(getattr(self.run, slot))) for slot in CheckpointRun.__slots__]
        model = [repr(getattr(self, slot)) for slot in RunModel.__slots__ if slot != "run"]
        return " ".join([*run, *model])

    def steps(self) -> Iterator[tuple[str, Callable[[RunModel], None]]]:
        """Everything that may happen now. What need not happen has a name that begins with `maybe`."""
        if self.to_do:  # on the service's thread: nothing else comes between
            yield from self._orders(self.to_do[0])
            return
        if self.run.state is State.NEW:
            yield "begin", lambda model: model.run.begin()
        for thread in self.threads:
            yield from self._returns(thread)
        if self.news:
            yield "news", RunModel._hear
        if self.in_core is not None and self.in_core_awaited:
            yield "captured", RunModel._capture
        if self.in_core is not None:
            yield "maybe core gives up", RunModel._give_up
        yield "maybe fail", lambda model: model.run.fail(ABORTED, 0.0)
        yield "time", lambda model: _discard_result(model.run.tick(1e9))

    def _orders(self, effect: Effect) -> Iterator[tuple[str, Callable[[RunModel], None]]]:
        match effect:
            case ClaimNumber():
                yield "claim", lambda model: model.threads.append("claim")
                yield "maybe no thread for the claim", lambda model: model.run.not_claimed(UNAVAILABLE, 0.0)
            case Cut():
                yield "cut", RunModel._cut
                yield "maybe cut fails before the core", lambda model: model.run.fail_with(UNAVAILABLE, 0.0)
                yield "maybe cut fails behind the core", RunModel._cut_unheard
            case Pin():
                yield f"pin {effect.query}", lambda model: model._start(effect.query)
                yield (
                    "maybe no thread",
                    lambda model: _discard_result(model.run.not_pinned(effect.query, UNAVAILABLE, 0.0)),
                )
            case Write():
                yield "write", RunModel._write
                yield "maybe no metadata", lambda model: model.run.not_written(UNAVAILABLE, 0.0)
            case Withdraw():
                yield "withdraw", RunModel._forget
            case Confirm():
                yield "confirm", RunModel._forget
            case AbortCut():
                yield "abort", RunModel._abort
                yield "maybe the loop has ended", RunModel._forget
            case Discard():
                yield "discard", RunModel._discard
                yield "maybe no thread to discard", RunModel._discard_later
            case Ended():
                yield "end", RunModel._end
            case Report():
                yield "report", lambda model: None

    def _returns(self, thread: str) -> Iterator[tuple[str, Callable[[RunModel], None]]]:
        if thread == "claim":
            yield "claimed", RunModel._claimed
            yield "maybe not claimed", RunModel._not_claimed
        elif thread == "discard":
            yield "discarded", RunModel._discarded
        elif thread == "write":
            yield "written", RunModel._written
            yield "maybe not written", RunModel._not_written
        else:
            query = QueryName(thread)
            yield f"pinned {query}", lambda model: model._pinned(query)
            yield "maybe gone", lambda model: model._not_pinned(query, GONE)
            yield "maybe not pinned", lambda model: model._not_pinned(query, UNAVAILABLE)

    # What the run has ordered.

    def _cut_unheard(self) -> None:
        assert not self.threads, "pins of the cut before still run"
        assert self.in_core is None, "the core knows the cut before"
        self.cuts += 1
        self.in_core, self.in_core_awaited, self.pinned = BarrierId(self.cuts), True, []
        self.run.fail_with(UNAVAILABLE, 0.0)

    def _cut(self) -> None:
        assert not self.threads, "pins of the cut before still run"
        assert self.in_core is None, "the core knows the cut before"
        assert self.run.outcome is None, "it was given up"
        self.cuts += 1
        self.in_core, self.in_core_awaited, self.pinned = BarrierId(self.cuts), True, []
        self.run.cut(self.in_core, [AWAITED], [AT_REST])

    def _start(self, thread: str) -> None:
        assert self.is_claimed
        assert thread not in self.threads, "two pins of one query"
        self.threads.append(thread)

    def _write(self) -> None:
        assert sorted(self.pinned) == sorted((AWAITED, AT_REST)), "not everything is pinned"
        assert not self.threads
        assert self.run.outcome is None, "it was given up"
        self._start("write")

    def _forget(self) -> None:
        self.in_core = None

    def _abort(self) -> None:
        self.in_core = None
        self.news.append(("measured", BarrierId(0)))

    def _discard(self) -> None:
        assert self.is_claimed, "it is another driver's"
        assert not self.threads, "a pin still runs"
        assert not self.is_written, "it exists"
        assert not self.is_discarded, "twice"
        self.threads.append("discard")

    def _discard_later(self) -> None:
        self.is_discarded = True  # by the next driver
        self.run.removed()

    def _end(self) -> None:
        assert not self.is_over, "it ends twice"
        outcome = self.run.outcome
        assert outcome is not None
        assert (outcome.reason is None) is self.is_written
        assert self.in_core is None, "its gateways stay closed"
        assert not self.is_written or not self.threads
        self.is_over = True

    def is_done(self) -> bool:
        """It has ended, and nothing of it runs."""
        return self.is_over and not self.threads and not self.to_do

    # What the threads and the core say.

    def _claimed(self) -> None:
        self.threads.remove("claim")
        self.is_claimed = True
        self.run.claimed()

    def _not_claimed(self) -> None:
        self.threads.remove("claim")
        self.run.not_claimed(UNAVAILABLE, 0.0)

    def _discarded(self) -> None:
        self.threads.remove("discard")
        self.is_discarded = True
        self.run.removed()

    def _pinned(self, query: QueryName) -> None:
        self.threads.remove(query)
        if self.run.pinned(query):
            self.pinned.append(query)

    def _not_pinned(self, query: QueryName, error: Exception) -> None:
        self.threads.remove(query)
        self.run.not_pinned(query, error, 0.0)

    def _written(self) -> None:
        self.threads.remove("write")
        self.is_written = True
        self.run.written("path")

    def _not_written(self) -> None:
        self.threads.remove("write")
        self.run.not_written(UNAVAILABLE, 0.0)

    def _capture(self) -> None:
        assert self.in_core is not None
        self.in_core_awaited = False
        self.news.append(("captured", self.in_core))

    def _give_up(self) -> None:
        assert self.in_core is not None
        self.news.append(("given up", self.in_core))
        self.in_core = None

    def _hear(self) -> None:
        what, barrier = self.news.pop(0)
        match what:
            case "captured":
                self.run.captured(AWAITED, barrier)
            case "given up":
                self.run.abandoned(barrier, ABANDONED, 0.0)
            case _:
                self.run.measured()


def _discard_result(result: object) -> None:
    """A step returns nothing."""


def _sorted(value: object) -> object:
    return sorted(value) if isinstance(value, set) else value


def after(model: RunModel, step: Callable[[RunModel], None]) -> RunModel:
    """A copy of the model in which the step has been taken."""
    following = copy.deepcopy(model)
    if following.to_do:
        del following.to_do[0]
    step(following)
    following.to_do += following.run.take()
    assert not (model.is_done() and following.to_do), "it is over"
    return following


def test_in_every_history_a_checkpoint_ends_once_and_leaves_nothing_that_does_not_belong_to_it() -> None:
    first = RunModel()
    seen, todo = {first.key()}, [first]
    ends = set()
    states = set()
    followers: dict[str, list[str]] = {}
    over: list[str] = []
    while todo:
        model = todo.pop()
        states.add(model.run.state)
        if model.is_done():
            assert model.run.outcome is not None
            assert model.is_written or model.is_discarded is model.is_claimed, "something is left"
            ends.add((model.run.outcome.reason, model.cuts))
            over.append(model.key())
        following = [(name, after(model, step)) for name, step in model.steps()]
        followers[model.key()] = [each.key() for name, each in following if not name.startswith("maybe")]
        for _, each in following:
            if each.key() not in seen:
                seen.add(each.key())
                todo.append(each)
    assert states == set(State)
    assert {cuts for _, cuts in ends} == set(range(MAX_CUTS + 1))
    assert _reach(followers, over) == seen, "from here it does not end, if nothing more goes wrong"


def _reach(followers: dict[str, list[str]], goals: list[str]) -> set[str]:
    """From where the goals are reached."""
    before: dict[str, list[str]] = {}
    for key, following in followers.items():
        for each in following:
            before.setdefault(each, []).append(key)
    reached, todo = set(goals), list(goals)
    while todo:
        for key in before.get(todo.pop(), ()):
            if key not in reached:
                reached.add(key)
                todo.append(key)
    return reached
