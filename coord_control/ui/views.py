"""Reads what each page shows from the control database.

Threads: any; every function uses its own transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from coord_control.control.client.control_client import ControlClient
from coord_control.control.commands import CommandProgress
from coord_control.control.measure import Place, Unit, shown
from coord_control.control.measures import SUBTASK
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
from coord_control.ui.charts import DurationChart, Gateways, durations_of, gateways_of
from coord_control.ui.failure import Failure, failure_of
from coord_control.ui.live_section import LiveChangeRow, change_rows
from coord_control.ui.request_forms import Entered, RequestForm, forms_of
from coord_control.ui.timeline import Timeline, timeline_of

__all__ = ["ORDERS", "CheckpointPage", "JobPage", "JobsPage", "checkpoint_page", "job_page", "jobs_page"]

_DRAWN: Final = 30
_LISTED: Final = 15
_RECOVERIES: Final = 10
_COMMANDS: Final = 10
_CHANGES: Final = 15
_CHANGES_READ: Final = 60  # those behind tell what the last ones have changed
_WINDOW: Final = 1_000
_ROWS: Final = 1_000

#: By what subtasks can be sorted: largest first, except for the first order.
ORDERS: Final[dict[str, Callable[[SubtaskRecord], Any]]] = {
    "subtask": lambda each: (each.operator, each.subtask),
    **{each.name: each.rank for each in shown(SUBTASK, Place.PAGE) if each.unit not in (Unit.TEXT, Unit.ORDINAL)},
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
        before: the page shows checkpoints before this one, or the newest ones if None.
        restored: the last restore, if it is among the newest recoveries.
        gateways: by operator.
        changes: of live values, newest first.
        forms: that change live values and send control events, for pages that may act.
        asked: the command that was just requested on this page.
        is_posted: whether a form was not sent, and is shown again with what is wrong.
    """

    job: JobRecord
    overview: JobOverview
    summary: CheckpointSummary
    checkpoints: tuple[CheckpointRecord, ...]
    before: int | None
    durations: DurationChart | None
    recoveries: tuple[RecoveryRecord, ...]
    restored: RecoveryRecord | None
    commands: tuple[CommandRecord, ...]
    gateways: dict[str, Gateways]
    changes: tuple[LiveChangeRow, ...]
    forms: tuple[RequestForm, ...]
    asked: CommandRecord | None
    is_posted: bool

    @property
    def blocked_now(self) -> int:
        """Return the number of events behind closed gateways, as of the last heartbeat of a live driver."""
        return blocked_now(self.job)

    @property
    def history(self) -> tuple[CheckpointRecord, ...]:
        """Return the checkpoints that are listed, fewer than are drawn."""
        return self.checkpoints[:_LISTED]

    @property
    def older(self) -> int | None:
        """Return the checkpoint at which the next page begins, or None if there is none."""
        return self.history[-1].id if len(self.checkpoints) > _LISTED else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPage:
    """One checkpoint.

    Attributes:
        rows: its first subtasks in the requested order.
        subtasks: the number of all subtasks.
        progress: its progress while it is running.
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
    def orders(self) -> Collection[str]:
        """Return the measures by which the rows can be sorted."""
        return ORDERS.keys()

    @property
    def is_under_way(self) -> bool:
        return self.checkpoint.state is CheckpointState.IN_PROGRESS

    @property
    def is_restorable(self) -> bool:
        return self.checkpoint.state is CheckpointState.COMPLETED

    @property
    def blocked_now(self) -> int:
        """Return the number for the whole job, because gateways do not tell which checkpoint has closed them."""
        return blocked_now(self.job) if self.is_under_way else 0


def blocked_now(job: JobRecord) -> int:
    """Return the number of events behind closed gateways; 0 if the driver is gone."""
    return sum(operator.blocked_now for operator in job.operators) if job.is_alive else 0


def jobs_page(client: ControlClient) -> JobsPage:
    """Read the page of all jobs."""
    fleet = client.fleet()
    return JobsPage(
        fleet=fleet,
        alive=sum(each.job.is_alive for each in fleet.jobs),
        blocked_now=sum(blocked_now(each.job) for each in fleet.jobs),
        under_way=sum(each.under_way for each in fleet.jobs),
        failing=sum(each.failed_in_a_row > 0 for each in fleet.jobs),
    )


def job_page(
    client: ControlClient,
    name: str,
    *,
    before: int | None = None,
    asked: str | None = None,
    entered: Entered | None = None,
) -> JobPage:
    """Read the page of a job.

    Args:
        entered: what was entered into a form that was not sent.

    Raises:
        JobNotFound: there is no such job; the message suggests similar names.
        CommandNotFound: the command ``asked`` is not known (any more).
    """
    job = client.job(name)
    [overview] = client.fleet([name]).jobs
    summary = client.summary(name, window=_WINDOW)
    checkpoints = client.checkpoints(name, limit=_DRAWN, before=before)
    recoveries = client.recoveries(name, limit=_RECOVERIES)
    command = None if asked is None else client.command(asked)
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
        changes=change_rows(client.live_changes(name, limit=_CHANGES_READ), _CHANGES),
        forms=forms_of(job, entered or Entered.of(command)),
        asked=command,
        is_posted=entered is not None,
    )


def checkpoint_page(client: ControlClient, name: str, number: int, *, order: str = "subtask") -> CheckpointPage:
    """Read the page of a checkpoint.

    Args:
        order: one of :data:`ORDERS`.

    Raises:
        JobNotFound, RecordNotFound: it does not exist; the message suggests similar names, or the nearest ids.
    """
    found = client.checkpoint_report(name, number)
    job, checkpoint, subtasks = found.job, found.checkpoint, found.subtasks
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
    # The command that requested it has the progress of each step; for a periodic one only whole queries are recorded.
    claimed = client.commands(checkpoint.job, state=CommandState.CLAIMED, limit=_COMMANDS)
    for command in claimed:
        found = CommandProgress.model_validate(command.progress or {})
        if found.checkpoint == checkpoint.id and found.subtasks:
            return found
    return CommandProgress(subtasks=checkpoint.subtasks or None, passed_subtasks=checkpoint.passed_subtasks)
