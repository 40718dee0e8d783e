"""The demo in Dagster, as Python: ``dagster dev -m examples.flights.definitions``.

The job's assets, checks, sensor and jobs, a schedule to switch on, a Dagster job that sends a ready-made event, and a
downstream asset that is rebuilt after each new savepoint. The demo starts Dagster with these definitions, and passes
the locations of its control database and its pages.
"""

from __future__ import annotations

import os
from typing import Final

import dagster as dg

from coord_control.dagster import (
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
from examples.flights.server import EVENT_JOB, REPORTS_VARIABLE

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
    # A year passes within minutes: the watermark, which lags by a week, is not late.
    checks=CheckBounds(checkpoint_age=3600.0, lag=30 * 86_400.0),
)
_SEND: Final = "send_control_event"
#: In force until the coordinator next adapts the thresholds.
_EVENT: Final = {
    "operator": "delay-threshold",
    "event_type": "Thresholds",
    "payload": {"version": 1, "minutes": {"UA": 45.0}},
}


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions of the job and of the assets downstream of its savepoints."""
    savepoint = StreamingJobTranslator().savepoint_key(FLIGHTS)
    streaming = build_streaming_definitions(ControlPlaneSpec(jobs=[FLIGHTS]))
    return dg.Definitions.merge(
        streaming,
        # The steps of this library only wait for the job: without a process for each step, runs start seconds sooner.
        dg.Definitions(jobs=[_event_job(streaming)], executor=dg.in_process_executor),
        savepoint_report_definitions(savepoint, os.environ.get(REPORTS_VARIABLE, "savepoint-reports")),
    )


def _event_job(streaming: dg.Definitions) -> dg.JobDefinition:
    """Return ``send_control_event`` with an event of the flights in the launchpad."""
    return streaming.resolve_job_def(_SEND).graph.to_job(
        name=EVENT_JOB,
        description="Send thresholds to the subtasks, as the coordinator does: United's alerts begin at 45 minutes.",
        config={"ops": {_SEND: {"config": _EVENT}}},
        executor_def=dg.in_process_executor,
    )
