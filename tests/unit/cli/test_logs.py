from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coord_control.storage.store import ControlStore
from tests import control_kit as kit
from tests.cli_kit import run


@pytest.fixture
def log(tmp_path: Path, store: ControlStore) -> Path:
    path = tmp_path / "job.log"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(100)) + b"\xff[red]\x1b]0;x\x07")
    kit.put_job(store, log_file=str(path))
    return path


def _between_looks(monkeypatch: pytest.MonkeyPatch, steps: Iterator[Callable[[], object]]) -> None:
    """Let something happen to the log whenever the command waits for more, and then Ctrl-C."""

    def sleep(_seconds: float) -> None:
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr("coord_control.cli.logs.time.sleep", sleep)


def test_the_last_lines_are_printed_and_obeyed_by_nobody(tmp_path: Path, log: Path) -> None:
    assert run(tmp_path, "logs", "flights", "-n", "3").splitlines() == ["line 98", "line 99", "�[red]\\x1b]0;x\\x07"]
    assert len(run(tmp_path, "logs", "flights").splitlines()) == 50


def test_what_is_added_follows_and_a_file_that_was_emptied_begins_anew(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(text: str) -> None:
        with log.open("a") as file:
            file.write(text)

    steps = iter(
        (
            lambda: append("!\nmore\nhal"),
            lambda: append("f\n"),
            lambda: log.write_text("anew\n"),
        )
    )

    _between_looks(monkeypatch, steps)
    shown = run(tmp_path, "logs", "flights", "-f", "-n", "0", code=130)

    assert shown.splitlines() == ["!", "more", "half", "anew"]


def test_a_line_that_is_being_written_is_printed_whole(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter((lambda: log.write_bytes(log.read_bytes() + b"!\n"),))

    _between_looks(monkeypatch, steps)
    shown = run(tmp_path, "logs", "flights", "-f", "-n", "2", code=130)
    assert shown.splitlines() == ["line 99", "�[red]\\x1b]0;x\\x07!"]


def test_a_job_without_a_log_file_says_so(tmp_path: Path, store: ControlStore) -> None:
    assert "has no known log file" in run(tmp_path, "logs", "flights", code=2)


def test_a_log_on_another_machine_is_said_to_be_there(tmp_path: Path, store: ControlStore) -> None:
    kit.put_job(store, log_file="/nowhere/job.log", host="elsewhere")
    assert "is on elsewhere: /nowhere/job.log" in run(tmp_path, "logs", "flights", code=2)


def test_a_log_that_is_gone_is_an_error(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    log.unlink()
    assert "cannot read" in run(tmp_path, "logs", "flights", code=65)
