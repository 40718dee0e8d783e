"""How a job and its program end, by signals, by commands, and by both at once.

Each rule is left out or turned round, with the tests that have to notice.
"""

from __future__ import annotations

from typing import Final

from coord_control import signal_wakeup
from coord_control.durable.restore import reached
from coord_control.spark.checkpoints.checkpoint_handle import CheckpointHandle
from coord_control.spark.checkpoints.checkpoint_service import CheckpointService
from coord_control.spark.job import job_end
from coord_control.spark.job.job_end import JobEnd
from coord_control.spark.job.job_life import JobLife
from coord_control.spark.process.shutdown import StopRegistry
from coord_control.spark.queries.drain import QueryDrain
from coord_control.spark.queries.idle_watch import IdleWatch
from coord_control.storage import job_rows, jobs
from tests.mutations.mutation import Mutation

__all__ = ["ENDING_MUTATIONS"]

_AGENT: Final = "tests/unit/control/test_agent.py"
_JOB_END: Final = "tests/unit/spark/test_job_end.py"
_DRAIN: Final = "tests/unit/spark/test_drain.py"
_SERVICE: Final = "tests/unit/spark/test_checkpoint_service.py"
_SHUTDOWN: Final = "tests/unit/spark/test_shutdown.py"
_DRIVER_END: Final = "tests/spark/test_driver_end.py"
_AFTERWARDS: Final = f"{_DRIVER_END}::test_a_program_that_uses_a_job_after_a_command_has_ended_it_has_not_failed"

#: Each with the tests that catch it.
ENDING_MUTATIONS: Final[tuple[tuple[Mutation, str], ...]] = (
    (
        Mutation(
            "take the epoch number of another history for that of a savepoint",
            reached.stands_at,
            "lineage is None or lineage.name != snapshot.lineage",
            "lineage is None",
        ),
        "tests/spark/test_stop_with_savepoint.py::test_the_key_of_a_savepoint_of_another_history_is_refused",
    ),
    (
        Mutation(
            "let a signal cut off the last moments of a job",
            JobEnd._stop,
            "self._driver.close()",
            "shutdown.unregister(self._requested); self._driver.close()",
        ),
        f"{_DRIVER_END}::test_a_job_is_registered_for_signals_until_its_end_is_written",
    ),
    (
        Mutation(
            "spend all of the grace period on the savepoint",
            job_end.savepoint_seconds,
            "grace_seconds - min(grace_seconds * _RESERVED_SHARE, _RESERVED_SECONDS)",
            "grace_seconds",
        ),
        _JOB_END,
    ),
    (
        Mutation(
            "leave a job running that has no savepoint in time",
            JobEnd._requested,
            "except Exception as error:",
            "except CheckpointNotCompleted as error:",
        ),
        _JOB_END,
    ),
    (
        Mutation(
            "take a savepoint although a command ends the job",
            JobEnd._ends_otherwise,
            "self._life.is_ended_by_command or",
            "",
        ),
        _JOB_END,
    ),
    (
        Mutation(
            "end a job under its last savepoint because its program has ended",
            JobEnd.leave,
            "if error is None:",
            "if False:",
        ),
        _JOB_END,
    ),
    (
        Mutation(
            "drain up to what a batch reports that was planned before the request",
            QueryDrain.__init__,
            "committed + 2",
            "committed + 1",
        ),
        _DRAIN,
    ),
    (
        Mutation(
            "take an epoch that is not committed for read",
            QueryDrain.heard,
            "self._targets and epoch <= committed",
            "self._targets",
        ),
        _DRAIN,
    ),
    (
        Mutation(
            "drain up to the newest offsets again and again",
            QueryDrain.heard,
            "not self._targets and epoch",
            "epoch",
        ),
        _DRAIN,
    ),
    (
        Mutation(
            "take the end of a run for silence",
            IdleWatch._wait,
            "self.run.isActive",
            "True",
        ),
        "tests/unit/spark/test_drain_first.py",
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
            JobLife.closed_error,
            "self.is_ended_by_command or shutdown.is_requested()",
            "False",
        ),
        _AFTERWARDS,
    ),
    (
        Mutation(
            "let a job fail whose program met the end that was requested",
            JobEnd.leave,
            " and not isinstance(error, SystemExit)",
            "",
        ),
        _AFTERWARDS,
    ),
    (
        Mutation(
            "leave what waits for a driver that has failed for good pending",
            jobs.Jobs.ended,
            "refuse_pending(transaction, row)",
            "pass",
        ),
        _AGENT,
    ),
    (
        Mutation(
            "refuse what waits for a driver that is started again",
            jobs.Jobs.ended,
            "if not restarting(row, transaction.now):",
            "if True:",
        ),
        _AGENT,
    ),
    (
        Mutation(
            "show the queries of a job that has ended as they were at its last heartbeat",
            job_rows._queries,
            "{**beat, **values} if is_last else {**values, **beat}",
            "{**values, **beat}",
        ),
        _AGENT,
    ),
    (
        Mutation(
            "let a program fail that waits for a checkpoint when its job is stopped",
            CheckpointHandle.wait,
            "outcome.reason is FailureReason.JOB_ENDING",
            "False",
        ),
        _SERVICE,
    ),
    (
        Mutation(
            "let no request end whose statistics cannot be computed",
            CheckpointService.ended,
            "except Exception:",
            "except OSError:",
        ),
        _SERVICE,
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
