"""What waits for a subtask: how it gets there when it is large, and how it is dropped.

Each rule is left out or turned round, with the tests that have to notice.
"""

from __future__ import annotations

from typing import Final

from coord_control.durable.offline import mailboxes
from coord_control.protocol import mailbox
from coord_control.spark.wire import frame_codec
from coord_control.spark.wire.connection import Connection
from tests.mutations.mutation import Mutation

__all__ = ["DELIVERY_MUTATIONS"]

_LARGE: Final = "tests/unit/spark/test_endpoint_defects.py::test_a_welcome_that_is_larger_than_a_frame_arrives"
_RULES: Final = "tests/unit/protocol/test_mailbox.py"
_STORED: Final = "tests/unit/durable/test_mailboxes.py"

#: Each with the tests that catch it.
DELIVERY_MUTATIONS: Final[tuple[tuple[Mutation, str], ...]] = (
    (
        Mutation(
            "send a large answer in one frame",
            frame_codec.encode_answer,
            "if len(body) <= most:",
            "if True:",
        ),
        _LARGE,
    ),
    (
        Mutation(
            "take the last piece of a large answer for all of it",
            Connection._receive_answer,
            'b"".join((*pieces, body)) if pieces else body',
            "body",
        ),
        _LARGE,
    ),
    (
        Mutation(
            "drop inputs that an attempt has completed with",
            mailbox.drop,
            " or other not in unconsumed",
            "",
        ),
        _RULES,
    ),
    (
        Mutation(
            "keep what a checkpoint holds for a mailbox that is dropped",
            mailbox.drop,
            "begin.held.items() if other != subtask",
            "begin.held.items()",
        ),
        _RULES,
    ),
    (
        Mutation(
            "report a mailbox as dropped that a newer driver has recovered",
            mailboxes.drop_mailbox,
            'claim.verify(job_folder.rstrip("/").rpartition("/")[2])',
            "pass",
        ),
        f"{_STORED}::test_a_drop_that_a_driver_overtakes_is_not_reported",
    ),
    (
        Mutation(
            "drop a mailbox that the next start would seed again",
            mailboxes.drop_mailbox,
            "if lineage.restored is not None:",
            "if False:",
        ),
        f"{_STORED}::test_what_was_restored_and_has_not_run_is_started_first",
    ),
)
