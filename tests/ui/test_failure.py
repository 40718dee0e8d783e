"""Why a checkpoint failed, and what to do."""

from __future__ import annotations

import pytest

from coord_control.protocol.failures import FailureReason
from coord_control.protocol.scheduler.tickets import CheckpointOutcome
from coord_control.storage.records import CheckpointRecord, CheckpointState
from coord_control.ui.failure import Failure, failure_of
from tests import records_kit as records


def failed(reason: str | None, message: str) -> CheckpointRecord:
    return records.checkpoint(state=CheckpointState.FAILED, reason=reason, message=message)


@pytest.mark.parametrize("reason", list(FailureReason))
def test_every_reason_says_what_has_happened_and_what_to_do_next(reason: FailureReason) -> None:
    found = failure_of(failed(reason.code, CheckpointOutcome(reason, "disk (sda) is full").message))
    assert found is not None
    assert (found.code, found.detail) == (reason.code, "disk (sda) is full")
    assert found.happened
    assert found.next_step
    assert reason.sentence == f"{found.happened}; {found.next_step}"


def test_without_a_detail_there_is_none() -> None:
    found = failure_of(failed("aborted", FailureReason.ABORTED.sentence))
    assert found == Failure("aborted", "it was aborted on request", "ask again to have one", "")


def test_a_reason_of_another_release_is_told_as_it_is() -> None:
    assert failure_of(failed("moon_phase", "wait a week")) == Failure("moon_phase", "wait a week", "", "")


def test_what_has_not_failed_has_no_reason() -> None:
    assert failure_of(failed(None, "")) is None
