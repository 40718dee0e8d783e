"""What becomes of a job without a driver: what its supervisor says, what waits for it, what others may not undo.

Each rule is left out or turned round, with the tests that have to notice.
"""

from __future__ import annotations

from typing import Final

from coord_control import supervisor
from coord_control.durable.job_folder.generations import Claim
from coord_control.launch.upgrade_execution import UpgradeExecution
from coord_control.storage import command_rows, job_rows, jobs
from coord_control.storage.commands import Commands
from coord_control.storage.jobs import Jobs
from tests.mutations.mutation import Mutation

__all__ = ["SUPERVISION_MUTATIONS"]

_COMMANDS: Final = "tests/storage/test_missing_driver.py"
_SUPERVISOR: Final = "tests/unit/test_supervisor.py"

#: Each with the tests that catch it.
SUPERVISION_MUTATIONS: Final[tuple[tuple[Mutation, str], ...]] = (
    (
        Mutation(
            "say nothing of a supervisor that ends without a driver",
            supervisor.supervise,
            "if not action.is_clean:",
            "if False:",
        ),
        _SUPERVISOR,
    ),
    (
        Mutation(
            "let a supervisor speak of a job that was stopped, or that has failed for good",
            job_rows.driver_expected,
            "return bool(row.is_supervised) and (row.state != JobState.ENDED or row.end_reason == ENDED_TO_RESTART)",
            "return True",
        ),
        _COMMANDS,
    ),
    (
        Mutation(
            "leave the restart waiting when its supervisor has ended",
            Jobs.driver_not_started,
            "fail_claimed(transaction, row)",
            "pass",
        ),
        _COMMANDS,
    ),
    (
        Mutation(
            "restart the driver that was started after the request",
            jobs._register_job,
            "fulfil_restarts(transaction, job, newest, registration.process_seconds)",
            "pass",
        ),
        _COMMANDS,
    ),
    (
        Mutation(
            "take a process that is older than a restart for the restarted one",
            command_rows.fulfil_restarts,
            "transaction.now - timedelta(seconds=seconds)",
            "transaction.now",
        ),
        _COMMANDS,
    ),
    (
        Mutation(
            "let a client wait for a supervisor that does not come back",
            Commands.look,
            "is_due = is_due or is_overdue(",
            "is_due = is_due and is_overdue(",
        ),
        _COMMANDS,
    ),
    (
        Mutation(
            "carry out what has waited for a supervisor that did not come back",
            jobs._register_job,
            "if is_overdue(row, now):",
            "if False:",
        ),
        _COMMANDS,
    ),
    (
        Mutation(
            "take a fenced driver for one that has ended in good order",
            Claim.has_ended_cleanly,
            "!= _FENCED",
            "is not None",
        ),
        "tests/unit/control/test_command_takeover.py",
    ),
    (
        Mutation(
            "undo what something else has done since an upgrade was interrupted",
            UpgradeExecution._check_alone,
            "job.generation > self._record.stopped and job.log_file not in ours",
            "False",
        ),
        "tests/unit/launch/test_upgrade_execution.py",
    ),
)
