"""The reasons why a checkpoint fails: what is decided by each, and which one an error stands for."""

from __future__ import annotations

import errno
import os

import pytest

from coord_control.errors import (
    CoordControlError,
    CoordinatorFailed,
    CoordinatorTimeout,
    Fault,
    Fenced,
    StateTooLarge,
    StoreUnavailable,
)
from coord_control.protocol import failures
from coord_control.protocol.failures import FailureReason, reason_of

#: Those that fail a job in the end; all others are not the checkpoint's own doing.
COUNTED = {
    FailureReason.COORDINATOR_FAILED,
    FailureReason.COORDINATOR_TIMEOUT,
    FailureReason.EXPIRED,
    FailureReason.STORAGE_ERROR,
    FailureReason.DISK_FULL,
    FailureReason.FILES_PURGED,
    FailureReason.FINALISE_FAILED,
    FailureReason.INTERNAL,
}

PREFLIGHT = {
    FailureReason.QUEUE_FULL,
    FailureReason.MIN_PAUSE,
    FailureReason.NOT_RUNNING,
    FailureReason.KEY_REUSED,
    FailureReason.LABEL_TAKEN,
    FailureReason.INVALID_TARGET,
}

NOBODYS = {
    FailureReason.MIN_PAUSE,
    FailureReason.NOT_RUNNING,
    FailureReason.QUERY_RESTARTING,
    FailureReason.QUERY_FAILED,
    FailureReason.JOB_ENDING,
    FailureReason.ABORTED,
}


def caused(error: CoordControlError, cause: BaseException) -> CoordControlError:
    error.__cause__ = cause
    return error


def test_these_and_no_others_count_against_the_tolerance() -> None:
    assert {reason for reason in FailureReason if reason.counts} == COUNTED


def test_these_and_no_others_are_found_before_any_coordinator_is_asked() -> None:
    assert {reason for reason in FailureReason if reason.is_preflight} == PREFLIGHT


def test_these_and_no_others_are_nobodys_fault() -> None:
    assert {reason for reason in FailureReason if reason.fault is None} == NOBODYS


def test_the_same_request_may_succeed_unless_somebody_has_to_act_first() -> None:
    assert {reason for reason in FailureReason if not reason.retry} == {
        FailureReason.KEY_REUSED,
        FailureReason.LABEL_TAKEN,
        FailureReason.INVALID_TARGET,
        FailureReason.FENCED,
        FailureReason.DISK_FULL,
    }


def test_a_sentence_that_advises_to_ask_again_is_of_a_reason_that_allows_it() -> None:
    """Bug: a job that was ending advised to start it again, and the Dagster run that re-executing would not help."""
    advised = {reason for reason in FailureReason if "ask again" in reason.sentence}
    assert FailureReason.JOB_ENDING in advised
    assert all(reason.retry for reason in advised)


def test_only_a_bug_is_our_fault() -> None:
    assert [reason for reason in FailureReason if reason.fault is Fault.INTERNAL] == [FailureReason.INTERNAL]


def test_what_is_nobodys_fault_does_not_count() -> None:
    assert not {reason for reason in FailureReason if reason.fault is None and reason.counts}


@pytest.mark.parametrize("reason", FailureReason)
def test_every_sentence_says_what_happened_and_what_to_do_next(reason: FailureReason) -> None:
    happened, _, next_step = reason.sentence.partition("; ")
    assert happened
    assert next_step
    assert not reason.sentence.endswith(".")
    assert reason.sentence[0].islower() or reason.sentence.startswith("Spark")


@pytest.mark.parametrize(
    ("reason", "setting"),
    [
        (FailureReason.QUEUE_FULL, "queue_limit"),
        (FailureReason.MIN_PAUSE, "min_pause_seconds"),
        (FailureReason.COORDINATOR_TIMEOUT, "snapshot_timeout_seconds"),
        (FailureReason.EXPIRED, "timeout_seconds"),
        (FailureReason.FILES_PURGED, "spark.sql.streaming.minBatchesToRetain"),
    ],
)
def test_a_sentence_names_the_setting_that_is_to_be_changed(reason: FailureReason, setting: str) -> None:
    assert setting in reason.sentence


def test_the_sentences_differ() -> None:
    assert len({reason.sentence for reason in FailureReason}) == len(FailureReason)


def test_the_table_of_flinks_names_has_a_row_for_every_reason() -> None:
    rows = [line.split("|")[1] for line in (failures.__doc__ or "").splitlines() if line.startswith("| ")]
    named = {name.strip() for row in rows[1:] for name in row.split(",")}
    assert named - {"----------------------------------"} == {reason.name for reason in FailureReason}


def test_the_code_is_what_json_and_logs_show() -> None:
    assert FailureReason.QUEUE_FULL.code == "queue_full"
    assert [FailureReason[reason.code.upper()] for reason in FailureReason] == list(FailureReason)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Fenced("job", 3, 4), FailureReason.FENCED),
        (CoordinatorTimeout("op", 60), FailureReason.COORDINATOR_TIMEOUT),
        (CoordinatorFailed("op", "checkpoint_coordinator", "boom"), FailureReason.COORDINATOR_FAILED),
        (StateTooLarge("op", 0, 3, 2), FailureReason.COORDINATOR_FAILED),
        (StoreUnavailable("/checkpoints/1", "write", "gone"), FailureReason.STORAGE_ERROR),
        (PermissionError(errno.EACCES, "no"), FailureReason.STORAGE_ERROR),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), FailureReason.DISK_FULL),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), FailureReason.DISK_FULL),
        (StoreUnavailable("/a", "write", "java.io.IOException: No space left on device"), FailureReason.DISK_FULL),
        (StoreUnavailable("/a", "write", "DSQuotaExceededException: 1 B"), FailureReason.DISK_FULL),
        (ValueError("a bug"), FailureReason.INTERNAL),
        (ValueError("No space left on device"), FailureReason.INTERNAL),
    ],
)
def test_an_error_stands_for_a_reason(error: BaseException, reason: FailureReason) -> None:
    assert reason_of(error) is reason


def test_a_full_disk_is_found_behind_the_error_that_it_caused() -> None:
    error = caused(StoreUnavailable("/a", "write", "x"), OSError(errno.ENOSPC, "full"))
    assert reason_of(error) is FailureReason.DISK_FULL


def test_the_first_known_error_of_the_chain_decides() -> None:
    error = ValueError("unknown")
    error.__cause__ = caused(Fenced("job", 3), OSError(errno.EIO, "x"))
    assert reason_of(error) is FailureReason.FENCED


def test_a_circle_of_causes_is_no_trap() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert reason_of(first) is FailureReason.INTERNAL
