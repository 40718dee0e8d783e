"""What is kept of a job's past, and what is counted in it.

Each rule is left out or turned round, with the tests that have to notice.
"""

from __future__ import annotations

from typing import Final

from coord_control.control.agent import registration
from coord_control.control.agent.agent import Agent
from coord_control.durable.offline import offline_restore
from coord_control.protocol.epoch import Participant
from coord_control.protocol.operator import OperatorRun
from coord_control.storage import restorable
from tests.mutations.mutation import Mutation

__all__ = ["HISTORY_MUTATIONS"]

_RETENTION: Final = "tests/storage/test_retention.py"
_OLDEST: Final = (
    f"{_RETENTION}::test_control_events_above_the_oldest_number_that_can_be_restored_stay_whatever_the_clocks_say"
)
_DIFFERING: Final = (
    "tests/unit/protocol/test_operator.py::test_a_second_ack_with_another_result_replaces_the_first_and_is_reported"
)

#: Each with the tests that catch it.
HISTORY_MUTATIONS: Final[tuple[tuple[Mutation, str], ...]] = (
    (
        Mutation(
            "register a driver of a new folder over the history of an older one",
            registration.register,
            "_is_another(port, row, registration)",
            "False",
        ),
        "tests/unit/control/test_agent.py::test_a_job_does_not_begin_in_a_folder_that_has_seen_fewer_drivers_than_the_database",
    ),
    (
        Mutation(
            "begin a job whose name has the history of another folder",
            Agent.start,
            "self._mismatch is not None",
            "False",
        ),
        "tests/unit/control/test_agent.py::test_a_job_does_not_begin_in_a_folder_that_has_seen_fewer_drivers_than_the_database",
    ),
    (
        Mutation(
            "restore into a new root below the drivers that the database has seen",
            offline_restore.restore_job,
            "max(source.metadata.generation, above)",
            "source.metadata.generation",
        ),
        "tests/unit/test_docs_procedures.py::test_a_job_whose_root_was_lost_keeps_its_history",
    ),
    (
        Mutation(
            "keep events only for the newest checkpoint",
            restorable.is_in_every_restorable_state,
            "_commands.number <= min(numbers)",
            "_commands.number <= max(numbers)",
        ),
        _OLDEST,
    ),
    (
        Mutation(
            "remove events that the job itself does not have durably",
            restorable.is_in_every_restorable_state,
            "[current[operator]] if operator in current else []",
            "[]",
        ),
        f"{_RETENTION}::test_a_job_that_was_set_back_keeps_the_events_above_its_own_durable_number",
    ),
    (
        Mutation(
            "remove events that a checkpoint in progress may need",
            restorable._of_checkpoints,
            "or_(checkpoints.state == CheckpointState.COMPLETED, is_under_way)",
            "checkpoints.state == CheckpointState.COMPLETED",
        ),
        f"{_RETENTION}::test_a_checkpoint_in_progress_keeps_events_while_its_driver_may_complete_it",
    ),
    (
        Mutation(
            "remove events that an imported savepoint lacks",
            restorable.is_in_every_restorable_state,
            ", *_of_imported(transaction, job)",
            "",
        ),
        f"{_RETENTION}::test_a_savepoint_that_no_checkpoint_of_this_database_tells_of_keeps_events_too",
    ),
    (
        Mutation(
            "do not notice that a second ack differs",
            Participant.acknowledge,
            "self.differed = True",
            "pass",
        ),
        _DIFFERING,
    ),
    (
        Mutation(
            "count no subtask whose acks differed",
            OperatorRun._summarise,
            "sum(participant.differed for _, participant, _ in acked)",
            "0",
        ),
        _DIFFERING,
    ),
)
