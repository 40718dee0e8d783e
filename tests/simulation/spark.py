"""Spark as the protocol sees it: logs that survive, batches that are planned once, and attempts that come in every
kind.

What an epoch's rows are is fixed when it is planned, and found again when it is run again. Everything else may vary:
how many attempts a subtask has, which of them are alive together, which are abandoned and linger. Rules taken from
Spark: a task attempt id is unique in a driver and only grows; an epoch is committed when every task of every action
on it has one attempt that ended well; the next epoch is planned after that.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from coord_control.ids import NO_EPOCH, AttemptId, Epoch, OperatorUid, QueryName, RunId, SubtaskIndex
from coord_control.protocol.messages import Acknowledge, Welcome
from coord_control.protocol.records import EventBatch
from tests.simulation.values import NUMBERED, Event, SubtaskState, batch_of, events_of

__all__ = ["Attempt", "AttemptStage", "Plan", "Run", "RunStage", "SparkLog", "Task", "ack_text"]


def ack_text(ack: Acknowledge) -> str:
    """An ack in the words of a history."""
    state = "state unchanged" if ack.state is None else f"state {ack.state.decode()}"
    return f"{state}, {len(ack.outbox)} event(s)"


@dataclass(frozen=True, slots=True)
class Plan:
    """What Spark fixes when it plans an epoch."""

    rows: Mapping[OperatorUid, tuple[SubtaskIndex, ...]]  #: the subtasks that have rows; empty: pruned
    actions: int = 1  #: how often foreachBatch executes the batch
    is_cut: bool = False  #: the sink takes a part of the output only
    is_idle: bool = False  #: the user function changes nothing but what it receives
    salt: int = 0  #: stands for the content of the rows


@dataclass(slots=True)
class SparkLog:
    """``offsets/`` and ``commits/`` of one query; survive everything."""

    committed: Epoch = NO_EPOCH
    planned: Epoch = NO_EPOCH
    plans: dict[Epoch, Plan] = field(default_factory=dict)
    sink: Epoch = NO_EPOCH  #: the newest epoch whose output the sink has
    skips: bool = False  #: Spark commits an epoch that the sink has without running it, as with the file sink
    committed_by: RunId | None = None  #: whose the newest commit is; no file of Spark says it, only its progress does


class AttemptStage(enum.Enum):
    GREETING = "greeting"  #: hello is under way
    RUNNING = "running"  #: it has its state and inputs
    ACKING = "acking"  #: the ack is under way
    DONE = "done"
    DEAD = "dead"  #: it failed, or was refused


@dataclass(slots=True, eq=False)
class Attempt:
    """One execution of a subtask. ``is_abandoned``: Spark has given it up, but its Python worker does not know."""

    id: AttemptId
    token: str
    stage: AttemptStage = AttemptStage.GREETING
    welcome: Welcome | None = None
    is_abandoned: bool = False

    @property
    def is_alive(self) -> bool:
        return self.stage not in (AttemptStage.DONE, AttemptStage.DEAD)

    def compute(self, plan: Plan, *, is_flaky: bool) -> Acknowledge:
        """Run the user's function: count the inputs, change the state, send events.

        Args:
            plan: the epoch's.
            is_flaky: the result also depends on the attempt.

        Raises:
            Violation: the inputs do not follow on the state.
        """
        assert self.welcome is not None
        before = self.welcome.state
        state = SubtaskState.of(before)
        who = f"{self.id.operator}[{self.id.subtask}] in epoch {self.id.epoch}"
        for event in events_of(self.welcome.inputs):
            state.receive(event, who)
        outbox: list[EventBatch] = []
        if not plan.is_idle:
            dice = plan.salt * 31 + self.id.subtask * 7 + (self.id.task_attempt if is_flaky else 0)
            for _ in range((0, 1, 0, 3, 0, 2, 0)[dice % 7]):
                outbox.append(batch_of(Event(NUMBERED, state.sent, 0)))
                state.sent += 1
            state.total += (0, 0, 1)[dice % 3]
        after = state.to_bytes()
        is_changed = after != (before if before is not None else SubtaskState().to_bytes())
        return Acknowledge(self.id, after if is_changed else None, tuple(outbox))


@dataclass(slots=True, eq=False)
class Task:
    """What an action must execute for one subtask."""

    operator: OperatorUid
    subtask: SubtaskIndex
    action: int
    attempts: list[Attempt] = field(default_factory=list)
    failures: int = 0
    is_finished: bool = False

    @property
    def alive(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.is_alive and not attempt.is_abandoned]


class RunStage(enum.Enum):
    RUNNING = "running"
    STOPPED = "stopped"  #: Spark's query has ended, the driver must recover
    OVER = "over"


@dataclass(slots=True, eq=False)
class Run:
    """One run of a streaming query."""

    query: QueryName
    id: RunId
    log: SparkLog
    stage: RunStage = RunStage.RUNNING
    epoch: Epoch | None = None
    tasks: list[Task] = field(default_factory=list)
    begun: Epoch = NO_EPOCH  #: the newest epoch of it
    shall_pause: bool = False  #: its epoch may end, no other may begin
    is_interrupted: bool = False  #: in a moment in which its progress may not have reached the driver

    @property
    def is_pausing(self) -> bool:
        """Whether nothing of it runs until the pause is over. What was planned before is run first."""
        return self.shall_pause and self.epoch is None and not self.next_is_planned()

    @property
    def plan(self) -> Plan:
        assert self.epoch is not None
        return self.log.plans[self.epoch]

    def next_is_planned(self) -> bool:
        """Whether the epoch to run was planned by an earlier run."""
        return self.log.planned > self.log.committed

    def begin(self) -> Epoch:
        """Run the planned epoch from its start."""
        self.epoch = self.begun = self.log.planned
        plan = self.plan
        if self.log.skips and self.log.sink >= self.epoch:
            self.tasks = []
            return self.epoch
        self.tasks = [
            Task(operator, subtask, action)
            for action in range(plan.actions)
            for operator, subtasks in plan.rows.items()
            for subtask in subtasks
        ]
        return self.epoch

    @property
    def current_action(self) -> int:
        """The action that runs; later ones wait for it."""
        return min((task.action for task in self.tasks if not task.is_finished), default=0)

    def is_unfinished(self) -> bool:
        """Whether some subtask runs that has not come to its end in this epoch."""
        stages: dict[tuple[OperatorUid, SubtaskIndex], set[AttemptStage]] = {}
        for task in self.tasks:
            alive = {attempt.stage for attempt in task.alive} | {
                each.stage for each in task.attempts if each.stage is AttemptStage.DONE
            }
            stages.setdefault((task.operator, task.subtask), set()).update(alive)
        ended = {AttemptStage.ACKING, AttemptStage.DONE}
        return any(AttemptStage.RUNNING in each and not each & ended for each in stages.values())

    def may_commit(self) -> bool:
        if self.epoch is None or self.stage is not RunStage.RUNNING:
            return False
        if self.plan.is_cut and self.tasks:
            # The sink has what it wants as soon as the first task runs.
            return any(attempt.stage is AttemptStage.RUNNING for attempt in self.tasks[0].attempts)
        return all(task.is_finished for task in self.tasks)

    def write_sink(self) -> Epoch:
        """The sink makes the epoch's output visible."""
        assert self.epoch is not None
        self.log.sink = self.epoch
        return self.epoch

    def commit(self) -> Epoch:
        assert self.epoch is not None
        self.write_sink()
        epoch, self.epoch = self.epoch, None
        self.log.committed, self.log.committed_by = epoch, self.id
        return epoch
