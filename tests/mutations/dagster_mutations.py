"""What schedules do about runs that were lost, and what checks say of backlogs.

Each rule is left out or turned round, with the tests that have to notice.
"""

from __future__ import annotations

from typing import Final

from coord_control.dagster import asset_checks
from coord_control.dagster.definitions import schedules
from tests.mutations.mutation import Mutation

__all__ = ["DAGSTER_MUTATIONS"]

_SUBMITTED: Final = (
    "tests/dagster/test_schedules.py::test_a_run_that_its_daemon_never_submitted_does_not_stop_the_schedule"
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
)
