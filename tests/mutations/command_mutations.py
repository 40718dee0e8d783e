"""What commands do to a job that ends or does not run, and what the next driver does with them.

Each rule is left out or turned round, with the tests that have to notice.
"""

from __future__ import annotations

import inspect
from typing import Final

from coord_control.cli import job_places
from coord_control.control import commands
from coord_control.control.agent.agent import Agent
from coord_control.control.agent.executor import Executor
from coord_control.control.agent.reporter import Reporter
from coord_control.control.commands import restore
from coord_control.control.commands.restore import Restore, RestoreExecution
from coord_control.control.commands.stop import StopExecution
from coord_control.control.execution.ending import Ending
from tests.mutations.mutation import Mutation

__all__ = ["COMMAND_MUTATIONS"]

_ENDING: Final = "tests/unit/control/test_agent.py"
_TAKEOVER: Final = "tests/unit/control/test_command_takeover.py"
_UNREADABLE: Final = f"{_TAKEOVER}::test_a_command_that_this_release_cannot_read_is_carried_out_again_which_refuses_it"
_RESTORED: Final = f"{_TAKEOVER}::test_whether_a_restore_was_done_does_not_depend_on_anybodys_clock"
_FOLLOWED: Final = "tests/unit/control/test_ending_commands.py::test_a_job_that_is_started_again_was_not_stopped"
_TURNS: Final = "tests/unit/control/test_ending_commands.py"
_IN_ORDER: Final = (
    "tests/unit/control/test_agent_outages.py"
    "::test_a_command_is_never_completed_before_its_checkpoint_is_in_the_history"
)
_KEYS: Final = "tests/unit/cli/test_savepoint_running.py"

#: Each with the tests that catch it.
COMMAND_MUTATIONS: Final[tuple[tuple[Mutation, str], ...]] = (
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
            "write the outcome of a command before the record of its checkpoint",
            Reporter.flush,
            "for fact in facts:",
            "for fact in reversed(facts):",
        ),
        _IN_ORDER,
    ),
    (
        Mutation(
            "let a command that cannot be read stop the agent",
            commands.take_over,
            "except ValidationError:",
            "except KeyError:",
        ),
        _UNREADABLE,
    ),
    (
        Mutation(
            "complete a stop although the job has failed and is restarted",
            StopExecution.job_ended,
            " or ending.has_next_driver",
            "",
        ),
        _FOLLOWED,
    ),
    (
        Mutation(
            "complete a stop although another command restarts the job",
            vars(Ending)["has_next_driver"].fget,
            "self.is_followed or is_restarted",
            "self.is_followed",
        ),
        _FOLLOWED,
    ),
    (
        Mutation(
            "begin every command that ends the job at once",
            Executor._queue,
            "if self._line == [command.id]:",
            "if True:",
        ),
        f"{_TURNS}::test_a_stop_waits_for_the_savepoint_of_an_earlier_stop",
    ),
    (
        Mutation(
            "never begin the next command that ends the job",
            Executor._end,
            "if is_first and self._line and not self._has_ended:",
            "if False:",
        ),
        f"{_TURNS}::test_one_command_after_the_other_ends_the_job",
    ),
    (
        Mutation(
            "let a stop that is taken over overtake a stop with savepoint",
            Agent._take_over,
            " and self._early.is_open and may_end",
            " and self._early.is_open",
        ),
        f"{_TURNS}::test_what_comes_after_a_restart_is_left_to_the_next_driver",
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
            "do a restore again whose outcome was not given",
            Restore.take_over,
            "done or find_restore(port.files, folder, command_key(command))",
            "done",
        ),
        _RESTORED,
    ),
    (
        Mutation(
            "take a restore for this one that came before it was claimed",
            restore._restored_by_others,
            " or newest.generation <= command.generation",
            "",
        ),
        f"{_TAKEOVER}::test_a_restore_from_the_same_folder_before_this_one_was_claimed_is_another_one",
    ),
    (
        Mutation(
            "compare the clocks of a driver and of the database to see whether a restore was done",
            restore._restored_by_others,
            "newest.generation <= command.generation",
            "(command.claimed_at and newest.committed_at < command.claimed_at)",
        ),
        _RESTORED,
    ),
)
