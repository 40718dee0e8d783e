from __future__ import annotations

import errno

import pytest

from coord_control import exit_codes
from coord_control.errors import (
    CoordinatorFailed,
    DamagedRecord,
    EndpointNotBound,
    Fenced,
    InvalidName,
    InvalidTransition,
    QueryFailed,
    StoreUnavailable,
)
from coord_control.exit_codes import NO_RESTART, ExitCode, exit_code_of

_DAMAGED = DamagedRecord("/jobs/a/1.log", "the checksum differs")


def _caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("boom"), ExitCode.FAILED),
        (SyntaxError("invalid syntax"), ExitCode.CONFIG),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (InvalidName("job", "/"), ExitCode.CONFIG),
        (_DAMAGED, ExitCode.DATA),
        (StoreUnavailable("/jobs/a", "create", "disk full"), ExitCode.TEMPORARY),
        (CoordinatorFailed("op", "start", "Traceback ..."), ExitCode.TEMPORARY),
        (EndpointNotBound("h", range(1, 2), OSError(errno.EADDRINUSE, "taken")), ExitCode.TEMPORARY),
        (EndpointNotBound("h", range(1, 2), OSError(errno.EADDRNOTAVAIL, "not of this machine")), ExitCode.DATA),
        (Fenced("job", 1, 2), ExitCode.FENCED),
        (InvalidTransition("Gateway", "open", "close"), ExitCode.INTERNAL),
        (QueryFailed("q", 3, "the task failed"), ExitCode.FAILED),
        (_caused(QueryFailed("q", 3, "x"), ValueError("the user's function")), ExitCode.FAILED),
        (_caused(QueryFailed("q", 3, "x"), _DAMAGED), ExitCode.DATA),
        (_caused(RuntimeError("own"), _caused(QueryFailed("q", 0, "x"), Fenced("job", 1))), ExitCode.FENCED),
    ],
)
def test_the_fields_of_our_first_error_in_the_chain_decide(error: BaseException, code: ExitCode) -> None:
    assert exit_code_of(error) == code


@pytest.mark.parametrize(("is_start", "code"), [(True, ExitCode.CONFIG), (False, ExitCode.FAILED)])
def test_what_cannot_be_imported_is_for_ever_only_at_the_start(is_start: bool, code: ExitCode) -> None:
    assert exit_code_of(ModuleNotFoundError("No module named 'flights'"), is_start=is_start) == code


def test_a_circle_of_causes_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first

    assert exit_code_of(first) == ExitCode.FAILED


def test_an_error_that_helps_itself_by_a_retry_never_stops_the_supervisor() -> None:
    assert ExitCode.TEMPORARY not in NO_RESTART
    assert ExitCode.FAILED not in NO_RESTART


def test_the_table_names_every_code() -> None:
    rows = [line for line in (exit_codes.__doc__ or "").splitlines() if line.startswith("| ") and "---" not in line]
    documented = {tuple(cell.strip() for cell in row.split("|")[1:3]) for row in rows} - {("code", "name")}

    assert documented == {(str(code.value), code.name) for code in ExitCode}
