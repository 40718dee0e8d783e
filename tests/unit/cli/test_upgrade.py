"""`coordctl upgrade` up to its first step, and what it says at the end. No Spark; the steps are in tests/acceptance."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coord_control.durable.files.filesystem import LocalFiles, join
from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.holder import Holder
from coord_control.durable.job_folder.upgrade_record import (
    Program,
    UpgradeRecord,
    UpgradeStep,
    read_upgrade,
    write_upgrade,
)
from coord_control.launch import upgrade_request
from coord_control.launch.supervisors import OwnSupervisor, SupervisorRecord
from coord_control.launch.upgrade_execution import UpgradeExecution
from coord_control.storage.records import JobState
from coord_control.storage.store import ControlStore
from tests import control_kit as kit
from tests.cli_kit import run, run_json

_OLD = Program(script="/srv/old.py", args=("--days", "3"), folder="/srv", options=("--grace", "30.000000s"))


@pytest.fixture
def root(tmp_path: Path, store: ControlStore, monkeypatch: pytest.MonkeyPatch) -> str:
    """The root of a job that runs under a coordctl run, which is this process; and a new program for it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    root = str(tmp_path / "jobs")
    kit.put_job(store, root=root, folder=f"{root}/flights")
    generations.claim(LocalFiles(), f"{root}/flights/generations", Holder.of([os.getpid()], supervisor="ab12"))
    (tmp_path / "new.py").write_text("")
    return root


@pytest.fixture
def supervisor(root: str) -> OwnSupervisor:
    return _supervisor(_OLD)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[UpgradeRecord]]:
    """Let each upgrade end at a step; returns those that were begun or continued."""

    def end(step: UpgradeStep, **changes: Any) -> list[UpgradeRecord]:
        seen: list[UpgradeRecord] = []

        def ended(self: UpgradeExecution) -> UpgradeRecord:
            seen.append(self._record)
            self._save(step=step, **changes)
            return self._record

        monkeypatch.setattr(UpgradeExecution, "run", ended)
        return seen

    return end


def _supervisor(program: Program, log_file: str | None = "/logs/1") -> OwnSupervisor:
    return OwnSupervisor(SupervisorRecord(token="ab12", pid=os.getpid(), program=program, log_file=log_file))


def _upgrade(folder: Path, *arguments: str, code: int = 0) -> str:
    return run(folder, "upgrade", "flights", "--script", str(folder / "new.py"), *arguments, code=code)


def _record(root: str) -> UpgradeRecord:
    record = read_upgrade(LocalFiles(), join(root, "flights"))
    assert record is not None
    return record


def test_the_new_program_runs_as_the_old_one_did(
    tmp_path: Path, root: str, supervisor: OwnSupervisor, ends: Callable[..., list[UpgradeRecord]]
) -> None:
    seen = ends(UpgradeStep.DONE, savepoint="/savepoints/9")
    shown = _upgrade(tmp_path, "--verify-for", "2m", "--", "--days", "4")
    assert f"job flights runs {tmp_path / 'new.py'}; its savepoint before that: /savepoints/9" in shown
    [record] = seen
    assert (record.step, record.old, record.verify_seconds, record.rollback) == (UpgradeStep.CHECK, _OLD, 120.0, True)
    assert record.new == _OLD.model_copy(update={"script": str(tmp_path / "new.py"), "args": ("--days", "4")})
    assert _record(root).step is UpgradeStep.DONE
    [audited] = [each for each in run_json(tmp_path, "audit", "flights") if each["action"] == "upgrade"]
    assert audited["details"] == {"step": "done", "savepoint": "/savepoints/9"}


@pytest.mark.parametrize(
    ("step", "code", "said"),
    [
        (UpgradeStep.REFUSED, 78, "job flights runs on with /srv/old.py; nothing was changed: it does {not} fit"),
        (UpgradeStep.NOT_STOPPED, 75, "it does {not} fit"),
        (UpgradeStep.ROLLED_BACK, 1, "job flights runs /srv/old.py again, from none; "),
        (UpgradeStep.LEFT, 1, "was left as it is in its upgrade from /srv/old.py"),
        (UpgradeStep.STUCK, 1, "job flights needs you: "),
    ],
)
def test_what_it_says_at_the_end(
    tmp_path: Path,
    supervisor: OwnSupervisor,
    ends: Callable[..., list[UpgradeRecord]],
    step: UpgradeStep,
    code: int,
    said: str,
) -> None:
    ends(step, why="it does {not} fit")
    assert said in _upgrade(tmp_path, code=code)


def test_a_job_without_a_driver_is_refused(tmp_path: Path, root: str, store: ControlStore) -> None:
    store.jobs.ended("flights", 1, JobState.ENDED)
    assert "start it with: coordctl run" in _upgrade(tmp_path, code=75)


def test_a_job_that_was_not_started_by_coordctl_run_here_is_refused(tmp_path: Path, root: str) -> None:
    assert "start it with coordctl run --detach" in _upgrade(tmp_path, code=78)


def test_a_job_that_runs_in_the_foreground_is_refused(tmp_path: Path, root: str) -> None:
    own = _supervisor(_OLD, log_file=None)
    assert "replace the program where it is started" in _upgrade(tmp_path, code=78)
    own.close()


def test_the_script_that_runs_already_has_no_way_back(tmp_path: Path, root: str) -> None:
    same = _OLD.model_copy(update={"script": str(tmp_path / "new.py")})
    own = _supervisor(same)
    assert "put the new one under another name, or use --no-rollback" in _upgrade(tmp_path, code=78)
    own.close()


def test_an_upgrade_under_way_is_continued_by_its_command_alone(
    tmp_path: Path, root: str, supervisor: OwnSupervisor, ends: Callable[..., list[UpgradeRecord]]
) -> None:
    ends(UpgradeStep.DONE)
    _upgrade(tmp_path)
    supervisor.close()  # the old program is gone
    begun = _record(root).model_copy(update={"step": UpgradeStep.VERIFY})
    write_upgrade(LocalFiles(), join(root, "flights"), begun)
    (tmp_path / "other.py").write_text("")
    other = run(tmp_path, "upgrade", "flights", "--script", str(tmp_path / "other.py"), code=78)
    assert "is at step verify; repeat its command to continue it, or end it with coordctl upgrade --abandon" in other
    shown = _upgrade(tmp_path, "--verify-for", "1s")
    assert f"continuing the upgrade {begun.id} at step verify" in shown
    assert "it keeps the options with which it was begun: verify_seconds = 600.0" in shown


def test_one_that_another_host_has_begun_is_continued_there(
    tmp_path: Path, root: str, supervisor: OwnSupervisor, ends: Callable[..., list[UpgradeRecord]]
) -> None:
    ends(UpgradeStep.DONE)
    _upgrade(tmp_path)
    moved = _record(root).model_copy(update={"step": UpgradeStep.STOP, "host": "elsewhere"})
    write_upgrade(LocalFiles(), join(root, "flights"), moved)
    assert "was begun on elsewhere; continue it there" in _upgrade(tmp_path, code=78)
    assert "abandoned it at step stop. Its savepoint before that: none" in run(
        tmp_path, "upgrade", "flights", "--abandon"
    )
    assert _record(root).step is UpgradeStep.LEFT
    assert "there is nothing to abandon" in run(tmp_path, "upgrade", "flights", "--abandon", code=78)
    _upgrade(tmp_path)


@pytest.mark.parametrize("given", [(), ("--abandon", "--script", "new.py")])
def test_a_program_or_an_end(tmp_path: Path, root: str, given: tuple[str, ...]) -> None:
    arguments = [str(tmp_path / each) if each == "new.py" else each for each in given]
    assert "give --script with the new program, or --abandon" in run(tmp_path, "upgrade", "flights", *arguments, code=2)


@pytest.mark.parametrize(
    ("failed_at", "left"),
    [
        (UpgradeStep.STOP_NEW, "End new.py first; then restore it: coordctl restore flights /s/9 --roll-back-sinks"),
        (UpgradeStep.SET_BACK, "Neither program runs. Restore it: coordctl restore flights /s/9 --roll-back-sinks"),
        (UpgradeStep.START_OLD, "The job and its sinks stand at /s/9, and no program runs: start /srv/old.py"),
    ],
)
def test_what_is_left_to_do_depends_on_the_step_that_failed(
    tmp_path: Path,
    supervisor: OwnSupervisor,
    ends: Callable[..., list[UpgradeRecord]],
    failed_at: UpgradeStep,
    left: str,
) -> None:
    ends(UpgradeStep.STUCK, why="it does not end", failed_at=failed_at, savepoint="/s/9")
    assert left.replace("new.py", str(tmp_path / "new.py")) in _upgrade(tmp_path, code=1)


def test_a_key_finds_an_upgrade_that_has_ended(
    tmp_path: Path, root: str, supervisor: OwnSupervisor, ends: Callable[..., list[UpgradeRecord]]
) -> None:
    seen = ends(UpgradeStep.DONE)
    _upgrade(tmp_path, "--key", "deploy-2")
    _upgrade(tmp_path, "--key", "deploy-2")
    assert len(seen) == 1
    (tmp_path / "other.py").write_text("")
    other = run(tmp_path, "upgrade", "flights", "--script", str(tmp_path / "other.py"), "--key", "deploy-2", code=78)
    assert f"key deploy-2 belongs to an upgrade to {tmp_path / 'new.py'}; use another key" in other
    _upgrade(tmp_path, "--key", "deploy-3")
    _upgrade(tmp_path)
    assert len(seen) == 3


def test_two_at_once_are_refused(tmp_path: Path, root: str, supervisor: OwnSupervisor) -> None:
    with upgrade_request._alone("flights", join(root, "flights")):
        assert "another process on this machine is upgrading it" in _upgrade(tmp_path, code=78)
