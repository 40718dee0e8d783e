"""The health checks of a job, on its ``checkpoint`` asset.

All checks are evaluated from one overview of the job, by the clock of the control database, so that the sensor (which
evaluates all jobs together) and a user (who runs the checks of one job) get the same results. For a job that has
ended, ``running`` fails with a warning, but ``checkpoint_freshness`` passes: no new checkpoints are expected.
"""

# Without "from __future__ import annotations": Dagster reads the types of a step's arguments, and not as text.

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import dagster as dg

from coord_control.control.wording import human_seconds
from coord_control.dagster.metadata import Metadata, entries
from coord_control.dagster.resource import RESOURCE_KEY, ControlPlaneResource
from coord_control.dagster.runs.job_run import action_failure
from coord_control.dagster.spec import CheckBounds, StreamingJobSpec
from coord_control.dagster.translator import StreamingJobTranslator
from coord_control.errors import CoordControlError
from coord_control.storage.records import (
    REQUESTED_CAUSES,
    CheckpointRecord,
    JobOverview,
    JobState,
    QueryRecord,
    Trend,
)

__all__ = ["ACTOR", "CHECKS", "CheckOutcome", "build_checks", "check_names", "evaluate"]

#: Who asks, for the audit trail.
ACTOR: Final = "dagster:check"

#: A backlog comes and goes with each batch; it grows when its average has become this many times as large.
_GROWN: Final = 1.2
#: Batches follow without a pause if rows arrive at least at this part of the rate at which they are processed.
_BUSY: Final = 0.9

_WARN, _ERROR = dg.AssetCheckSeverity.WARN, dg.AssetCheckSeverity.ERROR

#: All checks in display order, with their descriptions.
CHECKS: Final[Mapping[str, str]] = {
    "running": "The job has a live driver.",
    "checkpoint_freshness": "The newest completed checkpoint or savepoint is not too old.",
    "failed_checkpoints": "Not too many checkpoints have failed since the last completed one.",
    "checkpoint_duration": "The newest completed checkpoint did not take too long.",
    "blocked_time": "No gateway was closed for too long in the newest completed checkpoint.",
    "restart_rate": "The job, or a query of it, did not fail and restart too often within the last hour.",
    "lag": "No query is too far behind and falling further behind.",
    "backlog": "No query has more and more unread records in its sources, or works without a pause while nothing shows "
    "whether it keeps up.",
}


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """The result of a check; ``severity`` is also set if it has passed."""

    name: str
    passed: bool
    severity: dg.AssetCheckSeverity
    description: str
    metadata: Metadata


def check_names(bounds: CheckBounds) -> tuple[str, ...]:
    """Return the names of the checks that are switched on."""
    return ("running", *(name for name, (bound, _) in _bounded(bounds).items() if bound is not None))


def evaluate(overview: JobOverview | None, bounds: CheckBounds, now: datetime) -> list[CheckOutcome]:
    """Evaluate every check that is switched on.

    Args:
        overview: the state of the job, or None if the control database does not know it.
        now: the time by the clock of the database.
    """
    if overview is None:
        return [_unknown(name) for name in check_names(bounds)]
    checks = [(check, bound) for bound, check in _bounded(bounds).values() if bound is not None]
    return [_running(overview, now), *(check(overview, bound, now) for check, bound in checks)]


def build_checks(
    jobs: Sequence[StreamingJobSpec], translator: StreamingJobTranslator
) -> list[dg.AssetChecksDefinition]:
    """Return the checks of each job. Users can run them; the sensor reports results under the same names."""
    return [_definition(job, translator) for job in jobs]


def _definition(job: StreamingJobSpec, translator: StreamingJobTranslator) -> dg.AssetChecksDefinition:
    asset = translator.checkpoint_key(job)
    specs = [
        dg.AssetCheckSpec(name, asset=asset, description=CHECKS[name], metadata=_bound_of(name, job.checks))
        for name in check_names(job.checks)
    ]

    @dg.multi_asset_check(
        name=translator.name(job, "checks"),
        specs=specs,
        can_subset=True,
        required_resource_keys={RESOURCE_KEY},
        description=f"The current health of the job {job.name}.",
    )
    def run(context: dg.AssetCheckExecutionContext) -> Iterable[dg.AssetCheckResult]:
        wanted = {key.name for key in context.selected_asset_check_keys}
        plane: ControlPlaneResource = getattr(context.resources, RESOURCE_KEY)
        for outcome in _look(plane, job):
            if outcome.name in wanted:
                yield dg.AssetCheckResult(
                    asset_key=asset,
                    check_name=outcome.name,
                    passed=outcome.passed,
                    severity=outcome.severity,
                    description=outcome.description,
                    metadata=outcome.metadata,
                )

    return run


def _look(plane: ControlPlaneResource, job: StreamingJobSpec) -> list[CheckOutcome]:
    try:
        with plane.client(ACTOR) as client:
            fleet = client.fleet([job.name])
    except CoordControlError as error:
        raise action_failure(error) from error
    return evaluate(fleet.jobs[0] if fleet.jobs else None, job.checks, fleet.now)


# --- the single checks: what is bounded, by the bound, now


_Check = Callable[[JobOverview, float, datetime], CheckOutcome]


def _bounded(bounds: CheckBounds) -> Mapping[str, tuple[float | None, _Check]]:
    return {
        "checkpoint_freshness": (bounds.checkpoint_age, _freshness),
        "failed_checkpoints": (bounds.failed_in_a_row, _failed),
        "checkpoint_duration": (bounds.checkpoint_duration, _duration),
        "blocked_time": (bounds.blocked, _blocked),
        "restart_rate": (bounds.restarts_per_hour, _restarts),
        "lag": (bounds.lag, _lag),
        "backlog": (bounds.backlog, _backlog),
    }


def _bound_of(name: str, bounds: CheckBounds) -> Metadata:
    return {} if name == "running" else entries({"bound": _bounded(bounds)[name][0]})


def _unknown(name: str) -> CheckOutcome:
    if name == "running":
        text = "the control database does not know this job: start it, or check whether it reports to another database"
        return CheckOutcome(name, False, _WARN, text, {})
    return CheckOutcome(name, True, _WARN, "nothing is known about this job", {})


def _running(overview: JobOverview, now: datetime) -> CheckOutcome:
    job = overview.job
    silent = _seconds(now, job.heartbeat_at)
    values = {"state": job.state.value, "generation": job.generation, "heartbeat_age_seconds": silent, "host": job.host}
    passed, severity = job.is_alive, _ERROR
    if passed:
        text = f"{job.state.value} on {job.host}, generation {job.generation}"
    elif job.state is JobState.ENDED and job.dead_since is not None:
        text = f"it has ended{_because(job.end_reason)}, and its supervisor has not restarted it: start it"
    elif job.state is JobState.ENDED:
        severity, text = _WARN, f"it has ended{_because(job.end_reason)}"
    elif job.state is JobState.FAILED:
        text = f"it has failed{_because(job.end_reason)}"
    else:
        driver = f"its driver (generation {job.generation} on {job.host})"
        text = f"{driver} has been silent for {human_seconds(silent)}: it is dead"
    return CheckOutcome("running", passed, severity, text, entries(values))


def _freshness(overview: JobOverview, bound: float, now: datetime) -> CheckOutcome:
    newest = overview.completed
    since = newest.finished_at if newest is not None and newest.finished_at is not None else None
    age = _seconds(now, since or overview.job.driver_started_at)
    what = (
        f"no checkpoint is complete; the driver was started {human_seconds(age)} ago"
        if newest is None
        else f"{newest.kind.value} {newest.id} was completed {human_seconds(age)} ago"
    )
    values = {
        "age_seconds": age,
        "bound": bound,
        "checkpoint_id": None if newest is None else newest.id,
        "finished_at": since,
    }
    passed = age <= bound or _has_ended(overview)
    return CheckOutcome("checkpoint_freshness", passed, _ERROR, _bounded_text(what, bound, passed), entries(values))


def _failed(overview: JobOverview, bound: float, now: datetime) -> CheckOutcome:
    count, newest = overview.failed_in_a_row, overview.failed
    text = f"{count} failed since the last completed one" if count else "none has failed since the last completed one"
    values: dict[str, object] = {"failed_in_a_row": count, "bound": int(bound)}
    if count and newest is not None:
        text += f"; the newest, {newest.id}: {newest.reason or 'failed'}{_because(newest.message)}"
        values |= {"failed_checkpoint_id": newest.id, "reason": newest.reason, "message": newest.message}
    return CheckOutcome("failed_checkpoints", count < bound, _ERROR, text, entries(values))


def _duration(overview: JobOverview, bound: float, now: datetime) -> CheckOutcome:
    return _of_newest("checkpoint_duration", overview, bound, "took", lambda record: record.duration_seconds)


def _blocked(overview: JobOverview, bound: float, now: datetime) -> CheckOutcome:
    return _of_newest(
        "blocked_time", overview, bound, "kept a gateway closed for", lambda record: record.blocked_seconds
    )


def _of_newest(
    name: str,
    overview: JobOverview,
    bound: float,
    verb: str,
    measured: Callable[[CheckpointRecord], float | None],
) -> CheckOutcome:
    newest = overview.completed
    seconds = None if newest is None else measured(newest)
    if newest is None or seconds is None:
        return CheckOutcome(name, True, _WARN, "nothing has been measured yet", entries({"bound": bound}))
    passed = seconds <= bound
    text = _bounded_text(f"{newest.kind.value} {newest.id} {verb} {human_seconds(seconds)}", bound, passed)
    values = {"seconds": seconds, "bound": bound, "checkpoint_id": newest.id}
    return CheckOutcome(name, passed, _WARN, text, entries(values))


def _restarts(overview: JobOverview, bound: float, now: datetime) -> CheckOutcome:
    # A driver that starts recovers all queries of the job, and each records a recovery.
    count = math.ceil(overview.recoveries / max(1, len(overview.job.queries)))
    last = overview.last_recovery
    text = f"restarts after failures within the last hour: {count}"
    if count and last is not None and last.cause not in REQUESTED_CAUSES:
        text += f"; the last: {last.what or last.cause}"
    values = {"restarts": count, "recoveries": overview.recoveries, "bound": int(bound)}
    return CheckOutcome("restart_rate", count < bound, _WARN, text, entries(values))


def _lag(overview: JobOverview, bound: float, now: datetime) -> CheckOutcome:
    known = [(trend.last, trend) for trend in overview.lags if trend.last is not None]
    if not known or not overview.job.is_alive:
        return CheckOutcome("lag", True, _WARN, "no running query has a watermark", entries({"bound": bound}))
    growing = [(last, trend) for last, trend in known if last > bound and (trend.first is None or last > trend.first)]
    last, worst = max(growing or known, key=lambda each: each[0])
    text = f"{worst.query} is {human_seconds(last)} behind"
    if worst.first is not None:
        text += f", {human_seconds(worst.first)} an hour ago"
    values = {"lag_seconds": last, "lag_before_seconds": worst.first, "query": worst.query, "bound": bound}
    text += _also_unknown("without a watermark", overview.lags)
    return CheckOutcome("lag", not growing, _WARN, _bounded_text(text, bound, not growing), entries(values))


def _backlog(overview: JobOverview, bound: float, now: datetime) -> CheckOutcome:
    known = [(trend.last, trend) for trend in overview.backlogs if trend.last is not None]
    unseen = _unseen_and_busy(overview) if overview.job.is_alive else []
    doubt = (
        f"cannot tell whether {', '.join(unseen)} keeps up: its batches run back to back, it has no watermark, and its "
        "sources report no backlog"
    )
    if not known or not overview.job.is_alive:
        text = doubt if unseen else "no source of a running query reports what waits in it"
        return CheckOutcome("backlog", not unseen, _WARN, text, entries({"bound": int(bound)}))
    bad = [(last, trend) for last, trend in known if last > bound and _grows(trend)]
    last, worst = max(bad or known, key=lambda each: each[0])
    size = f"{last:,.0f} records wait for {worst.query}"
    before = "" if worst.first is None else f", {worst.first:,.0f} an hour ago"
    how = "growing" if _grows(worst) else "large, but not growing" if last > bound else "small"
    limit = f"; the bound is {bound:,.0f}" if bad else ""
    text = f"{size}{before}: {how}{limit}{_also_unknown('that cannot be seen', overview.backlogs)}"
    text += f"; {doubt}" if unseen else ""
    values = {"backlog": last, "backlog_before": worst.first, "query": worst.query, "bound": int(bound)}
    return CheckOutcome("backlog", not bad and not unseen, _WARN, text, entries(values))


def _unseen_and_busy(overview: JobOverview) -> list[str]:
    """Return the running queries of which neither lag nor backlog is known, and that never pause."""
    seen = {trend.query for trend in (*overview.lags, *overview.backlogs) if trend.last is not None}
    return [each.name for each in overview.job.queries if each.name not in seen and _has_no_pause(each)]


def _has_no_pause(query: QueryRecord) -> bool:
    # Spark divides the rows of a batch by the time since the batch before it, and by the time that the batch took.
    arriving, processed = query.input_rows_per_second, query.rows_per_second
    return arriving is not None and processed is not None and 0 < _BUSY * processed <= arriving


def _grows(trend: Trend) -> bool:
    """Return whether a backlog has grown by more than what comes and goes between two batches."""
    return trend.last is not None and (trend.first is None or trend.last > _GROWN * trend.first)


def _also_unknown(what: str, trends: Iterable[Trend]) -> str:
    names = [trend.query for trend in trends if trend.last is None]
    return f"; {what}: {', '.join(names)}" if names else ""


def _has_ended(overview: JobOverview) -> bool:
    return not overview.job.is_alive and overview.job.dead_since is None


def _bounded_text(text: str, bound: float, passed: bool) -> str:
    return text if passed else f"{text}; the bound is {human_seconds(bound)}"


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _seconds(now: datetime, then: datetime) -> float:
    return max(0.0, (now - then).total_seconds())
