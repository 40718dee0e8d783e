"""Rules that the simulation does not have, each left out or turned round, with the tests that have to notice.

They concern the program, Spark and threads: how a restored job starts, how a coordinator sends, which steps a
checkpoint takes (:mod:`.checkpoint_run_mutations`), and what commands do to a job that ends or does not run. A mutation
is caught when its tests pass without it and fail with it; they are run in a process of their own, from the root of the
checkout.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from coord_control import signal_wakeup
from coord_control.cli import job_places
from coord_control.control.agent.ending_commands import RestoreExecution
from coord_control.dagster.definitions import schedules
from coord_control.durable.checkpoints import removal, shared_files
from coord_control.durable.job_folder.lineage_record import LineageRecord, RestoredFrom
from coord_control.durable.job_folder.restore_log import standing_restores
from coord_control.durable.offline import undo
from coord_control.durable.restore import prepared_restore
from coord_control.protocol import query_state
from coord_control.spark.job.job import Job
from coord_control.spark.job.job_driver import JobDriver
from coord_control.spark.job.pending_restore import AppliedRestore, PendingRestore
from coord_control.spark.job.query_starts import QueryStarts
from coord_control.spark.loop.coordinator_context import Context
from coord_control.spark.process.shutdown import StopRegistry
from coord_control.storage import jobs
from tests.mutations.checkpoint_run_mutations import CHECKPOINT_RUN_MUTATIONS
from tests.mutations.mutation import Mutation

__all__ = ["RESTORE_MUTATIONS", "fails", "main"]

_SAVEPOINTS: Final = "tests/unit/durable/test_checkpoint_store_savepoints.py"
_UNDOING: Final = "tests/unit/durable/test_undo.py"
_RESTORING: Final = "tests/unit/durable/test_prepared_restore.py"
_SEEDS: Final = "tests/unit/durable/test_seeds.py"
_PENDING: Final = "tests/unit/spark/test_pending_restore.py"
_REFUSALS: Final = "tests/spark/test_restore_refusals.py"
_TOGETHER: Final = f"{_REFUSALS}::test_all_queries_of_a_checkpoint_start_together"
_OUTSIDE: Final = f"{_REFUSALS}::test_all_queries_of_a_job_that_was_restored_from_outside_start_together"

_SENDING: Final = "tests/unit/spark/test_coordinator_context.py"
_DISPOSING: Final = "tests/unit/durable/test_catalog.py"
_ENDING: Final = "tests/unit/control/test_agent.py"
_KEYS: Final = "tests/unit/cli/test_savepoint_running.py"
_SHUTDOWN: Final = "tests/unit/spark/test_shutdown.py"
_DRIVER_END: Final = "tests/spark/test_driver_end.py"
_AFTERWARDS: Final = f"{_DRIVER_END}::test_a_program_that_uses_a_job_after_a_command_has_ended_it_has_not_failed"

_PROGRESS: Final = (
    "tests/storage/test_jobs.py::test_a_new_driver_does_not_show_where_the_queries_stood_under_an_older_one"
)
_SUBMITTED: Final = (
    "tests/dagster/test_schedules.py::test_a_run_that_its_daemon_never_submitted_does_not_stop_the_schedule"
)

# Exit codes of pytest.
_PASSED: Final = 0
_FAILED: Final = 1

#: Each with the tests that catch it.
RESTORE_MUTATIONS: Final[tuple[tuple[Mutation, str], ...]] = (
    (
        Mutation(
            "take a file that Spark has replaced for the one that the last savepoint read",
            shared_files._live_name,
            "{info.path}.{_version(info)}",
            "{info.path}",
        ),
        _SAVEPOINTS,
    ),
    (
        Mutation(
            "let a restore take place when its first query has been checked",
            QueryStarts.start,
            "if missing := restore.missing(self._waiting):",
            "if missing := []:",
        ),
        _TOGETHER,
    ),
    (
        Mutation(
            "let no query wait after a restore from outside",
            vars(QueryStarts)["_restore"].func,
            "driver.restore or AppliedRestore.find(driver.files, driver.name, driver.folder)",
            "driver.restore",
        ),
        _OUTSIDE,
    ),
    (
        Mutation(
            "do not let Spark check the plan of a restored query",
            QueryStarts._check,
            "restore.check_plan(start.name, self._refusal(start, lineage))",
            "pass",
        ),
        _OUTSIDE,
    ),
    (
        Mutation(
            "start a query that the checkpoint refuses",
            PendingRestore._report,
            "refuse(self.path, checks, is_applied=self.is_applied, can_undo=self.is_applied and self.can_undo)",
            "pass",
        ),
        _PENDING,
    ),
    (
        Mutation(
            "offer to undo a restore that cannot be undone",
            vars(PendingRestore)["can_undo"].fget,
            "bool(self.record.replaced)",
            "True",
        ),
        _PENDING,
    ),
    (
        Mutation(
            "offer to undo a restore whose queries have started",
            QueryStarts._take_place,
            " and len(failed) == len(waiting)",
            "",
        ),
        f"{_REFUSALS}::test_a_query_that_cannot_start_after_the_restore_says_how_to_go_on",
    ),
    (
        Mutation(
            "leave queries of the checkpoint out without permission",
            PendingRestore.check_none_missing,
            "if unused and not self.allow_non_restored_state:",
            "if False:",
        ),
        _PENDING,
    ),
    (
        Mutation(
            "forget with the second restore which directory the program adopted",
            vars(LineageRecord)["named_location"].fget,
            "before or self.checkpoint_location",
            "self.checkpoint_location",
        ),
        _SEEDS,
    ),
    (
        Mutation(
            "let queries wait although one has run since the restore",
            vars(AppliedRestore)["find"].__func__,
            " or query_that_ran(files, job_folder, newest) is not None",
            "",
        ),
        _PENDING,
    ),
    (
        Mutation(
            "take a lineage whose planned epoch may have been answered for untouched",
            RestoredFrom.is_untouched_at,
            "not self.is_seeded if",
            "True if",
        ),
        _PENDING,
    ),
    (
        Mutation(
            "undo a restore although a query has run since",
            undo._check,
            "(query := query_that_ran(files, job_folder, newest)) is not None",
            "query := None",
        ),
        _UNDOING,
    ),
    (
        Mutation(
            "take an undone restore for one that stands",
            standing_restores,
            "if not is_undone:",
            "if True:",
        ),
        _UNDOING,
    ),
    (
        Mutation(
            "apply the restore of the program again after a later one",
            prepared_restore.applied_restore,
            "for restore in standing_restores(files, job_folder):",
            "for restore in list(standing_restores(files, job_folder))[:1]:",
        ),
        _RESTORING,
    ),
    (
        Mutation(
            "apply `latest` again with every new checkpoint",
            prepared_restore.applied_restore,
            "if is_same or ref == restore.ref == LATEST:",
            "if is_same:",
        ),
        _RESTORING,
    ),
    (
        Mutation(
            "forget an event that was added while the loop took the others", Context.send, "run.is_taken", "False"
        ),
        _SENDING,
    ),
    (
        Mutation(
            "deliver what the loop missed after what was sent later",
            Context._send_missed,
            "for subtask, payloads in run.take():",
            "self._owner.post(partial(self._deliver, run))\n    for subtask, payloads in []:",
        ),
        _SENDING,
    ),
    (
        Mutation(
            "add events to the ones before a snapshot that was given meanwhile",
            Context._post,
            "self._run = None",
            "pass",
        ),
        _SENDING,
    ),
    (
        Mutation(
            "compare a checkpoint with those of another job",
            removal.dispose_without_owner,
            "job_folder_of(entry.path)",
            "job_folder",
        ),
        _DISPOSING,
    ),
    (
        Mutation(
            "restore a job that nothing starts again",
            RestoreExecution.job_ended,
            "is not None:\n        return outcome",
            "is not None:\n        pass",
        ),
        _ENDING,
    ),
    (
        Mutation(
            "drop the key of what is done on the storage", job_places.refuse_key, "if key is not None:", "if False:"
        ),
        _KEYS,
    ),
    (
        Mutation(
            "look for a key only while the job runs",
            inspect.unwrap(job_places.running_job),
            " or (key is not None and client.command_of_key(job, key) is not None)",
            "",
        ),
        _KEYS,
    ),
    (
        Mutation(
            "show where the queries stood under an older driver",
            jobs._register_job,
            "_forget_progress(transaction, job)",
            "pass",
        ),
        _PROGRESS,
    ),
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
            "let a query that has ended run again",
            query_state.next_state,
            "return TRANSITIONS[state, input_]",
            "return TRANSITIONS.get((state, input_), QueryState.RUNNING)",
        ),
        "tests/unit/protocol/test_query_state.py",
    ),
    *CHECKPOINT_RUN_MUTATIONS,
    (
        Mutation(
            "let a signal cut off the last moments of a job",
            Job.stop,
            "self._driver.close()",
            "shutdown.unregister(self.stop); self._driver.close()",
        ),
        f"{_DRIVER_END}::test_a_job_is_registered_for_signals_until_its_end_is_written",
    ),
    (
        Mutation(
            "let a signal decide what comes after a stop by command",
            StopRegistry.is_end_commanded,
            "self._was_commanded and",
            "False and",
        ),
        _SHUTDOWN,
    ),
    (
        Mutation(
            "let a command decide for the job that a signal has stopped",
            StopRegistry.is_end_commanded,
            " and not self._has_stopped",
            "",
        ),
        _SHUTDOWN,
    ),
    (
        Mutation(
            "take the end that was requested for an error of the program",
            JobDriver.closed_error,
            "self.is_ended_by_command or shutdown.is_requested()",
            "False",
        ),
        _AFTERWARDS,
    ),
    (
        Mutation(
            "let a job fail whose program met the end that was requested",
            Job.__exit__,
            " and not isinstance(error, SystemExit)",
            "",
        ),
        _AFTERWARDS,
    ),
    (
        Mutation(
            "wake the main thread for no signal",
            signal_wakeup._Nudger.run,
            "number != _NUDGE for",
            "False for",
        ),
        "tests/unit/test_signal_wakeup.py::test_a_signal_that_another_thread_takes_ends_a_wait",
    ),
)


def fails(number: int | None) -> bool:
    """Run the tests of a mutation with it, or with ``None`` all tests without any; return whether one fails.

    Raises:
        subprocess.CalledProcessError: they could not be run.
    """
    arguments = [] if number is None else [str(number)]
    command = [sys.executable, "-m", "tests.mutations.restore_mutations", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (_PASSED, _FAILED):
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.returncode == _FAILED


def main(arguments: Sequence[str]) -> int:
    """Run tests in this process; returns pytest's exit code."""
    import pytest  # who uses the rest of this package need not have it

    options = ["-x", "-q", "-p", "no:cacheprovider"]
    if not arguments:
        return pytest.main([*options, *sorted({tests for _, tests in RESTORE_MUTATIONS})])
    mutation, tests = RESTORE_MUTATIONS[int(arguments[0])]
    with mutation.applied():
        return pytest.main([*options, tests])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
