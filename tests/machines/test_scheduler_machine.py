"""Every pair of the scheduler's table, and any sequence of calls against what a reader of its rules expects."""

from __future__ import annotations

import copy
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coord_control.errors import InvalidTransition
from coord_control.ids import CheckpointId, CheckpointKind
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.scheduler.checkpoint_options import CheckpointOptions
from coord_control.protocol.scheduler.pacing import Pacing
from coord_control.protocol.scheduler.scheduler import (
    TRANSITIONS,
    AbortCheckpoint,
    CheckpointScheduler,
    Effect,
    FailJob,
    Finished,
    Input,
    StartCheckpoint,
    State,
)
from coord_control.protocol.scheduler.ticket_book import TicketBook
from coord_control.protocol.scheduler.tickets import CheckpointRequest, Ticket, TicketId, TicketState
from tests.machines.schedules import Schedule, schedules
from tests.mutations.run import Mutation

PAIRS = list(itertools.product(State, Input))


def scheduler_in(state: State) -> CheckpointScheduler:
    """A scheduler with a savepoint that runs and a checkpoint that waits, as far as the state lets it have them."""
    scheduler = CheckpointScheduler(CheckpointOptions(interval_seconds=5))
    if state is not State.STARTING:
        scheduler.resume(0.0)
        scheduler.submit(CheckpointRequest(kind=CheckpointKind.SAVEPOINT), 0.0)
        scheduler.submit(CheckpointRequest(key="running"), 0.0)
    scheduler.submit(CheckpointRequest(key="waiting"), 0.0)
    if state is State.SUSPENDED:
        scheduler.suspend(1.0)
    if state is State.CLOSED:
        scheduler.shutdown(1.0)
    return scheduler


def give(scheduler: CheckpointScheduler, input_: Input) -> None:
    inputs: dict[Input, Callable[[float], None]] = {
        Input.RESUME: scheduler.resume,
        Input.SUSPEND: scheduler.suspend,
        Input.SHUTDOWN: scheduler.shutdown,
    }
    inputs[input_](2.0)


def everything(scheduler: CheckpointScheduler) -> dict[str, object]:
    """All that it holds, down to the slots of its parts."""

    def contents(value: object) -> object:
        slots = getattr(type(value), "__slots__", None)
        if isinstance(value, (Ticket, CheckpointOptions)) or slots is None or not slots:
            return copy.deepcopy(value)
        return {slot: contents(getattr(value, slot)) for slot in slots}

    return {slot: contents(getattr(scheduler, slot)) for slot in CheckpointScheduler.__slots__}


@pytest.mark.parametrize("state", State)
def test_every_state_can_be_reached(state: State) -> None:
    assert scheduler_in(state).state is state


@pytest.mark.parametrize(("state", "input_"), [pair for pair in PAIRS if pair in TRANSITIONS])
def test_a_legal_pair_leads_where_the_table_says(state: State, input_: Input) -> None:
    scheduler = scheduler_in(state)
    give(scheduler, input_)
    assert scheduler.state is TRANSITIONS[state, input_]


@pytest.mark.parametrize(("state", "input_"), [pair for pair in PAIRS if pair not in TRANSITIONS])
def test_any_other_pair_is_refused_with_all_three_parts_named_and_changes_nothing(state: State, input_: Input) -> None:
    scheduler = scheduler_in(state)
    before = everything(scheduler)
    with pytest.raises(InvalidTransition) as raised:
        give(scheduler, input_)
    assert str(raised.value) == (
        f"checkpoint scheduler: input {input_.name} is not allowed in state {state.name}; nothing was changed"
    )
    assert everything(scheduler) == before


@pytest.mark.parametrize(("state", "input_"), [pair for pair, target in TRANSITIONS.items() if pair[0] is target])
def test_late_news_changes_nothing(state: State, input_: Input) -> None:
    scheduler = scheduler_in(state)
    before = everything(scheduler)
    give(scheduler, input_)
    assert everything(scheduler) == before


@pytest.mark.parametrize("state", State)
def test_a_report_about_what_is_not_under_way_changes_nothing(state: State) -> None:
    scheduler = scheduler_in(state)
    before = everything(scheduler)
    with pytest.raises(InvalidTransition):
        scheduler.completed(CheckpointId(9), 2.0)
    with pytest.raises(InvalidTransition):
        scheduler.failed(CheckpointId(9), FailureReason.DISK_FULL, 2.0)
    assert everything(scheduler) == before


# Any sequence of calls.

REQUESTS = (
    CheckpointRequest(),
    CheckpointRequest(periodic=True, cause="outside"),
    CheckpointRequest(kind=CheckpointKind.SAVEPOINT),
    CheckpointRequest(key="a"),
    CheckpointRequest(key="b", kind=CheckpointKind.SAVEPOINT),
    CheckpointRequest(key="a", label="other"),
)
REASONS = (FailureReason.DISK_FULL, FailureReason.QUERY_FAILED, FailureReason.INVALID_TARGET)
options_of_a_job = st.builds(
    CheckpointOptions,
    interval_seconds=st.sampled_from([None, 3.0, 7.0]),
    timeout_seconds=st.sampled_from([2.0, 11.0]),
    min_pause_seconds=st.sampled_from([0.0, 2.0]),
    max_concurrent=st.sampled_from([1, 2]),
    tolerable_consecutive_failures=st.sampled_from([None, 0, 2]),
    queue_limit=st.sampled_from([1, 3, 1000]),
)


@dataclass
class SchedulerModel:
    """Drives a scheduler the way its schedule says, and checks each rule against its own books."""

    schedule: Schedule
    options: CheckpointOptions
    now: float = 0.0
    running: dict[CheckpointId, Ticket] = field(default_factory=dict)  #: started, no end reported
    aborted: dict[CheckpointId, FailureReason] = field(default_factory=dict)
    issued: set[TicketId] = field(default_factory=set)  #: returned by submit, or started
    finished: Counter[TicketId] = field(default_factory=Counter)
    by_key: dict[str, TicketId] = field(default_factory=dict)  #: keys whose ticket must be found again
    newest_start: int = 0
    last_end: float | None = None
    rests_until: float = 0.0
    runs: bool = False
    failures: int = 0
    last_success: int = 0

    def __post_init__(self) -> None:
        self.scheduler = CheckpointScheduler(self.options, first_delay_seconds=1.0)

    def step(self) -> None:
        action = self.schedule.pick(
            [self.submit, self.tick, self.submit, self.tick, self.complete, self.fail, self.abort, self.turn]
        )
        action()

    # What can happen.

    def submit(self) -> None:
        request = self.schedule.pick(REQUESTS)
        before = self.by_key.get(request.key) if request.key is not None else None
        in_queue = self.scheduler.queued
        ticket = self.scheduler.submit(request, self.now)
        if before is not None and ticket.id != before:
            assert ticket.outcome is not None, "a key is the same ticket, or its request is refused"
            assert ticket.outcome.reason is FailureReason.KEY_REUSED
        if ticket.outcome is not None and ticket.outcome.reason is FailureReason.QUEUE_FULL:
            assert len(in_queue) == self.options.queue_limit
            assert all(each.request.rank <= request.rank for each in in_queue), "somebody else should have gone"
        if ticket.id not in self.issued and request.key is not None and ticket.outcome is None:
            self.by_key[request.key] = ticket.id
        self.issued.add(ticket.id)
        self.execute(last=ticket)

    def tick(self) -> None:
        """Sleep until it wants to be woken, or less: so nothing excuses a timeout that is missed."""
        wakeup = self.scheduler.next_wakeup()
        later = self.now + self.schedule.pick([0.5, 1.0, 2.5, 100.0])
        self.now = later if wakeup is None else max(self.now, min(later, wakeup))
        overslept = [each for each in self.running.keys() - self.aborted.keys() if self.now > self.deadline(each)]
        assert not overslept, "it should have been woken"
        self.scheduler.tick(self.now)
        again = self.scheduler.next_wakeup()
        assert again is None or again > self.now, "it would be woken without end"
        self.execute()

    def complete(self) -> None:
        if self.running:
            checkpoint = self.schedule.pick(sorted(self.running))
            rest = self.schedule.pick([0.0, 0.0, 1.0])
            self.rests_until = max(self.rests_until, self.now + rest)
            self.check_end(self.scheduler.completed(checkpoint, self.now, "/path", rest_seconds=rest))
            self.failures, self.last_success = 0, max(self.last_success, checkpoint)
            self.execute()

    def fail(self) -> None:
        if self.running:
            checkpoint = self.schedule.pick(sorted(self.running))
            reason = self.schedule.pick(REASONS)
            ended = self.scheduler.failed(checkpoint, reason, self.now)
            assert ended.outcome is not None
            assert ended.outcome.reason is self.aborted.get(checkpoint, reason)
            self.check_end(ended)
            self.execute(failed=ended)

    def abort(self) -> None:
        if self.issued:
            ticket = self.schedule.pick(sorted(self.issued))
            pending = {each.id for each in (*self.scheduler.queued, *self.scheduler.running) if each.abort is None}
            assert self.scheduler.abort(ticket, self.now) == (ticket in pending)
            self.execute()

    def turn(self) -> None:
        """A query fails or all run again; seldom enough for something to happen between."""
        if self.scheduler.state is State.ACTIVE:
            if self.schedule.pick([False, False, True]):
                self.runs = False
                self.scheduler.suspend(self.now)
                assert not [each for each in self.scheduler.queued if each.request.periodic]
                assert all(each.state is TicketState.ABORTING for each in self.scheduler.running)
        else:
            if self.scheduler.state is State.SUSPENDED:
                self.last_end = self.now  # a restart is followed by a pause, like an end
            self.runs = True
            self.scheduler.resume(self.now)
        self.execute()

    # What must hold.

    def execute(self, last: Ticket | None = None, failed: Ticket | None = None) -> None:
        """Take the effects in order, and check each of them and the state that they leave."""
        effects = self.scheduler.take()
        for effect in effects:
            self.check(effect)
        self.check_tolerance(effects, failed)
        checkpoints = [each for each in self.running.values() if not each.request.is_savepoint]
        assert len(checkpoints) <= self.options.max_concurrent
        assert len(self.scheduler.queued) <= self.options.queue_limit
        assert {each.checkpoint for each in self.scheduler.running} == self.running.keys()
        order = [(each.request.rank, each.id) for each in self.scheduler.queued]
        assert order == sorted(order)
        assert sum(each.request.cause == "interval" for each in self.scheduler.queued) <= 1
        if self.scheduler.state is State.ACTIVE and self.now >= self.rests_until:
            assert not [each for each in self.scheduler.queued if each.request.is_savepoint], "savepoints never wait"
            if len(checkpoints) < self.options.max_concurrent:
                assert all(each.request.periodic for each in self.scheduler.queued), "there is room for it"
        if last is not None and last.outcome is None:
            assert last.id not in self.finished

    def check(self, effect: Effect) -> None:
        if isinstance(effect, StartCheckpoint):
            ticket = effect.ticket
            assert self.runs
            assert self.now >= self.rests_until
            assert effect.checkpoint > self.newest_start, "ids only grow"
            assert ticket.id not in self.finished
            assert all(
                (ticket.request.rank, ticket.id) <= (each.request.rank, each.id) for each in self.scheduler.queued
            )
            if ticket.request.periodic and self.options.min_pause_seconds:
                assert self.last_end is None or self.now >= self.last_end + self.options.min_pause_seconds
                assert not [each for each in self.running.values() if not each.request.is_savepoint]
            self.newest_start = effect.checkpoint
            self.issued.add(ticket.id)
            self.running[effect.checkpoint] = ticket
        elif isinstance(effect, AbortCheckpoint):
            assert effect.checkpoint in self.running
            assert effect.checkpoint not in self.aborted, "it was told before"
            self.aborted[effect.checkpoint] = effect.reason
            is_overdue = self.now >= self.deadline(effect.checkpoint)
            assert effect.reason is not FailureReason.EXPIRED or is_overdue
        elif isinstance(effect, Finished):
            ticket = effect.ticket
            assert ticket.outcome is not None
            self.finished[ticket.id] += 1
            assert self.finished[ticket.id] == 1, "one outcome"
            self.issued.add(ticket.id)
            key, reason = ticket.request.key, ticket.outcome.reason
            if key is not None and (ticket.checkpoint is None or (reason is not None and reason.is_preflight)):
                if self.by_key.get(key) == ticket.id:
                    del self.by_key[key]

    def check_end(self, ended: Ticket) -> None:
        """The driver has reported an end: it is out of the books before the effects of that are looked at."""
        assert ended.checkpoint is not None
        assert ended.state is TicketState.ENDED
        del self.running[ended.checkpoint]
        self.last_end = self.now

    def check_tolerance(self, effects: list[Effect], failed: Ticket | None) -> None:
        fails_job = False
        if failed is not None and not failed.request.is_savepoint:
            assert failed.outcome is not None
            assert failed.outcome.reason is not None
            assert failed.checkpoint is not None
            if failed.outcome.reason.counts and failed.checkpoint > self.last_success:
                self.failures += 1
            tolerable = self.options.tolerable_consecutive_failures
            fails_job = tolerable is not None and self.failures > tolerable
            self.failures = 0 if fails_job else self.failures
        assert [each for each in effects if isinstance(each, FailJob)] == [] or fails_job
        assert not fails_job or [type(each) for each in effects[:2]] == [Finished, FailJob]

    def check_timeouts(self) -> None:
        """After a tick at the latest: nobody runs beyond its time without having been aborted."""
        for checkpoint in self.running:
            assert self.now < self.deadline(checkpoint) or checkpoint in self.aborted, "it has outlived its timeout"

    def deadline(self, checkpoint: CheckpointId) -> float:
        started_at = self.running[checkpoint].started_at
        assert started_at is not None
        return started_at + self.options.timeout_seconds

    def come_to_rest(self) -> None:
        """The job ends: every ticket that anybody was given has its outcome."""
        self.runs = False
        self.scheduler.shutdown(self.now)
        self.execute()
        assert self.aborted.keys() >= self.running.keys()
        for checkpoint in sorted(self.running):
            ended = self.scheduler.failed(checkpoint, FailureReason.JOB_ENDING, self.now)
            self.check_end(ended)
            self.execute(failed=ended)
        assert self.scheduler.is_idle
        assert self.finished.keys() == self.issued
        assert self.scheduler.next_wakeup() is None


def run(options: CheckpointOptions, schedule: Schedule) -> None:
    model = SchedulerModel(schedule, options)
    while not schedule.is_over:
        model.step()
        model.check_timeouts()
    model.come_to_rest()


@settings(max_examples=400)
@given(options_of_a_job, schedules(150))
def test_no_sequence_of_calls_breaks_a_rule(options: CheckpointOptions, schedule: Schedule) -> None:
    run(options, schedule)


# Would any of this notice a bug?

BUGS = (
    Mutation(
        "savepoints take a place",
        CheckpointScheduler._has_room,
        "not ticket.request.is_savepoint",
        "1",
    ),
    Mutation("savepoints wait for room", CheckpointScheduler._has_room, "if request.is_savepoint:", "if False:"),
    Mutation("one more than allowed runs", CheckpointScheduler._has_room, "running < (", "running <= ("),
    Mutation(
        "periodic ones do not wait for the pause",
        Pacing.opens_at,
        "self.pause_ends_at if periodic else None",
        "None",
    ),
    Mutation("no pause after an end", CheckpointScheduler._end, "self._pacing.ended(now, rest_seconds)", "pass"),
    Mutation("nothing rests", Pacing.ended, "rest_seconds > 0", "False"),
    Mutation("a short rest ends a long one", Pacing.ended, "max(now + rest_seconds, self._rest_until or now)", "now"),
    Mutation("no pause after a restart", Pacing.restart, "self._pause_from = now", "pass"),
    Mutation("a pause wakes nobody", CheckpointScheduler.next_wakeup, "self._has_room(first.request)", "True"),
    Mutation(
        "nobody is woken for a timeout", CheckpointScheduler.next_wakeup, "[self._deadline", "[9 + self._deadline"
    ),
    Mutation("nothing expires", CheckpointScheduler.tick, "now >= self._deadline(ticket)", "False"),
    Mutation("an abort is repeated", CheckpointScheduler._abort, "aborted.state is ticket.state", "False"),
    Mutation("periods pile up", CheckpointScheduler.tick, "and not any(", "and not all("),
    Mutation("a period comes again at once", Pacing.take_due, "(missed + 1)", "missed"),
    Mutation(
        "what runs goes on through a restart", CheckpointScheduler.suspend, "is not TicketState.QUEUED", "is None"
    ),
    Mutation(
        "what periods asked for waits through a restart",
        CheckpointScheduler.suspend,
        " or ticket.request.periodic",
        "",
    ),
    Mutation(
        "things start while queries restart",
        CheckpointScheduler._admit,
        "self._state is State.ACTIVE and ",
        "",
    ),
    Mutation("nobody starts when one ends", CheckpointScheduler.completed, "self._admit(now)", "pass"),
    Mutation("the queue has no limit", CheckpointScheduler._shorten_queue, "len(queued) <=", "0 <="),
    Mutation("the first of a full queue is refused", CheckpointScheduler._shorten_queue, "queued[-1]", "queued[0]"),
    Mutation("the queue has no order", TicketBook.enqueue, "bisect.insort(self._queue, ", "self._queue.append("),
    Mutation("keys are not looked up", CheckpointScheduler.submit, "if request.key is not None else None", "and None"),
    Mutation("keys are forgotten with the end", TicketBook.end, "self.remember(ticket)", "pass"),
    Mutation("savepoints count", CheckpointScheduler._count, "ticket.request.is_savepoint or ", ""),
    Mutation("every reason counts", CheckpointScheduler._count, "not reason.counts or ", ""),
    Mutation("old failures count", CheckpointScheduler._count, " or checkpoint < self._last_success", ""),
    Mutation("a success leaves the count", CheckpointScheduler.completed, "self._failures = 0", "pass"),
    Mutation("one failure more is tolerated", CheckpointScheduler._count, "> tolerable", "> tolerable + 1"),
    Mutation("what waits outlives the job", CheckpointScheduler.shutdown, "self._book.pending", "self.running"),
    Mutation("an id is used again", CheckpointScheduler._admit, "self._next_checkpoint + 1", "self._next_checkpoint"),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_noticed(bug: Mutation) -> None:
    dice = random.Random(1)
    with bug.applied():
        for _ in range(2000):
            options = CheckpointOptions(
                interval_seconds=dice.choice([None, 3.0, 7.0]),
                timeout_seconds=dice.choice([2.0, 11.0]),
                min_pause_seconds=dice.choice([0.0, 2.0]),
                max_concurrent=dice.choice([1, 2]),
                tolerable_consecutive_failures=dice.choice([None, 0, 2]),
                queue_limit=dice.choice([1, 3, 1000]),
            )
            try:
                run(options, Schedule(dice.randbytes(150)))
            except (AssertionError, InvalidTransition, KeyError):
                return
    pytest.fail(f"nobody notices: {bug.name}")
