from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coord_control.control.client.command_wait import CommandWait, progress_text, result_of
from coord_control.control.commands import CheckpointResult
from coord_control.errors import (
    CommandCancelled,
    CommandExpired,
    CommandFailed,
    CommandRefused,
    CommandTimeout,
    ControlEventRefused,
    Fault,
    JobNotRunning,
)
from coord_control.exit_codes import ExitCode, exit_code_of
from coord_control.storage.records import CommandError, CommandKind, CommandRecord, CommandState
from tests import records_kit as records
from tests.records_kit import NOON

_PENDING = records.command()
_RESULT: dict[str, Any] = {
    "checkpoint": 7,
    "kind": "checkpoint",
    "path": "/c/7",
    "duration_seconds": 1.0,
    "state_bytes": 2,
}
_DONE = replace(_PENDING, state=CommandState.COMPLETED, result=_RESULT)


def _ended(state: CommandState, **error: Any) -> CommandRecord:
    return replace(_PENDING, state=state, error=CommandError(**error) if error else None)


def test_it_looks_often_at_first_and_less_often_later() -> None:
    wait = CommandWait(None, None, now=0.0)

    pauses = [wait.pause_after(_PENDING, 0.0) for _ in range(60)]

    found = [pause for pause in pauses if pause is not None]
    assert (found[0], found[-1]) == (0.003, 0.5)
    assert found == sorted(found)
    assert wait.pause_after(_DONE, 0.0) is None


def test_the_last_look_is_at_the_end_of_the_time() -> None:
    wait = CommandWait(1.0, None, now=10.0)

    assert wait.pause_after(_PENDING, 10.999) == pytest.approx(0.001)
    with pytest.raises(CommandTimeout, match=r"still pending after 1 s and continues: .*command cancel c1") as raised:
        wait.pause_after(_PENDING, 11.0)
    assert raised.value.retry


def test_a_command_that_is_over_is_no_timeout() -> None:
    assert CommandWait(0.0, None, now=0.0).pause_after(_DONE, 5.0) is None


def test_only_changes_are_reported_and_the_end_is_one() -> None:
    seen: list[CommandRecord] = []
    wait = CommandWait(None, seen.append, now=0.0)
    claimed = replace(_PENDING, state=CommandState.CLAIMED)
    halfway = replace(claimed, progress={"passed_subtasks": 2})

    for record in (_PENDING, _PENDING, claimed, halfway, halfway, _DONE):
        wait.pause_after(record, 0.0)

    assert seen == [_PENDING, claimed, halfway, _DONE]


def test_a_result_has_the_type_of_its_kind() -> None:
    assert result_of(_DONE) == CheckpointResult(**_RESULT)


@pytest.mark.parametrize(
    ("state", "error", "code"),
    [
        (CommandState.FAILED, CommandFailed, ExitCode.DATA),
        (CommandState.REFUSED, CommandRefused, ExitCode.DATA),
        (CommandState.EXPIRED, CommandExpired, ExitCode.DATA),
        (CommandState.CANCELLED, CommandCancelled, ExitCode.DATA),
    ],
)
def test_every_other_end_is_an_error_of_its_own(state: CommandState, error: type[CommandFailed], code: int) -> None:
    ended = _ended(state, code="TIMEOUT", message="too slow", fault="external")

    with pytest.raises(error, match=r"\(TIMEOUT\): too slow") as raised:
        result_of(ended)
    assert type(raised.value) is error
    assert (raised.value.command, raised.value.code) == ("c1", "TIMEOUT")
    assert exit_code_of(raised.value) == code


@pytest.mark.parametrize(
    ("fault", "retry", "code"),
    [("user", False, ExitCode.CONFIG), ("external", True, ExitCode.TEMPORARY), ("internal", False, ExitCode.INTERNAL)],
)
def test_what_the_driver_says_of_an_error_decides_the_exit_code(fault: str, retry: bool, code: int) -> None:
    with pytest.raises(CommandFailed) as raised:
        result_of(_ended(CommandState.FAILED, code="X", message="y", fault=fault, retry=retry))
    assert (raised.value.fault, raised.value.retry) == (Fault(fault), retry)
    assert exit_code_of(raised.value) == code


def test_an_event_that_does_not_fit_its_model_says_where() -> None:
    wrong = {"loc": ["minutes"], "msg": "Field required"}
    ended = _ended(CommandState.REFUSED, code="EVENT_INVALID", message="no Threshold", fault="user", fields=(wrong,))

    with pytest.raises(ControlEventRefused) as raised:
        result_of(replace(ended, kind=CommandKind.SEND_EVENT))
    assert raised.value.fields == (wrong,)


def test_a_job_that_does_not_run_is_said_as_that() -> None:
    known = {"since": "2026-03-01", "reason": "stopped"}
    ended = _ended(CommandState.REFUSED, code="JOB_NOT_RUNNING", message="x", retry=True, fields=(known,))

    with pytest.raises(JobNotRunning, match=r"not been running since 2026-03-01 \(stopped\); start it with") as raised:
        result_of(ended)
    assert raised.value.command == "c1"


def test_an_end_without_a_reason_is_still_an_end() -> None:
    with pytest.raises(CommandCancelled):
        result_of(_ended(CommandState.CANCELLED))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "waiting for the job's driver"),
        ({"claimed_at": NOON}, "in progress"),
        (
            {"progress": {"subtasks": 4, "passed_subtasks": 3, "blocked_events": 12}},
            "3 of 4 subtasks, 12 events blocked",
        ),
        ({"progress": {"message": "copying", "subtasks": 4, "passed_subtasks": 4}}, "copying, 4 of 4 subtasks"),
        (
            {"progress": {"message": "1 of 4 subtasks have passed", "subtasks": 4, "passed_subtasks": 1}},
            "1 of 4 subtasks have passed",
        ),
        ({"progress": {"something": "that a newer driver says"}}, "waiting for the job's driver"),
    ],
)
def test_how_far_a_command_is(changes: dict[str, Any], text: str) -> None:
    assert progress_text(replace(_PENDING, **changes)) == text
