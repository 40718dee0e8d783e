"""How a restore is checked, takes place and is undone, and how a restored job starts.

Each rule is left out or turned round, with the tests that have to notice.
"""

from __future__ import annotations

from typing import Final

from coord_control.durable.job_folder import restore_log
from coord_control.durable.job_folder.lineage_record import LineageRecord, RestoredFrom
from coord_control.durable.job_folder.restore_log import standing_restores
from coord_control.durable.offline import undo
from coord_control.durable.restore import prepared_restore
from coord_control.spark.job import driver_takeover
from coord_control.spark.job.pending_restore import AppliedRestore, PendingRestore
from coord_control.spark.job.query_starts import QueryStarts
from coord_control.spark.queries import kafka_offsets, plan_check, start_check
from tests.mutations.mutation import Mutation

__all__ = ["RESTORE_MUTATIONS"]

_UNDOING: Final = "tests/unit/durable/test_undo.py"
_RESTORING: Final = "tests/unit/durable/test_prepared_restore.py"
_LOG: Final = "tests/unit/durable/test_restore_log.py"
_SEEDS: Final = "tests/unit/durable/test_seeds.py"
_PENDING: Final = "tests/unit/spark/test_pending_restore.py"
_REFUSALS: Final = "tests/spark/test_restore_refusals.py"
_STARTS: Final = "tests/spark/test_start_check.py"
_TOGETHER: Final = f"{_REFUSALS}::test_all_queries_of_a_checkpoint_start_together"
_OUTSIDE: Final = f"{_REFUSALS}::test_all_queries_of_a_job_that_was_restored_from_outside_start_together"

#: Each with the tests that catch it.
RESTORE_MUTATIONS: Final[tuple[tuple[Mutation, str], ...]] = (
    (
        Mutation(
            "let a restore take place that was begun before the driver",
            driver_takeover.take_over,
            "if claim.previous is not None:",
            "if False:",
        ),
        "tests/unit/spark/test_driver_takeover.py",
    ),
    (
        Mutation(
            "take a number that is free again for a restore",
            restore_log._newest_first,
            "if below is not None and number > below:",
            "if False:",
        ),
        _LOG,
    ),
    (
        Mutation(
            "seal without looking whether a restore has the number",
            restore_log.seal_restores,
            "continue  # a restore has taken place before, and counts",
            "pass",
        ),
        _LOG,
    ),
    (
        Mutation(
            "give a restore the number after the newest one",
            prepared_restore.prepare_restore,
            "next_number(files, job_folder)",
            "(newest.number if newest else 0) + 1",
        ),
        _LOG,
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
            "self._wanted or AppliedRestore.find(self._place.files, self._launch.job, self._place.folder)",
            "self._wanted",
        ),
        _OUTSIDE,
    ),
    (
        Mutation(
            "do not let Spark check the plan of a restored query",
            QueryStarts._check,
            "restore.check_plan(start.name, self._plan_refusal(start, lineage))",
            "pass",
        ),
        _OUTSIDE,
    ),
    (
        Mutation(
            "do not let Spark check the start of a restored query",
            QueryStarts._check,
            "restore.check_start(start.name, self._start_refusal(start))",
            "pass",
        ),
        _STARTS,
    ),
    (
        Mutation(
            "do not let Spark check the plan of a query that has committed nothing",
            plan_check.check_plan,
            "if planned == NO_EPOCH:",
            "if committed == NO_EPOCH:",
        ),
        _STARTS,
    ),
    (
        Mutation(
            "leave the empty log of a file sink that was only tried",
            start_check._start,
            "_remove_empty_log(storage, query, writer)",
            "pass",
        ),
        _STARTS,
    ),
    (
        Mutation(
            "create the table of a query whose start is only tried",
            start_check.check_start,
            "if table is not None and not writer._df.sparkSession.catalog.tableExists(table):",
            "if False:",
        ),
        _STARTS,
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
            "apply a label or `latest` again when it means another checkpoint",
            prepared_restore.applied_restore,
            "or (ref == restore.ref and (restore.by_program or ref == LATEST)):",
            ":",
        ),
        _RESTORING,
    ),
    (
        Mutation(
            "restore although Kafka has removed what is needed",
            kafka_offsets._missing,
            "if position < earliest:",
            "if False:",
        ),
        "tests/unit/spark/test_kafka_offsets.py",
    ),
    (
        Mutation(
            "ask Kafka for the offsets of the reader that is ahead",
            kafka_offsets.needed_offsets,
            "min(found.get(key, int(position)), int(position))",
            "max(found.get(key, int(position)), int(position))",
        ),
        "tests/unit/spark/test_kafka_offsets.py",
    ),
)
