"""Promotions of a fork, with drivers that follow a script: real database, commands, savepoints, restores; no Spark."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coord_control.control.client.control_client import ControlClient
from coord_control.durable.files.filesystem import Files, LocalFiles
from coord_control.durable.job_folder.upgrade_record import Program, UpgradeRecord, UpgradeStep, write_upgrade
from coord_control.durable.offline.offline_restore import restore_job
from coord_control.durable.restore.request import RestoreRequest
from coord_control.errors import NotPromotable
from coord_control.launch.promotion import Promotion, PromotionState, promote_fork
from coord_control.launch.supervisors import OwnSupervisor, SupervisorRecord
from coord_control.protocol.failures import FailureReason
from coord_control.storage.records import CommandKind, CommandRecord
from tests.agent_kit import ScriptedDriver, control_settings, open_store
from tests.patience import SECONDS, eventually
from tests.records_kit import NOON
from tests.unit.control.agent_rig import AgentRig, database_file

_FORK = "flights-b"


class _Killed(BaseException):
    """The process of the caller is gone."""


class World:
    """A job ``flights`` that runs, and one that was forked from its savepoint and runs as well."""

    def __init__(self, rig: AgentRig, tmp_path: Path) -> None:
        self.rig, self.folder = rig, tmp_path
        self.client = ControlClient(rig.settings.url, actor="ada")
        rig.cleanup.callback(self.client.close)
        self.parent = self.drive("flights", supervisor="ab12")
        self.said: list[str] = []

    def drive(self, name: str, **options: Any) -> ScriptedDriver:
        return self.rig.driver(name=name, **options)[0]

    def fork_from(self, ref: str, name: str = _FORK, *, is_saved: bool = True) -> ScriptedDriver:
        request = RestoreRequest(ref=ref, as_name=name, verify=False)
        restore_job(LocalFiles(), _storage, request, root=str(self.folder / "jobs"), job="flights")
        fork = self.drive(name)
        if is_saved:
            self.client.wait(self.client.trigger_checkpoint(name), SECONDS)
        return fork

    def fork(self, **options: Any) -> ScriptedDriver:
        self.client.wait(self.client.trigger_savepoint("flights", label="before"), SECONDS)
        return self.fork_from("before", **options)

    def promote(self, fork: str = _FORK, **options: Any) -> Promotion:
        options = {"ready_seconds": 0.0, "tell": self.said.append, **options}
        return promote_fork(self.client, fork, storage=_storage, **options)

    def refused(self, fork: str = _FORK, **options: Any) -> NotPromotable:
        with pytest.raises(NotPromotable) as refused:
            self.promote(fork, **options)
        assert not self.parent.ended.is_set()
        return refused.value

    def stops(self) -> tuple[CommandRecord, ...]:
        return self.client.commands("flights", kind=CommandKind.STOP_WITH_SAVEPOINT)


def _storage(path: str) -> Files:
    return LocalFiles()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    database = database_file(tmp_path)
    database.parent.mkdir()
    settings = control_settings(database)
    with contextlib.ExitStack() as cleanup:
        store = open_store(settings)
        cleanup.callback(store.close)
        yield World(AgentRig(tmp_path, settings, store, cleanup), tmp_path)


def test_the_parent_stops_with_a_savepoint_and_the_fork_stays(world: World) -> None:
    fork = world.fork()
    done = world.promote()
    assert (done.state, done.parent, done.is_repeated) == (PromotionState.PROMOTED, "flights", False)
    assert (world.parent.ended.is_set(), fork.ended.is_set()) == (True, False)
    assert done.savepoint is not None
    assert (done.savepoint.label, Path(done.savepoint.path, "_metadata").exists()) == (f"promoted-{_FORK}", True)
    assert done.unknown == ("the backlog of query q, because its sources report none",)
    assert done.problems == ()
    assert done.way_back == (
        f"coordctl stop {_FORK} --savepoint",
        f"coordctl run --detach --restore-from {done.savepoint.path} <its script>",
    )
    [stop] = world.stops()
    assert (stop.id, stop.key, stop.requested_by) == (done.command, f"promote-{_FORK}-1", "ada")
    assert [each.actor for each in world.client.audit("flights") if each.subject == stop.id][-1] == "ada"


def test_a_fork_whose_driver_sends_no_more_heartbeats_is_not_ready(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: a fork whose driver had been killed a moment ago was promoted, and nothing ran."""
    world.fork()
    killed, find = replace(world.client.job(_FORK), lease_seconds=0.5), world.client.job
    monkeypatch.setattr(world.client, "job", lambda name: killed if name == _FORK else find(name))

    refused = world.refused()
    assert "its driver sends no heartbeats" in str(refused)
    assert refused.retry


def test_a_promoted_fork_is_promoted_once(world: World) -> None:
    world.fork()
    first = world.promote()
    again = world.promote()
    assert (again.is_repeated, again.savepoint, again.command) == (True, first.savepoint, first.command)
    assert "had already taken the place of job flights" in again.text()
    assert world.promote(check_only=True) == again
    assert len(world.stops()) == 1


def test_who_went_back_can_promote_again(world: World) -> None:
    world.fork()
    world.promote()
    world.parent = world.drive("flights")
    second = world.promote()
    assert second.savepoint is not None
    assert (second.is_repeated, second.savepoint.label) == (False, f"promoted-{_FORK}-2")
    assert [each.key for each in world.stops()] == [f"promote-{_FORK}-2", f"promote-{_FORK}-1"]
    assert world.parent.ended.is_set()


def test_the_way_back_has_the_command_line_of_the_parent(world: World) -> None:
    program = Program(script="/srv/a b.py", args=("--days", "3"), folder="/srv", options=("--grace", "30.0s"))
    own = OwnSupervisor(SupervisorRecord(token="ab12", pid=1, program=program))
    world.fork()
    done = world.promote()
    own.close()
    assert done.savepoint is not None
    start = f"coordctl run --detach --grace 30.0s --restore-from {done.savepoint.path} '/srv/a b.py' --days 3"
    assert done.way_back[1] == f"cd /srv && {start}"


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_caller_that_was_killed_is_continued_by_the_same_call(
    world: World, monkeypatch: pytest.MonkeyPatch, is_complete: bool
) -> None:
    fork = world.fork()
    world.parent.is_automatic = False

    def killed(*_: Any, **__: Any) -> None:
        raise _Killed

    with monkeypatch.context() as patch:
        patch.setattr(ControlClient, "stop_with_savepoint", killed)
        with pytest.raises(_Killed):
            world.promote()
    assert not world.stops(), "it was killed before the request"
    with monkeypatch.context() as patch:
        patch.setattr(ControlClient, "wait", killed)
        with pytest.raises(_Killed):
            world.promote()
    [asked] = world.stops()
    checked = world.promote(check_only=True)
    assert (checked.state, checked.command) == (PromotionState.STOPPING, asked.id)
    fork.stop()  # it is not checked again: its parent is being stopped
    completing = threading.Thread(target=_complete, args=(world, 2))
    if is_complete:
        _complete(world, 2)
        world.rig.outcome(asked.id)
    else:
        completing.start()
    done = world.promote()
    if not is_complete:
        completing.join()
    assert (done.command, done.is_repeated, done.problems) == (asked.id, is_complete, ("it has no driver",))
    assert len(world.stops()) == 1


def _complete(world: World, checkpoint: int) -> None:
    eventually(lambda: checkpoint in world.parent._handles)
    world.parent.complete(checkpoint)


def test_a_savepoint_that_fails_leaves_the_parent_running_and_can_be_repeated(world: World) -> None:
    world.fork()
    world.parent.is_automatic = False

    def fail() -> None:
        eventually(lambda: 2 in world.parent._handles)
        world.parent.fail(2, FailureReason.STORAGE_ERROR)

    failing = threading.Thread(target=fail)
    failing.start()
    refused = world.refused()
    failing.join()
    assert "its parent flights was not stopped with a savepoint" in str(refused)
    assert (refused.way_out, refused.retry) == ("job flights runs on; repeat this", True)
    world.parent.is_automatic = True
    done = world.promote()
    assert done.savepoint is not None
    assert done.savepoint.label == f"promoted-{_FORK}"
    assert [each.key for each in world.stops()] == [f"promote-{_FORK}-2", f"promote-{_FORK}-1"]


def test_a_job_that_is_no_fork_is_refused(world: World) -> None:
    refused = world.refused("flights")
    assert refused.problem == "it is not a fork"
    assert not refused.retry


def test_a_fork_that_has_saved_nothing_is_waited_for(world: World) -> None:
    world.fork(is_saved=False)
    assert "it is not ready: it has completed no checkpoint since it was restored" in str(world.refused())
    checked = world.promote(check_only=True)
    assert (checked.state, len(checked.problems)) == (PromotionState.NOT_READY, 1)
    assert not world.stops()

    def tell(text: str) -> None:
        world.said.append(text)
        if "is not ready" in text:
            world.client.trigger_checkpoint(_FORK, key="for-the-promotion")

    assert world.promote(ready_seconds=SECONDS, tell=tell).state is PromotionState.PROMOTED
    assert world.said[0].startswith(f"job {_FORK} is not ready: it has completed no checkpoint")


def test_a_checkpoint_before_a_later_restore_does_not_count(world: World) -> None:
    fork = world.fork()
    assert world.promote(check_only=True).state is PromotionState.READY
    fork.stop()
    request = RestoreRequest(ref="latest", verify=False)
    restore_job(LocalFiles(), _storage, request, root=str(world.folder / "jobs"), job=_FORK)
    fork = world.drive(_FORK)
    assert "no checkpoint since it was restored" in str(world.refused())
    world.client.wait(world.client.trigger_checkpoint(_FORK), SECONDS)
    assert world.promote(check_only=True).state is PromotionState.READY, "it is still a fork"


def test_a_fork_that_does_not_run_is_refused(world: World) -> None:
    world.fork().stop()
    refused = world.refused(ready_seconds=SECONDS)
    assert f"job {_FORK} has not been running since" in str(refused)


def test_a_parent_that_does_not_run_is_refused(world: World) -> None:
    world.fork()
    world.parent.stop()
    with pytest.raises(NotPromotable, match="job flights has not been running since"):
        world.promote(ready_seconds=SECONDS)
    assert not world.stops()


def test_an_upgrade_in_progress_is_in_the_way(world: World) -> None:
    world.fork()
    program = Program(script="/x.py", folder="/")
    for job in ("flights", _FORK):
        record = UpgradeRecord(
            id="1", job=job, host="h", by="a", began_at=NOON, old=program, new=program, rollback=True, verify_seconds=1
        )
        folder = str(world.folder / "jobs" / job)
        write_upgrade(LocalFiles(), folder, record)
        assert f"an upgrade of job {job} is at step check" in str(world.refused(ready_seconds=SECONDS))
        write_upgrade(LocalFiles(), folder, record.model_copy(update={"step": UpgradeStep.DONE}))
    assert world.promote(check_only=True).state is PromotionState.READY


def test_a_savepoint_that_was_moved_names_no_parent_for_sure(world: World, tmp_path: Path) -> None:
    made: Any = world.client.wait(world.client.trigger_savepoint("flights"), SECONDS)
    moved = shutil.copytree(made.path, tmp_path / "moved")
    world.fork_from(str(moved))
    assert "name the job that is to stop with --parent" in str(world.refused())
    assert "no job is its own parent" in str(world.refused(parent=_FORK))
    assert world.promote(parent="flights", check_only=True).state is PromotionState.READY
    world.client.import_savepoint(str(moved))
    assert world.promote().parent == "flights"


def test_another_parent_than_the_recorded_one_is_refused(world: World) -> None:
    world.fork()
    world.drive("other")
    assert "its parent is job 'flights', not 'other'" in str(world.refused(parent="other"))
    assert world.promote(parent="flights").parent == "flights"


def test_a_fork_that_fails_while_its_parent_stops_is_a_problem_of_the_result(world: World) -> None:
    fork = world.fork()

    def tell(text: str) -> None:
        if "stopping job flights" in text:
            fork.stop()

    done = world.promote(tell=tell)
    assert (done.state, done.problems) == (PromotionState.PROMOTED, ("it has no driver",))
    assert f"job {_FORK}: it has no driver" in done.text()
