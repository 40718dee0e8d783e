"""What schedules request, skip and remove, and what checks say of backlogs.

Each rule is left out or turned round, with the tests that have to notice.
"""

from __future__ import annotations

from typing import Final

from coord_control.dagster import asset_checks
from coord_control.dagster.definitions import schedules
from coord_control.dagster.runs import savepoint_retention
from tests.mutations.mutation import Mutation

__all__ = ["DAGSTER_MUTATIONS"]

_SCHEDULES: Final = "tests/dagster/test_schedules.py"
_SUBMITTED: Final = f"{_SCHEDULES}::test_a_run_that_its_daemon_never_submitted_does_not_stop_the_schedule"
_TICK: Final = f"{_SCHEDULES}::test_a_tick_asks_for_a_run_of_the_asset_that_knows_what_it_is_for"
_OLDER: Final = (
    "tests/dagster/test_savepoint_retention.py::test_the_older_ones_of_the_schedule_go_and_those_of_others_stay"
)
_BACKLOG: Final = "tests/dagster/test_asset_checks.py"

#: Each with the tests that catch it.
DAGSTER_MUTATIONS: Final[tuple[tuple[Mutation, str], ...]] = (
    (
        Mutation(
            "wait for a run that was never submitted as long as for one that runs",
            schedules._is_lost,
            "_SUBMITTED_WITHIN_SECONDS if never_submitted else _longest_run(spec)",
            "_longest_run(spec)",
        ),
        _SUBMITTED,
    ),
    (
        Mutation(
            "report a large backlog that does not grow",
            asset_checks._backlog,
            "if last > bound and _grows(trend)",
            "if last > bound",
        ),
        _BACKLOG,
    ),
    (
        Mutation(
            "report a small backlog that grows",
            asset_checks._backlog,
            "if last > bound and _grows(trend)",
            "if _grows(trend)",
        ),
        _BACKLOG,
    ),
    (
        Mutation("give all savepoints of a schedule one label", schedules._label, ":]}{end}", ":]}"),
        _TICK,
    ),
    (
        Mutation(
            "skip the tick of a job that its supervisor starts again",
            schedules._down,
            "not job.is_alive and not job.is_restarting",
            "not job.is_alive",
        ),
        f"{_SCHEDULES}::test_a_job_that_its_supervisor_starts_again_is_not_skipped",
    ),
    (
        Mutation(
            "remove savepoints that somebody else has requested",
            savepoint_retention._completed,
            "requested_by=actor, ",
            "",
        ),
        _OLDER,
    ),
)
