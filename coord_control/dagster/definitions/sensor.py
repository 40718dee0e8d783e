"""The sensor: reports to Dagster what has happened in the jobs of a control database, whether or not Dagster caused it.

It runs in the code server, which must stay responsive. So if the database cannot be reached or does not answer within
two seconds, the tick is skipped; the next tick starts from the same place.

Threads: the tick's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import dagster as dg

from coord_control.dagster.feed.cursor import Cursor
from coord_control.dagster.feed.dagster_events import JobAssets
from coord_control.dagster.feed.tick import Tick, TickLimits, TickResult
from coord_control.dagster.resource import RESOURCE_KEY, ControlPlaneResource
from coord_control.dagster.spec import ControlPlaneSpec, StreamingJobSpec
from coord_control.dagster.translator import StreamingJobTranslator
from coord_control.errors import CoordControlError

__all__ = ["ACTOR", "SENSOR_NAME", "build_sensor"]

SENSOR_NAME: Final = "streaming_jobs_sensor"
#: Who asks, for the audit trail.
ACTOR: Final = "dagster:sensor"

_INTERVAL_SECONDS: Final = 15
_RETRY_SECONDS: Final = 2.0
_DESCRIPTION: Final = (
    "Reports what happens in the streaming jobs: checkpoints and savepoints taken outside Dagster, failures, "
    "recoveries, the progress of the queries, and the results of the asset checks."
)


def build_sensor(
    spec: ControlPlaneSpec,
    jobs: Sequence[StreamingJobSpec],
    translator: StreamingJobTranslator,
    *,
    limits: TickLimits | None = None,
) -> dg.SensorDefinition:
    """Return the sensor of a control database.

    Args:
        jobs: the jobs that have assets; other jobs are not reported.
        limits: how much work one tick may do.
    """
    assets = {job.name: JobAssets.of(job, translator, page=spec.page) for job in jobs}
    where = f" Database: {spec.database}." if spec.database and "@" not in spec.database else ""

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        plane: ControlPlaneResource = getattr(context.resources, RESOURCE_KEY)
        try:
            with plane.client(ACTOR, retry_seconds=_RETRY_SECONDS) as client:
                cursor = _cursor(context)
                result = Tick(client, context.instance, assets, cursor, limits or TickLimits(), context.log).run()
        except (CoordControlError, TimeoutError) as error:
            reason = f"the control database could not be read: {error}"
            return dg.SensorResult(skip_reason=reason, cursor=context.cursor)
        return _sensor_result(result)

    return dg.SensorDefinition(
        name=SENSOR_NAME,
        evaluation_fn=evaluate,
        minimum_interval_seconds=_INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys={RESOURCE_KEY},
        description=_DESCRIPTION + where,
    )


def _cursor(context: dg.SensorEvaluationContext) -> Cursor | None:
    if not context.cursor:
        return None
    try:
        return Cursor.decode(context.cursor)
    except ValueError as error:
        context.log.warning(f"{error}; starting over without repeating what Dagster already has")
        return None


def _sensor_result(result: TickResult) -> dg.SensorResult:
    # Dagster shows it behind "skipped", because the tick has started no run.
    said = f"no run to start; {len(result.events)} events reported" if result.events else "nothing new"
    if not result.is_all:
        said += "; more changes follow with the next tick"
    return dg.SensorResult(skip_reason=said, asset_events=result.events, cursor=result.cursor.encode())
