"""Where a query stands, and which states it passes.

Each rule is left out or turned round, with the tests that have to notice.
"""

from __future__ import annotations

from typing import Final

from coord_control.protocol import query_state
from coord_control.spark.checkpoints.sink_position import sink_at
from coord_control.spark.queries import restart_policy
from coord_control.spark.queries.query import ManagedQuery
from coord_control.spark.queries.writers import start_run
from coord_control.storage import jobs
from tests.mutations.mutation import Mutation

__all__ = ["QUERY_MUTATIONS"]

_PROGRESS: Final = (
    "tests/storage/test_jobs.py::test_a_new_driver_does_not_show_where_the_queries_stood_under_an_older_one"
)

_HANGING: Final = "tests/unit/spark/test_query.py::test_a_query"

#: Each with the tests that catch it.
QUERY_MUTATIONS: Final[tuple[tuple[Mutation, str], ...]] = (
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
            "let a query that has ended run again",
            query_state.next_state,
            "return TRANSITIONS[state, input_]",
            "return TRANSITIONS.get((state, input_), QueryState.RUNNING)",
        ),
        "tests/unit/protocol/test_query_state.py",
    ),
    (
        Mutation(
            "end a query for good because its storage hangs when it is started again",
            ManagedQuery._conclude,
            "except Exception as again:",
            "except CoordControlError as again:",
        ),
        _HANGING,
    ),
    (
        Mutation(
            "end a query for good because its storage hangs when its run has ended",
            ManagedQuery._finish_run,
            "except (CoordControlError, TimeoutError) as error:",
            "except CoordControlError as error:",
        ),
        _HANGING,
    ),
    (
        Mutation(
            "end a query for good because of an error of something outside",
            restart_policy.may_retry,
            "not isinstance(error, CoordControlError) or error.retry",
            "isinstance(error, CoordControlError) and error.retry",
        ),
        _HANGING,
    ),
    (
        Mutation(
            "take a sink that skips an epoch with state for another driver",
            restart_policy.not_reported,
            '"STATE_STORE_COMMIT_VALIDATION_FAILED" in str(innermost)',
            "False",
        ),
        "tests/unit/spark/test_restart_policy.py::test_a_sink_that_has_not_run_an_epoch_is_told_from_another_driver",
    ),
    (
        Mutation(
            "end a query for good behind a function that skips what ran before the crash",
            ManagedQuery._settle_run,
            "committed <= self._planned_at_start",
            "False",
        ),
        "tests/spark/test_job_sink_skips.py::test_a_driver_that_dies_behind_such_a_function_is_no_reason_to_end_the_query",
    ),
    (
        Mutation(
            "write elsewhere than to the table",
            start_run,
            "writer.start() if table is None else writer.toTable(table)",
            "writer.start()",
        ),
        "tests/spark/test_tables.py::test_a_query_writes_to_a_table_with_all_that_was_set_on_its_writer",
    ),
    (
        Mutation(
            "fail a checkpoint because a sink does not answer",
            sink_at,
            "except Exception as error:",
            "except KeyError as error:",
        ),
        "tests/unit/spark/test_sink_position.py",
    ),
)
