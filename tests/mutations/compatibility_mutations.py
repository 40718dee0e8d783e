"""What is refused on a Spark that cannot do it.

Each rule is left out, with the tests that have to notice.
"""

from __future__ import annotations

from typing import Final

from coord_control.spark import session
from tests.mutations.mutation import Mutation

__all__ = ["COMPATIBILITY_MUTATIONS"]

_SESSION: Final = "tests/unit/spark/test_session.py"

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
)
