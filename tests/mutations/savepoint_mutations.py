"""What a savepoint shares with others, what goes with it, and what is recorded of it.

Each rule is left out or turned round, with the tests that have to notice.
"""

from __future__ import annotations

from typing import Final

from coord_control.control.agent import driver_records
from coord_control.durable.checkpoints import removal, shared_files
from coord_control.durable.spark_layout import layout
from tests.mutations.mutation import Mutation

__all__ = ["SAVEPOINT_MUTATIONS"]

_SAVEPOINTS: Final = "tests/unit/durable/test_checkpoint_store_savepoints.py"
_LAYOUT: Final = "tests/unit/durable/test_layout.py"
_DISPOSING: Final = "tests/unit/durable/test_catalog.py"
_RECORDED: Final = "tests/unit/control/test_savepoint_import.py"

#: Each with the tests that catch it.
SAVEPOINT_MUTATIONS: Final[tuple[tuple[Mutation, str], ...]] = (
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
            "compare a checkpoint with those of another job",
            removal.dispose_without_owner,
            "job_folder_of(entry.path)",
            "job_folder",
        ),
        _DISPOSING,
    ),
    (
        Mutation(
            "record a savepoint as if it contained no control events",
            driver_records.savepoint_record,
            "part.applied_events.get(record.job, 0)",
            "0",
        ),
        _RECORDED,
    ),
    (
        Mutation(
            "keep one compacted entry of a file source's log, from which Spark derives another interval",
            layout._up_to,
            "yield from (entries[each][0] for each in sorted(before)[-1:])",
            "",
        ),
        f"{_LAYOUT}::test_a_file_sources_log_is_taken_from_its_newest_compaction_to_its_own_offset",
    ),
    (
        Mutation(
            "leave out what the sources of a query without commits have chosen",
            layout.layout_of,
            "needed.update(_source_files(paths, {} if upcoming is None else upcoming.by_source))",
            "pass",
        ),
        f"{_LAYOUT}::test_a_query_that_has_not_committed_needs_what_its_sources_have_chosen",
    ),
    (
        Mutation(
            "leave out the first epoch that is planned and not committed",
            layout.layout_of,
            "if upcoming is not None:",
            "if upcoming is not None and epoch >= 0:",
        ),
        f"{_LAYOUT}::test_the_first_planned_epoch_fixes_how_far_its_sources_are_read",
    ),
)
