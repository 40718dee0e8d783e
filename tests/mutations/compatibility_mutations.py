"""What is refused on a Spark that cannot do it, and where the tables of other formats stood.

Each rule is left out or turned round, with the tests that have to notice.
"""

from __future__ import annotations

from typing import Final

from coord_control.spark import session
from coord_control.spark.sinks import delta, iceberg
from tests.mutations.mutation import Mutation

__all__ = ["COMPATIBILITY_MUTATIONS"]

_SESSION: Final = "tests/unit/spark/test_session.py"
_POSITIONS: Final = "tests/unit/spark/test_table_positions.py"

#: Each with the tests that catch it.
COMPATIBILITY_MUTATIONS: Final[tuple[tuple[Mutation, str], ...]] = (
    (
        Mutation("declare operators on any Spark", session.require_operators, "not can_place_rows(version)", "False"),
        _SESSION,
    ),
    (
        Mutation("look at the first number of a version alone", session._release, "int(found[2])", "0"),
        _SESSION,
    ),
    (
        Mutation(
            "take a session of Spark Connect",
            session.require_classic,
            'not hasattr(spark, "_jsparkSession")',
            "False",
        ),
        _SESSION,
    ),
    (
        Mutation(
            "take the newest version of a table for that of an epoch", delta.newest_version, "held <= epoch", "True"
        ),
        _POSITIONS,
    ),
    (
        Mutation(
            "overlook that a table was set back",
            delta.epoch_at,
            "commit.version - 1 if commit.restored is None else commit.restored",
            "commit.version - 1",
        ),
        _POSITIONS,
    ),
    (
        Mutation(
            "take the newest snapshot of a table for that of an epoch",
            iceberg.newest_snapshot,
            "held is not None and held <= epoch",
            "True",
        ),
        _POSITIONS,
    ),
    (
        Mutation(
            "drop what others have written behind the epoch",
            iceberg.newest_snapshot,
            "if held is not None:",
            "if True:",
        ),
        _POSITIONS,
    ),
)
