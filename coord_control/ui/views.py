"""What each page shows, read from the control database.

Threads: any; every function reads in transactions of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from coord_control.control.client.control_client import ControlClient
from coord_control.control.commands import CommandProgress
from coord_control.storage.records import (
    CheckpointRecord,
    CheckpointState,
    CheckpointSummary,
    CommandRecord,
    CommandState,
    Fleet,
    JobOverview,
    JobRecord,
    RecoveryRecord,
    SubtaskRecord,
)
from coord_control.ui.charts import Durations, Gateways, durations_of, gateways_of
from coord_control.ui.failing import Failure, failure_of
from coord_control.ui.timeline import Timeline, timeline_of

__all__ = ["ORDERS", "CheckpointPage", "JobPage", "JobsPage", "checkpoint_page", "job_page", "jobs_page"]

_DRAWN: Final = 30
_LISTED: Final = 15
_RECOVERIES: Final = 10
_COMMANDS: Final = 10
_WINDOW: Final = 1_000
_ROWS: Final = 1_000

#: By what subtasks can be ordered, and how; the largest first, but for the first one.
ORDERS: Final[dict[str, Callable[[SubtaskRecord], Any]]] = {
    "subtask": lambda each: (each.operator, each.subtask),
    "acknowledged": lambda each: -(each.ack_seconds or 0.0),
    "passed": lambda each: -(float("inf") if each.passed_seconds is None else each.passed_seconds),
    "closed": lambda each: -each.blocked_seconds,
    "blocked": lambda each: -each.blocked_events,
    "state": lambda each: -each.state_bytes,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsPage:
    """All jobs."""

    fleet: Fleet
    alive: int
    blocked_now: int
    under_way: int
    failing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """One job.

    Attributes:
        checkpoints: newest first.
        before: only checkpoints before this one are shown; None: the newest are.
        restored: the last restore, if it is among the newest recoveries.
        gateways: by operator.
        asked: the command that somebody has just asked for here.
    """

    job: JobRecord
    overview: JobOverview
    summary: CheckpointSummary
    checkpoints: tuple[CheckpointRecord, ...]
    before: int | None
    durations: Durations | None
    recoveries: tuple[RecoveryRecord, ...]
    restored: RecoveryRecord | None
    commands: tuple[CommandRecord, ...]
    gateways: dict[str, Gateways]
    asked: CommandRecord | None

    @property
    def blocked_now(self) -> int:
        """Events that wait behind closed gateways, as of the last heartbeat of a driver that lives."""
        return blocked_now(self.job)

    @property
    def history(self) -> tuple[CheckpointRecord, ...]:
        """Those that are listed, fewer than are drawn."""
        return self.checkpoints[:_LISTED]

    @property
    def older(self) -> int | None:
        """Where the next page begins; None: there is none."""
        return self.history[-1].id if len(self.checkpoints) > _LISTED else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPage:
    """One checkpoint.

    Attributes:
        rows: its subtasks, in the order that was asked for; the first ones.
        subtasks: how many there are.
        progress: how far it is, while it is under way.
    """

    job: JobRecord
    checkpoint: CheckpointRecord
    failure: Failure | None
    timeline: Timeline | None
    rows: Sequence[SubtaskRecord]
    subtasks: int
    order: str
    gateways: dict[str, Gateways]
    progress: CommandProgress

    @property
    def is_under_way(self) -> bool:
        return self.checkpoint.state is CheckpointState.IN_PROGRESS

    @property
    def is_restorable(self) -> bool:
        return self.checkpoint.state is CheckpointState.COMPLETED

    @property
    def blocked_now(self) -> int:
        """As with a job: gateways do not say behind which checkpoint, when there are several."""
        return blocked_now(self.job) if self.is_under_way else 0


def blocked_now(job: JobRecord) -> int:
    """Events that wait behind closed gateways; of a driver that is gone nothing waits any more."""
    return sum(operator.blocked_now for operator in job.operators) if job.is_alive else 0


def jobs_page(client: ControlClient) -> JobsPage:
    """Read what is known of all jobs."""
    fleet = client.fleet()
    return JobsPage(
        fleet=fleet,
        alive=sum(each.job.is_alive for each in fleet.jobs),
        blocked_now=sum(blocked_now(each.job) for each in fleet.jobs),
        under_way=sum(each.under_way for each in fleet.jobs),
        failing=sum(each.failed_in_a_row > 0 for each in fleet.jobs),
    )


def job_page(client: ControlClient, name: str, *, before: int | None = None, asked: str | None = None) -> JobPage:
    """Read what is known of a job.

    Raises:
        JobNotFound: there is none; the message names those with a similar name.
        CommandNotFound: what was asked for is not known any more.
    """
    job = client.job(name)
    [overview] = client.fleet([name]).jobs
    summary = client.summary(name, window=_WINDOW)
    checkpoints = client.checkpoints(name, limit=_DRAWN, before=before)
    recoveries = client.recoveries(name, limit=_RECOVERIES)
    return JobPage(
        job=job,
        overview=overview,
        summary=summary,
        checkpoints=checkpoints,
        before=before,
        durations=durations_of(checkpoints, summary.duration),
        recoveries=recoveries,
        restored=next((each for each in recoveries if each.from_checkpoint is not None), None),
        commands=client.commands(name, limit=_COMMANDS),
        gateways={operator.uid: gateways_of(operator.gateways) for operator in job.operators},
        asked=None if asked is None else client.command(asked),
    )


def checkpoint_page(client: ControlClient, name: str, number: int, *, order: str = "subtask") -> CheckpointPage:
    """Read what is known of a checkpoint.

    Args:
        order: one of :data:`ORDERS`.

    Raises:
        JobNotFound, RecordNotFound: there is none; the message names those beside it.
    """
    checkpoint = client.checkpoint(name, number)
    subtasks = client.subtasks(name, number)
    job = client.job(name)
    return CheckpointPage(
        job=job,
        checkpoint=checkpoint,
        failure=failure_of(checkpoint),
        timeline=timeline_of(checkpoint, subtasks),
        rows=sorted(subtasks, key=ORDERS[order])[:_ROWS],
        subtasks=len(subtasks),
        order=order,
        gateways={operator.uid: gateways_of(operator.gateways) for operator in job.operators},
        progress=_progress(client, checkpoint),
    )


def _progress(client: ControlClient, checkpoint: CheckpointRecord) -> CommandProgress:
    # The command that has asked for it is told of each step; of a periodic one only whole queries are recorded.
    claimed = client.commands(checkpoint.job, state=CommandState.CLAIMED, limit=_COMMANDS)
    for command in claimed:
        found = CommandProgress.model_validate(command.progress or {})
        if found.checkpoint == checkpoint.id and found.subtasks:
            return found
    return CommandProgress(subtasks=checkpoint.subtasks or None, passed_subtasks=checkpoint.passed_subtasks)
