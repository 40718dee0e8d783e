"""The last lines of a log, whatever its size."""

from __future__ import annotations

from pathlib import Path

from coord_control.log_tail import log_tail


def test_the_last_lines_are_returned(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    log.write_text("".join(f"line {number}\n" for number in range(100_000)))
    assert log_tail(log, 2) == "line 99998\nline 99999"
    assert log_tail(str(log), 10_000).startswith("line ") is False  # it begins within a line
    log.write_bytes(b"caf\xe9")
    assert log_tail(log, 20) == "caf\N{REPLACEMENT CHARACTER}"


def test_a_log_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert log_tail(None, 20) == ""
    assert log_tail(tmp_path / "driver.log", 20) == ""
