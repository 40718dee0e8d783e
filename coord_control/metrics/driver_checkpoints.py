"""Converts a driver's checkpoints and savepoints to samples."""

from __future__ import annotations

from collections.abc import Mapping

from coord_control.control.measure import Place, shown
from coord_control.control.measures import CHECKPOINT
from coord_control.ids import CheckpointId, CheckpointKind
from coord_control.metrics.families import Of
from coord_control.metrics.observer import InProgress, KindNumbers, LastCompleted, Observed
from coord_control.protocol.checkpoint import Progress
from coord_control.protocol.failures import FailureReason

__all__ = ["add_checkpoints"]


def add_checkpoints(job: Of, observed: Observed, progress: Mapping[CheckpointId, Progress]) -> None:
    """Add the samples of all checkpoints and savepoints.

    Args:
        progress: the progress of those that are running.
    """
    for kind, numbers in observed.kinds.items():
        _add_counts(job, kind, numbers, observed)
        under_way = [each for each in observed.in_progress if each.kind is kind]
        _add_in_progress(job, kind, under_way, progress)
        if numbers.last is not None:
            _add_last(job, kind, numbers.last)
        if numbers.last_failed is not None:
            job.add("last_failed_checkpoint_id", numbers.last_failed.checkpoint, kind.value)
            job.add("last_failed_checkpoint_timestamp_seconds", numbers.last_failed.at_seconds, kind.value)
    job.add("checkpoint_failures_in_a_row", observed.failures_in_a_row)
    job.add("checkpoints_discarded_total", observed.discarded)


def _add_counts(job: Of, kind: CheckpointKind, numbers: KindNumbers, observed: Observed) -> None:
    job.add("checkpoints_started_total", numbers.started, kind.value)
    job.add("checkpoints_completed_total", numbers.completed, kind.value)
    for reason in FailureReason:
        count = observed.failed.get((kind, reason.code), 0)
        if count or not reason.is_preflight:  # a request that is refused before the start is not a checkpoint
            job.add("checkpoints_failed_total", count, kind.value, reason.code)
    job.durations("checkpoint_duration_seconds", numbers.duration, kind.value)
    job.durations("checkpoint_failed_duration_seconds", numbers.failed_duration, kind.value)
    job.durations("checkpoint_snapshot_duration_seconds", numbers.snapshot, kind.value)
    job.durations("checkpoint_blocked_duration_seconds", numbers.blocked, kind.value)


def _add_in_progress(
    job: Of, kind: CheckpointKind, under_way: list[InProgress], progress: Mapping[CheckpointId, Progress]
) -> None:
    job.add("checkpoints_in_progress", len(under_way), kind.value)
    oldest = min((each.triggered_at_seconds for each in under_way), default=None)
    job.add("checkpoint_in_progress_start_timestamp_seconds", oldest, kind.value)
    known = [progress[each.checkpoint] for each in under_way if each.checkpoint in progress]
    job.add("checkpoint_in_progress_subtasks", sum(each.subtasks for each in known), kind.value)
    job.add("checkpoint_in_progress_passed_subtasks", sum(each.passed for each in known), kind.value)


def _add_last(job: Of, kind: CheckpointKind, last: LastCompleted) -> None:
    job.add("last_checkpoint_id", last.checkpoint, kind.value)
    job.add("last_checkpoint_timestamp_seconds", last.at_seconds, kind.value)
    for measure in shown(CHECKPOINT, Place.METRIC):
        job.add(f"last_checkpoint_{measure.name}", measure.value(last.totals), kind.value)
