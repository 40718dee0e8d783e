"""Restarting dead drivers: a sensor for the jobs that are configured with ``supervise``.

A driver is dead (``JobRecord.dead_since``) if it reported that it failed (or that its own supervisor was killed), if it
was silent for longer than its lease, or if it ended for a restart that did not follow. A driver that ended by itself or
was stopped is left alone, and so is a job that was never started.

    alive       nothing
    dead        wait: delay, doubled with each restart within the window       -> one run for this generation
    still dead  after that run: the same again, with a second run, and so on
    too often   nothing more, until the job is started manually

A run's key consists of job, generation and attempt, and Dagster launches each key once: even if the cursor is lost, a
dead driver is not started twice at the same time. Two drivers would do no harm either: the older one is fenced off.

Threads: :func:`decide` is a pure function; the sensor runs on the tick's thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import dagster as dg
from pydantic import TypeAdapter, ValidationError

from coord_control.dagster.definitions.action_jobs import start_run_config
from coord_control.dagster.resource import RESOURCE_KEY, ControlPlaneResource
from coord_control.dagster.runs.job_actions import START_JOB
from coord_control.dagster.runs.own_runs import NOT_OVER
from coord_control.dagster.runs.patience import within
from coord_control.dagster.spec import StreamingJobSpec, SuperviseSpec
from coord_control.dagster.translator import StreamingJobTranslator
from coord_control.errors import CoordControlError
from coord_control.storage.records import JobRecord

__all__ = ["ACTOR", "SUPERVISOR_NAME", "Decision", "Memory", "build_supervisor", "decide"]

SUPERVISOR_NAME: Final = "streaming_supervisor_sensor"
#: Who asks, for the audit trail.
ACTOR: Final = "dagster:supervisor"

_INTERVAL_SECONDS: Final = 15
_ANSWER_SECONDS: Final = 2.0
_JOB_TAG: Final = "coord_control/job"
_SENSOR_TAG: Final = "dagster/sensor_name"
_DOUBLINGS: Final = 30


@dataclass(frozen=True, slots=True)
class Memory:
    """What the sensor remembers about one job.

    Attributes:
        generation: the dead generation that ``attempts`` counts for.
        attempts: number of runs requested for this generation.
        asked_at: when runs were requested within the window, in seconds since 1970; oldest first.
        gave_up: whether the job was restarted too often; it is then left alone until there is a newer generation.
    """

    generation: int = 0
    attempts: int = 0
    asked_at: tuple[float, ...] = ()
    gave_up: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about a job.

    Attributes:
        run_key: the key of the run to request, or None if no run is due.
        reason: why a dead job is not started now; empty if the job is not dead.
    """

    memory: Memory
    run_key: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Cursor:
    jobs: dict[str, Memory] = field(default_factory=dict)


_CURSOR: Final[TypeAdapter[_Cursor]] = TypeAdapter(_Cursor)


def decide(job: JobRecord, spec: SuperviseSpec, memory: Memory, now: datetime) -> Decision:
    """Decide whether to start a job now.

    Args:
        now: the time by the clock of the control database.
    """
    seconds = now.timestamp()
    if job.generation != memory.generation:
        # After too many restarts only a manual start makes a new generation: it resets the count.
        memory = Memory(job.generation, asked_at=() if memory.gave_up else memory.asked_at)
    recent = tuple(each for each in memory.asked_at if each > seconds - spec.within_seconds)
    memory = replace(memory, asked_at=recent)
    dead_since = job.dead_since
    if dead_since is None:
        return Decision(memory)
    if memory.gave_up or len(recent) >= spec.max_restarts:
        text = f"{job.name} was restarted {spec.max_restarts} times in {spec.within_seconds:g} s: start it manually"
        return Decision(replace(memory, gave_up=True), reason=text)
    delay = min(spec.delay_seconds * 2 ** min(len(recent), _DOUBLINGS), spec.within_seconds)
    due = max(dead_since.timestamp(), *recent[-1:], 0.0) + delay
    if seconds < due:
        return Decision(memory, reason=f"{job.name} is dead and will be restarted in {due - seconds:.0f} s")
    attempt = memory.attempts + 1
    asked = replace(memory, attempts=attempt, asked_at=(*recent, seconds))
    return Decision(asked, run_key=f"{job.name}:{job.generation}:{attempt}")


def build_supervisor(
    jobs: Sequence[StreamingJobSpec], translator: StreamingJobTranslator
) -> dg.SensorDefinition | None:
    """Return the sensor, or None if no job is configured with ``supervise``."""
    supervised = {job.name: job.supervise for job in jobs if job.supervise is not None}
    if not supervised:
        return None

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        plane: ControlPlaneResource = getattr(context.resources, RESOURCE_KEY)
        try:
            with plane.client(ACTOR, retry_seconds=_ANSWER_SECONDS) as client:
                fleet = within(_ANSWER_SECONDS, lambda: client.fleet(supervised))
        except (CoordControlError, TimeoutError) as error:
            reason = f"the control database could not be read: {error}"
            return dg.SensorResult(skip_reason=reason, cursor=context.cursor)
        records = {overview.job.name: overview.job for overview in fleet.jobs}
        return _look(context, records, supervised, fleet.now)

    return dg.SensorDefinition(
        name=SUPERVISOR_NAME,
        job_name=START_JOB,
        evaluation_fn=evaluate,
        minimum_interval_seconds=_INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys={RESOURCE_KEY},
        description=f"Restarts these jobs when their driver has died: {', '.join(sorted(supervised))}.",
    )


def _look(
    context: dg.SensorEvaluationContext,
    records: Mapping[str, JobRecord],
    supervised: Mapping[str, SuperviseSpec],
    now: datetime,
) -> dg.SensorResult:
    before = _remembered(context)
    after: dict[str, Memory] = {}
    requests: list[dg.RunRequest] = []
    reasons: list[str] = []
    for name, record in records.items():
        memory = before.get(name, Memory())
        if record.dead_since is not None and _is_being_started(context, name):
            # Decide nothing now: if we stopped trying after the last run, its driver would look like a manual start.
            decision = Decision(memory, reason=f"{name} is dead; the run that starts it has not finished")
        else:
            decision = decide(record, supervised[name], memory, now)
        after[name] = decision.memory
        if decision.run_key is not None:
            requests.append(_request(name, decision.run_key))
        elif decision.reason:
            reasons.append(decision.reason)
    skip = None if requests else "; ".join(reasons) or "no job is dead"
    return dg.SensorResult(run_requests=requests, skip_reason=skip, cursor=_CURSOR.dump_json(_Cursor(after)).decode())


def _request(name: str, run_key: str) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=run_key,
        run_config=start_run_config(name),
        tags={_JOB_TAG: name},
    )


def _is_being_started(context: dg.SensorEvaluationContext, name: str) -> bool:
    ours = dg.RunsFilter(tags={_SENSOR_TAG: SUPERVISOR_NAME, _JOB_TAG: name}, statuses=NOT_OVER)
    return bool(context.instance.get_runs(filters=ours, limit=1))


def _remembered(context: dg.SensorEvaluationContext) -> Mapping[str, Memory]:
    if not context.cursor:
        return {}
    try:
        return _CURSOR.validate_json(context.cursor).jobs
    except ValidationError:
        context.log.warning("the cursor of the supervisor cannot be read; restarts are counted from zero")
        return {}
