"""What a query of the job takes over from a plain one, and the names that keep the queries of two jobs apart.

Each rule is left out or turned round, with the tests that have to notice.
"""

from __future__ import annotations

from typing import Final

from coord_control.durable.job_folder import lineage
from coord_control.spark.job.query_starts import QueryStarts
from coord_control.spark.queries import writers
from tests.mutations.mutation import Mutation

__all__ = ["ADOPTION_MUTATIONS"]

_STARTS: Final = "tests/unit/spark/test_query_starts.py"
_LINEAGES: Final = "tests/unit/durable/test_lineage.py"

#: Each with the tests that catch it.
ADOPTION_MUTATIONS: Final[tuple[tuple[Mutation, str], ...]] = (
    (
        Mutation(
            "leave the checkpoint of the writer behind for the one that the program names",
            QueryStarts._check_own_location,
            "elif own is None or is_same_place(location, used):",
            "else:",
        ),
        _STARTS,
    ),
    (
        Mutation(
            "leave the checkpoint of the writer behind because the query has run elsewhere",
            QueryStarts._check_own_location,
            "found is not None and (own is None or has_location(found[1], location))",
            "found is not None",
        ),
        _STARTS,
    ),
    (
        Mutation(
            "leave the checkpoint behind that the session's setting gives the query",
            QueryStarts._check_own_location,
            "if own is None and by_session is not None and self._has_run(by_session):",
            "if False:",
        ),
        _STARTS,
    ),
    (
        Mutation(
            "begin empty in a folder that is no checkpoint",
            lineage._begin,
            "_check_adoptable(files, query, checkpoint)",
            "pass",
        ),
        _LINEAGES,
    ),
    (
        Mutation("give the queries of two jobs one name", writers.spark_name, 'f"{job}:{query}"', "query"),
        _STARTS,
    ),
)
