"""The demo in Dagster, as Python: ``dagster dev -m examples.flights.definitions``.

The job's assets, checks, sensor and jobs, a schedule that can be switched on, and a downstream asset that is made anew
with each new savepoint. The demo starts it by itself and tells it where its control database and its pages are.
"""

from __future__ import annotations

import os
from typing import Final

import dagster as dg

from dagster_defs import (
    CheckBounds,
    ControlPlaneSpec,
    QuerySpec,
    RetainSpec,
    ScheduleSpec,
    StreamingJobSpec,
    StreamingJobTranslator,
    build_streaming_definitions,
)
from examples.dagster_downstream.report import savepoint_report_definitions
from examples.flights.server import REPORTS_VARIABLE

__all__ = ["FLIGHTS", "SCHEDULE", "defs"]

SCHEDULE: Final = "flights_every_minute"

FLIGHTS: Final = StreamingJobSpec(
    name="flights",
    description="A year of New York's flights: alerts about late ones, and departures and arrivals per airport.",
    queries=[
        QuerySpec(name="alerts", description="Unusually late departures, within the desk's budget."),
        QuerySpec(name="airports", description="Departures and arrivals per airport and day."),
    ],
    owners=["team:operations"],
    schedules=[ScheduleSpec(name=SCHEDULE, cron="* * * * *", label="every-minute", retain=RetainSpec(count=3))],
    # A year goes by within minutes: the watermark, which waits for a week, is not late.
    checks=CheckBounds(checkpoint_age=3600.0, lag=30 * 86_400.0),
)


@dg.definitions
def defs() -> dg.Definitions:
    """Everything about the job, and what follows from its savepoints."""
    savepoint = StreamingJobTranslator().savepoint_key(FLIGHTS)
    return dg.Definitions.merge(
        build_streaming_definitions(ControlPlaneSpec(jobs=[FLIGHTS])),
        savepoint_report_definitions(savepoint, os.environ.get(REPORTS_VARIABLE, "savepoint-reports")),
    )
