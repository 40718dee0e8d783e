"""The steps of an upgrade on a real storage, cut at each record. Of the drivers only what they leave is there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coord_control.cli import upgrade_execution
from coord_control.cli.storage import storage_of
from coord_control.cli.upgrade_execution import UpgradeExecution
from coord_control.control.client.control_client import ControlClient
from coord_control.control.commands import CheckpointResult, StopResult
from coord_control.durable.checkpoints.catalog import LATEST, Catalog
from coord_control.durable.checkpoints.holds import active_hold
from coord_control.durable.files.filesystem import Files, LocalFiles
from coord_control.durable.job_folder.lineage import open_lineage
from coord_control.durable.job_folder.restore_log import newest_restore
from coord_control.durable.job_folder.upgrade_record import (
    Program,
    UpgradeRecord,
    UpgradeStep,
    read_upgrade,
    write_upgrade,
)
from coord_control.durable.offline.offline_restore import restore_job
from coord_control.durable.offline.offline_savepoint import save
from coord_control.durable.restore.request import RestoreRequest
from coord_control.errors import CommandFailed
from coord_control.storage.records import JobState
from coord_control.supervisor import DriverEnded
from tests.records_kit import NOON
from tests.unit.durable.restore_kit import QUERIES, run_spark

_OLD, _NEW = Program(script="/old.py", folder="/"), Program(script="/new.py", folder="/")


class _Killed(BaseException):
    """The process that upgrades is gone."""


class World:
    """A machine with a job on it: what survives whoever upgrades the job."""

    def __init__(
        self, root: Path, fails: frozenset[UpgradeStep], rollback: bool, *, drops: bool = False, may_drop: bool = False
    ) -> None:
        self.root, self.fails, self.drops = root, fails, drops
        self.folder = str(root / "flights")
        lineage = open_lineage(LocalFiles(), f"{self.folder}/queries/delays", QUERIES[0], {})
        run_spark(LocalFiles(), lineage.checkpoint, 3)
        self.running: str | None = "old"
        self.generation = 1
        self.launched: list[str] = []
        self.savepoints: dict[str, str] = {}
        record = UpgradeRecord(
            id="12ab",
            job="flights",
            host="here",
            by="ada",
            began_at=NOON,
            old=_OLD,
            new=_NEW,
            rollback=rollback,
            allow_non_restored_state=may_drop,
            verify_seconds=0.01,
        )
        write_upgrade(LocalFiles(), self.folder, record)
        self.settings = SimpleNamespace(url="sqlite:////control.db")

    # As the client.

    def trigger_checkpoint(self, job: str, *, key: str) -> str:
        self.savepoints.setdefault(key, save(LocalFiles(), self.folder).path)
        return key

    def stop_with_savepoint(self, job: str, *, label: str, key: str) -> str:
        if UpgradeStep.STOP not in self.fails and key not in self.savepoints:
            assert self.running == "old"
            self.running = None
            self.savepoints[key] = save(LocalFiles(), self.folder, label=label).path
        return key

    def wait(self, key: str) -> CheckpointResult | StopResult:
        if key not in self.savepoints:
            raise CommandFailed(key, "stop_with_savepoint", "EXPIRED", "it took too long")
        made = CheckpointResult(
            checkpoint=1, kind="savepoint", path=self.savepoints[key], duration_seconds=0, state_bytes=0
        )
        return StopResult(savepoint=made) if key.endswith("-stop") else made

    def job(self, job: str) -> Any:
        epoch = 4 if self.running == "old" or UpgradeStep.VERIFY not in self.fails else 3
        name = "others" if self.drops and self.running == "new" else "delays"
        query = SimpleNamespace(name=name, state="running", epoch=epoch, restarts=0, backlog=None)
        return SimpleNamespace(
            name=job,
            generation=self.generation,
            is_alive=self.running is not None,
            state=JobState.RUNNING,
            queries=(query,),
            log_file=f"/logs/{self.running}",
        )

    # As what starts programs.

    def check(self, program: Program, check: str, log_file: Path, seconds: float) -> DriverEnded:
        assert program is not _OLD
        if UpgradeStep.CHECK in self.fails:
            return DriverEnded(78, "RestoreRefused: no")
        wanted = json.loads(check)
        catalog = Catalog(LocalFiles(), self.folder, storage_of)
        assert catalog.resolve(LATEST).path == wanted["checkpoint"]
        assert active_hold(LocalFiles(), wanted["checkpoint"]) is not None, "retention could remove it"
        Path(wanted["root"], "flights").mkdir(parents=True)
        Path(wanted["report"]).write_text("fits")
        return DriverEnded(0)

    def start(self, which: str, options: list[str]) -> None:
        if which in self.launched:
            return
        assert self.running is None
        self.launched.append(which)
        if which == "new":
            assert options[:2] == ["--restore-from", self.savepoints["upgrade-12ab-stop"]]
        if {"new": UpgradeStep.START, "old": UpgradeStep.START_OLD}[which] in self.fails:
            return
        if which == "new":  # its driver restores the job, and is killed before it has committed anything
            request = RestoreRequest(ref=options[1])
            restore_job(LocalFiles(), storage_of, request, root=str(self.root), job="flights")
        self.running, self.generation = which, self.generation + 1


class _Launch:
    def __init__(self, world: World, which: str) -> None:
        self._world, self._which = world, which
        self.log_file = f"/logs/{which}"

    def launch(self, options: list[str]) -> None:
        self._world.start(self._which, list(options))

    def supervisors(self) -> list[str]:
        return [self._which] if self._world.running == self._which else []

    def stop(self) -> bool:
        if UpgradeStep.STOP_NEW in self._world.fails:
            return False
        if self._world.running == self._which:
            self._world.running = None
        return True

    def tail(self) -> str:
        return "Traceback"


def _upgrade(world: World, monkeypatch: pytest.MonkeyPatch, cut: tuple[int, str] | None = None) -> UpgradeRecord | None:
    """Carry it out, or continue it; killed at a write of the record, before or after it."""
    writes = 0

    def write(files: Files, folder: str, record: UpgradeRecord) -> None:
        nonlocal writes
        writes += 1
        if cut == (writes, "before"):
            raise _Killed
        write_upgrade(files, folder, record)
        if cut == (writes, "after"):
            raise _Killed

    monkeypatch.setattr(upgrade_execution, "write_upgrade", write)
    monkeypatch.setattr(upgrade_execution, "run_check", world.check)
    monkeypatch.setattr(upgrade_execution, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(UpgradeExecution, "_launch", lambda self, which, program: _Launch(world, which))
    record = read_upgrade(LocalFiles(), world.folder)
    assert record is not None
    client = cast(ControlClient, world)
    execution = UpgradeExecution(client, world.folder, record, start_seconds=5, tell=lambda text: None)
    try:
        return execution.run()
    except _Killed:
        return None


_ENDS = [
    ((), True, UpgradeStep.DONE, "new"),
    ((UpgradeStep.CHECK,), True, UpgradeStep.REFUSED, "old"),
    ((UpgradeStep.STOP,), True, UpgradeStep.NOT_STOPPED, "old"),
    ((UpgradeStep.START,), True, UpgradeStep.ROLLED_BACK, "old"),
    ((UpgradeStep.VERIFY,), True, UpgradeStep.ROLLED_BACK, "old"),
    ((UpgradeStep.START,), False, UpgradeStep.LEFT, None),
    ((UpgradeStep.VERIFY,), False, UpgradeStep.LEFT, "new"),
    ((UpgradeStep.VERIFY, UpgradeStep.STOP_NEW), True, UpgradeStep.STUCK, "new"),
    ((UpgradeStep.VERIFY, UpgradeStep.START_OLD), True, UpgradeStep.STUCK, None),
]


@pytest.mark.parametrize(("fails", "rollback", "end", "running"), _ENDS)
@pytest.mark.parametrize("side", ["before", "after"])
def test_wherever_it_is_killed_the_same_command_brings_it_to_the_same_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails: tuple[UpgradeStep, ...],
    rollback: bool,
    end: UpgradeStep,
    running: str | None,
    side: str,
) -> None:
    for cut in range(9):  # the first is never reached: it is not killed at all
        world = World(tmp_path / str(cut), frozenset(fails), rollback)
        done = _upgrade(world, monkeypatch, (cut, side)) or _upgrade(world, monkeypatch)
        assert done is not None
        assert (done.step, world.running) == (end, running)
        assert read_upgrade(LocalFiles(), world.folder) == done
        assert not Path(world.folder, "upgrade-check").exists()
        assert bool(done.why) == (end is not UpgradeStep.DONE)
        assert world.launched.count("new") <= 1
        restored = newest_restore(LocalFiles(), world.folder)
        if UpgradeStep.VERIFY in fails and end is UpgradeStep.ROLLED_BACK:
            assert restored is not None
            assert (restored.key, restored.number) == ("upgrade-12ab-back", 2)
        if UpgradeStep.START in fails:
            assert restored is None


def test_a_job_without_a_checkpoint_takes_one_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, frozenset(), True)
    assert _upgrade(world, monkeypatch) is not None
    assert list(world.savepoints) == ["upgrade-12ab-check", "upgrade-12ab-stop"]


def test_what_failed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, frozenset({UpgradeStep.START}), True)
    done = _upgrade(world, monkeypatch)
    assert done is not None
    assert done.why == "it has ended; the end of its log (/logs/new):\nTraceback"


def test_a_query_that_may_be_dropped_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, frozenset(), True, drops=True, may_drop=True)
    done = _upgrade(world, monkeypatch)
    assert done is not None
    assert (done.step, done.why, world.running) == (UpgradeStep.DONE, "", "new")


def test_a_savepoint_that_is_removed_meanwhile_leaves_the_upgrade_stuck_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, frozenset({UpgradeStep.VERIFY}), True)
    stop = _Launch.stop

    def removing(launch: _Launch) -> bool:
        shutil.rmtree(world.savepoints["upgrade-12ab-stop"])
        return stop(launch)

    monkeypatch.setattr(_Launch, "stop", removing)
    done = _upgrade(world, monkeypatch)
    assert done is not None
    assert (done.step, world.running) == (UpgradeStep.STUCK, None)
    assert "there is no _metadata" in done.why
