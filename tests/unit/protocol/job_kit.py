"""What the tests of the job's core look for in a batch."""

from __future__ import annotations

from coord_control.errors import CoordinatorFailed
from coord_control.protocol.messages import Batch, FailQuery, Refused
from tests.core_kit import OP, answer_to, of_type

BROKEN = CoordinatorFailed(OP, "handle_event_from_operator", "Traceback: boom")


def refusal(batch: Batch, token: object) -> str:
    answer = answer_to(batch, token)
    assert isinstance(answer, Refused), answer
    return answer.reason


def failure(batch: Batch) -> FailQuery | None:
    found = of_type(FailQuery, batch)
    assert len(found) <= 1
    return found[0] if found else None
