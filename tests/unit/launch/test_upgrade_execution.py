"""The steps of an upgrade on a real storage, cut at each record. Of the drivers only what they leave is there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coord_control.control.client.control_client import ControlClient
from coord_control.control.commands import CheckpointResult, StopResult
from coord_control.durable.checkpoints.catalog import Catalog
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
from coord_control.errors import CommandFailed, JobRunning
from coord_control.ids import LATEST
from coord_control.launch import upgrade_execution
from coord_control.launch.launcher import Launch
from coord_control.launch.upgrade_execution import UpgradeExecution
from coord_control.storage.records import JobState
from coord_control.supervisor import DriverEnded
from tests.records_kit import NOON
from tests.unit.durable.restore_kit import QUERIES, run_spark

_OLD, _NEW = Program(script="/old.py", folder="/"), Program(script="/new.py", folder="/")


class _Killed(BaseException):
    """The process that upgrades is gone."""


class World:
    """A machine with a job on it: what survives the process that upgrades the job."""

    restores_savepoint = True

    def __init__(
        self, root: Path, fails: frozenset[UpgradeStep], rollback: bool, *, drops: bool = False, may_drop: bool = False
    ) -> None:
        self.root, self.fails, self.drops = root, fails, drops
        self.folder = str(root / "flights")
        lineage = open_lineage(LocalFiles(), f"{self.folder}/queries/delays", QUERIES[0], {})
        run_spark(LocalFiles(), lineage.checkpoint, 3)
        self.running: str | None = "old"
        self.log_file = "/logs/before"
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

    def stop_with_savepoint(self, job: str, *, label: str, key: str) -> Any:
        if UpgradeStep.STOP not in self.fails and key not in self.savepoints:
            assert self.running == "old"
            self.running = None
            self.savepoints[key] = save(LocalFiles(), self.folder, label=label).path
        return SimpleNamespace(id=key)

    def command(self, key: str) -> Any:
        return SimpleNamespace(generation=1)  # that claimed the stop, also for a repeated request

    def wait(self, command: Any) -> CheckpointResult | StopResult:
        key = command if isinstance(command, str) else command.id
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
            log_file=self.log_file,
        )

    # As what starts programs.

    def check(
        self, program: Program, check: str, log_file: Path, seconds: float, environment: dict[str, str]
    ) -> DriverEnded:
        assert program is not _OLD
        assert environment == {"COORD_CONTROL": "sqlite:////control.db"}
        if UpgradeStep.CHECK in self.fails:
            return DriverEnded(78, "RestoreRefused: no")
        wanted = json.loads(check)
        catalog = Catalog(LocalFiles(), self.folder, _storage)
        assert catalog.resolve(LATEST).path == wanted["checkpoint"]
        assert active_hold(LocalFiles(), wanted["checkpoint"]) is not None, "retention could remove it"
        Path(wanted["root"], "flights").mkdir(parents=True)
        Path(wanted["report"]).write_text("fits")
        return DriverEnded(0)

    def start(self, which: str, log_file: str, options: list[str]) -> None:
        assert self.running is None
        assert which not in self.launched
        self.launched.append(which)
        self.log_file = log_file
        if which == "new" and self.restores_savepoint:
            assert options[:2] == ["--restore-from", self.savepoints["upgrade-12ab-stop"]]
        if {"new": UpgradeStep.START, "old": UpgradeStep.START_OLD}[which] in self.fails:
            return
        if which == "new":  # its driver restores the job, and is killed before it has committed anything
            request = RestoreRequest(ref=options[1])
            restore_job(LocalFiles(), _storage, request, root=str(self.root), job="flights")
        self.running, self.generation = which, self.generation + 1


class _Launcher:
    """Starts the programs of the world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def launch(
        self, slot: str, program: Program, *, request: str, before: int = 0, log_file: str | None = None
    ) -> Launch | None:
        assert log_file is not None
        self._world.start(_which(slot), log_file, list(program.options))
        return Launch(request, before, log_file)

    def newest(self, slot: str) -> Launch | None:
        return Launch("", 0, "") if self.has_begun(slot) else None

    def has_begun(self, slot: str) -> bool:
        return _which(slot) in self._world.launched

    def is_alive(self, slot: str) -> bool:
        return self._world.running == _which(slot)

    def stop(self, slot: str, seconds: float) -> bool:
        if UpgradeStep.STOP_NEW in self._world.fails:
            return False
        if self._world.running == _which(slot):
            self._world.running = None
        return True

    def tail(self, slot: str, lines: int) -> str:
        return "Traceback"


def _which(slot: str) -> str:
    return slot.rpartition("-")[2]


def _storage(path: str) -> Files:
    return LocalFiles()


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
    record = read_upgrade(LocalFiles(), world.folder)
    assert record is not None
    execution = UpgradeExecution(
        cast(ControlClient, world),
        world.folder,
        record,
        _Launcher(world),
        {"COORD_CONTROL": "sqlite:////control.db"},
        storage=_storage,
        start_seconds=5,
        tell=lambda text: None,
    )
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


@pytest.mark.parametrize(
    ("fails", "step", "launched"),
    [
        ((), UpgradeStep.START, []),
        ((UpgradeStep.VERIFY,), UpgradeStep.SET_BACK, ["new"]),
        ((UpgradeStep.VERIFY,), UpgradeStep.START_OLD, ["new"]),
    ],
)
def test_what_something_else_has_done_since_is_not_undone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails: tuple[UpgradeStep, ...],
    step: UpgradeStep,
    launched: list[str],
) -> None:
    """Fault: a job that was started by hand after its upgrade was killed was set back behind what it had done since."""
    world = World(tmp_path, frozenset(fails), True)
    for cut in range(1, 9):
        assert _upgrade(world, monkeypatch, (cut, "after")) is None
        record = read_upgrade(LocalFiles(), world.folder)
        assert record is not None
        if record.step is step:
            break
        world = World(tmp_path / str(cut), frozenset(fails), True)
    restored = newest_restore(LocalFiles(), world.folder)
    world.running, world.log_file, world.generation = "old", "/logs/by-hand", world.generation + 1
    done = _upgrade(world, monkeypatch)

    assert done is not None
    assert (done.step, world.running, world.launched) == (UpgradeStep.LEFT, "old", launched)
    assert "which something else has started" in done.why
    assert newest_restore(LocalFiles(), world.folder) == restored


def test_a_job_without_a_checkpoint_takes_one_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, frozenset(), True)
    assert _upgrade(world, monkeypatch) is not None
    assert list(world.savepoints) == ["upgrade-12ab-check", "upgrade-12ab-stop"]


def test_what_failed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, frozenset({UpgradeStep.START}), True)
    done = _upgrade(world, monkeypatch)
    assert done is not None
    assert done.why.startswith("it has ended; the end of its log (")
    assert done.why.endswith("flights-upgrade-12ab-new.log):\nTraceback")
    assert done.failed_at is UpgradeStep.START


def test_a_query_that_may_be_dropped_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, frozenset(), True, drops=True, may_drop=True)
    done = _upgrade(world, monkeypatch)
    assert done is not None
    assert (done.step, done.why, world.running) == (UpgradeStep.DONE, "", "new")


def test_a_savepoint_that_is_removed_meanwhile_leaves_the_upgrade_stuck_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, frozenset({UpgradeStep.VERIFY}), True)
    stop = _Launcher.stop

    def removing(launcher: _Launcher, slot: str, seconds: float) -> bool:
        shutil.rmtree(world.savepoints["upgrade-12ab-stop"])
        return stop(launcher, slot, seconds)

    monkeypatch.setattr(_Launcher, "stop", removing)
    done = _upgrade(world, monkeypatch)
    assert done is not None
    assert (done.step, world.running) == (UpgradeStep.STUCK, None)
    assert "there is no _metadata" in done.why


def test_a_program_that_restores_something_else_is_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with restore_from in its Job takes that, and not the savepoint; its job must not stay there."""
    world = World(tmp_path, frozenset(), True)
    elsewhere = save(LocalFiles(), world.folder, label="elsewhere").path
    start = world.start

    def restoring(which: str, log_file: str, options: list[str]) -> None:
        start(which, log_file, ["--restore-from", elsewhere] if which == "new" else options)

    monkeypatch.setattr(world, "start", restoring)
    monkeypatch.setattr(World, "restores_savepoint", False)
    done = _upgrade(world, monkeypatch)
    assert done is not None
    assert (done.step, world.running) == (UpgradeStep.ROLLED_BACK, "old")
    assert "leave restore_from out" in done.why
    restored = newest_restore(LocalFiles(), world.folder)
    assert restored is not None
    assert restored.path == done.savepoint


def test_the_processes_of_a_killed_driver_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, frozenset({UpgradeStep.VERIFY}), True)
    refusals = [JobRunning("flights", 2, "here", is_known=True)]

    def restoring(*arguments: Any, **options: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return restore_job(*arguments, **options)

    monkeypatch.setattr(upgrade_execution, "restore_job", restoring)
    done = _upgrade(world, monkeypatch)
    assert done is not None
    assert done.step is UpgradeStep.ROLLED_BACK
    assert not refusals
