"""How a coordinator sends, also from other threads.

Each rule is left out or turned round, with the tests that have to notice.
"""

from __future__ import annotations

from typing import Final

from coord_control.spark.loop.coordinator_context import Context
from tests.mutations.mutation import Mutation

__all__ = ["SENDING_MUTATIONS"]

_SENDING: Final = "tests/unit/spark/test_coordinator_context.py"

#: Each with the tests that catch it.
SENDING_MUTATIONS: Final[tuple[tuple[Mutation, str], ...]] = (
    (
        Mutation(
            "forget an event that was added while the loop took the others", Context.send, "run.is_taken", "False"
        ),
        _SENDING,
    ),
    (
        Mutation(
            "deliver what the loop missed after what was sent later",
            Context._send_missed,
            "for subtask, payloads in run.take():",
            "self._owner.post(partial(self._deliver, run))\n    for subtask, payloads in []:",
        ),
        _SENDING,
    ),
    (
        Mutation(
            "add events to the ones before a snapshot that was given meanwhile",
            Context._post,
            "self._run = None",
            "pass",
        ),
        _SENDING,
    ),
)
