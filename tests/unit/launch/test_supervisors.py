"""What a supervisor says about itself, and how others see that it lives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coord_control.durable.job_folder.upgrade_record import Program
from coord_control.launch import supervisors
from coord_control.launch.supervisors import OwnSupervisor, SupervisorRecord, living_supervisors, supervisor_of

_PROGRAM = Program(script="/srv/flights.py", args=("--days", "3"), folder="/srv", options=("--grace", "30.000000s"))


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "coord-control" / "supervisors"


def _record(token: str = "ab12", log_file: str | None = None) -> SupervisorRecord:
    return SupervisorRecord(token=token, pid=os.getpid(), program=_PROGRAM, log_file=log_file)


def test_it_is_found_while_it_lives() -> None:
    own = OwnSupervisor(_record())
    assert supervisor_of("ab12") == _record()
    assert supervisor_of("ab13") is None
    own.close()
    assert supervisor_of("ab12") is None
    own.close()


def test_a_fork_takes_its_place() -> None:
    own = OwnSupervisor(_record(log_file="/logs/1"))
    child = os.fork()
    if child == 0:
        own.moved()
        os._exit(0)
    os.waitpid(child, 0)
    assert [(each.pid, each.log_file) for each in living_supervisors()] == [(child, "/logs/1")]
    own.close()


def test_one_that_was_killed_is_not_taken_for_one_that_lives(state: Path) -> None:
    state.mkdir(parents=True)
    (state / "ab12").write_text(_record().model_dump_json())
    assert list(living_supervisors()) == []


def test_what_killed_ones_have_left_is_removed_in_the_end(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state.mkdir(parents=True)
    (state / "ab12").write_text(_record().model_dump_json())
    OwnSupervisor(_record("cd34")).close()
    assert (state / "ab12").exists()
    monkeypatch.setattr(supervisors, "_LEFT_SECONDS", -1.0)
    alive = OwnSupervisor(_record("cd34"))
    OwnSupervisor(_record("ef56")).close()
    assert [path.name for path in state.iterdir()] == ["cd34"]
    alive.close()


def test_a_state_folder_that_cannot_be_written_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    own = OwnSupervisor(_record())
    own.moved()
    assert list(living_supervisors()) == []
    own.close()
