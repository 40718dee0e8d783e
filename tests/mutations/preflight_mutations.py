"""What is compared before a restore, what is said of it, and what is left when it is refused.

Each rule is left out or turned round, with the tests that have to notice.
"""

from __future__ import annotations

import inspect
from typing import Final

from coord_control.coordinators import saved_state
from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.offline import offline_restore
from coord_control.durable.restore import preflight, reached
from coord_control.spark.job import pending_restore, saved_checks
from coord_control.spark.job.job_driver import JobDriver
from tests.mutations.mutation import Mutation

__all__ = ["PREFLIGHT_MUTATIONS"]

_SINKS: Final = "tests/unit/durable/test_preflight_sinks.py"
_EARLIER: Final = f"{_SINKS}::test_sinks_that_an_earlier_lineage_has_carried_farther_are_pointed_out"
_PENDING: Final = "tests/unit/spark/test_pending_restore.py"
_SAVED: Final = "tests/unit/spark/test_saved_checks.py"
_FORKS: Final = "tests/unit/durable/test_shuffle_partitions.py"
_COMMANDS: Final = "tests/unit/cli/test_savepoint.py"

#: Each with the tests that catch it.
PREFLIGHT_MUTATIONS: Final[tuple[tuple[Mutation, str], ...]] = (
    (
        Mutation(
            "forget how far a lineage had run that was removed since",
            reached.reached_here,
            "reached.joined(record.restored_from.reached)",
            "reached",
        ),
        _EARLIER,
    ),
    (
        Mutation(
            "forget how far the query had run where the checkpoint comes from",
            reached.reached_with,
            ".joined(snapshot.reached)",
            "",
        ),
        _EARLIER,
    ),
    (
        Mutation(
            "overlook an epoch that was only planned",
            reached._position,
            "max(planned, committed)",
            "committed",
        ),
        f"{_SINKS}::test_an_epoch_that_was_only_planned_is_not_said_to_have_run",
    ),
    (
        Mutation(
            "say that a planned epoch was committed",
            reached._position,
            "committed=committed",
            "committed=max(planned, committed)",
        ),
        f"{_SINKS}::test_an_epoch_that_was_only_planned_is_not_said_to_have_run",
    ),
    (
        Mutation(
            "count a source once however often it is used",
            pending_restore.count_sources,
            "while waiting:\n        node = waiting.pop()\n",
            "seen = []\n    while waiting:\n        node = waiting.pop()\n        if node in seen:\n"
            "            continue\n        seen.append(node)\n",
        ),
        f"{_PENDING}::test_a_source_counts_as_often_as_it_is_used",
    ),
    (
        Mutation(
            "count tables as streams",
            pending_restore.count_sources,
            "not children.size() and node.isStreaming()",
            "not children.size()",
        ),
        f"{_PENDING}::test_a_source_counts_as_often_as_it_is_used",
    ),
    (
        Mutation(
            "drop a field that was saved and has another name now",
            saved_state.parse_saved,
            'by_name=True, extra="forbid")',
            "by_name=True)",
        ),
        "tests/unit/coordinators/test_saved_state.py",
    ),
    (
        Mutation(
            "restore states that the model would drop",
            saved_checks._check_states,
            "state.load(subtask, data)",
            "pass",
        ),
        f"{_SAVED}::test_states_that_the_model_would_drop_are_refused",
    ),
    (
        Mutation(
            "restore a coordinator's state that it cannot read",
            saved_checks._check_coordinator,
            "coordinator.check_saved_state(data)",
            "pass",
        ),
        f"{_SAVED}::test_a_state_that_the_coordinator_could_not_restore_is_refused",
    ),
    (
        Mutation(
            "restore events in transit that do not fit",
            saved_checks._check_events,
            "down += [batch for batches in planned.inputs.values() for batch in batches]",
            "down = []",
        ),
        f"{_SAVED}::test_events_in_transit_that_do_not_fit_are_refused",
    ),
    (
        Mutation(
            "restore a live value that does not fit",
            saved_checks._check_live,
            "model.texts(value)",
            "pass",
        ),
        f"{_SAVED}::test_a_live_value_that_does_not_fit_is_refused",
    ),
    (
        Mutation(
            "leave the folder of a fork that the command refuses",
            inspect.unwrap(offline_restore._own_or_forget),
            "if is_first:",
            "if False:",
        ),
        f"{_FORKS}::test_a_fork_whose_states_spark_refuses_leaves_no_folder",
    ),
    (
        Mutation(
            "leave the folder of a fork that the driver refuses",
            JobDriver._release,
            "self._is_unborn() and remove_unborn(self.place.files, self.place.folder)",
            "False",
        ),
        "tests/spark/test_restore_refusals.py::test_a_refused_fork_leaves_nothing",
    ),
    (
        Mutation(
            "propose a folder without a checkpoint",
            Catalog._beside,
            " if files.exists(join(path, METADATA_NAME))",
            "",
        ),
        f"{_COMMANDS}::test_what_is_proposed_for_a_folder_without_a_checkpoint_is_one",
    ),
    (
        Mutation(
            "take a damaged file for a wrong request",
            preflight._files_check,
            ", is_damage=True",
            "",
        ),
        f"{_COMMANDS}::test_what_is_damaged_ends_with_one_code_and_leaves_nothing",
    ),
)
