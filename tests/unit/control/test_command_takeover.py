"""What becomes of commands that an older driver had claimed; the picture is the module's table."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coord_control.control.commands import take_over
from coord_control.control.execution.checkpoint_execution import catalog_of, command_key
from coord_control.control.execution.command import Again, EndJob, Takeover
from coord_control.durable.checkpoints.metadata_file import encode_metadata
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder.restore_log import RestoreRecord, commit_restore
from coord_control.durable.offline.offline_restore import restore_job
from coord_control.durable.offline.offline_savepoint import save
from coord_control.durable.restore.request import RestoreRequest
from coord_control.ids import CheckpointId, CheckpointKind, Generation
from coord_control.protocol.scheduler.tickets import CheckpointRequest
from coord_control.storage.records import CommandKind, CommandRecord, CommandState, Outcome
from tests import records_kit as records
from tests.agent_kit import JOB, ScriptedDriver, damage_state
from tests.simulation.memory_files import MemoryFiles
from tests.unit.durable import restore_kit

NOW = datetime.datetime.now(datetime.UTC)


def command(kind: CommandKind, *, generation: int = 1, age_seconds: float = 0.0, **more: Any) -> CommandRecord:
    expires_at = NOW + datetime.timedelta(seconds=600.0 - age_seconds)
    values = {"job": JOB, "state": CommandState.CLAIMED, "requested_at": NOW, "expires_at": expires_at}
    return records.command(kind, generation=generation, **values | more)


def decide(driver: ScriptedDriver, asked: CommandRecord) -> Takeover:
    return take_over(asked, driver, NOW)


def state_of(found: object) -> CommandState:
    assert isinstance(found, Outcome), found
    return found.state


def two(
    root: Path, *, is_released: bool = False, saves: CommandRecord | None = None, supervisor: str | None = None
) -> ScriptedDriver:
    """The driver after one that died, or ended in good order."""
    first = ScriptedDriver(root, supervisor=supervisor)
    if saves is not None:
        first.submit(CheckpointRequest(kind=CheckpointKind.SAVEPOINT, key=command_key(saves)))
    if is_released:
        first.stop()
    return ScriptedDriver(root, supervisor=supervisor)


def test_a_restart_has_come_about(tmp_path: Path) -> None:
    found = decide(two(tmp_path), command(CommandKind.RESTART))
    assert isinstance(found, Outcome)
    assert found.result == {"generation": 2}


def test_a_stop_is_completed_when_the_driver_ended_in_good_order(tmp_path: Path) -> None:
    found = decide(two(tmp_path, is_released=True), command(CommandKind.STOP))
    assert state_of(found) is CommandState.COMPLETED


def test_a_stop_that_killed_its_driver_ends_this_job_as_well(tmp_path: Path) -> None:
    assert decide(two(tmp_path), command(CommandKind.STOP)) == EndJob()


def test_a_stop_whose_driver_was_fenced_off_ends_the_job_of_the_newer_one(tmp_path: Path) -> None:
    """Fault: the fenced driver counted as having ended in good order: its stop was dropped, and the job ran."""
    first = ScriptedDriver(tmp_path)
    first.claim.release(is_fenced=True)
    second = ScriptedDriver(tmp_path)

    assert second.claim.is_released(first.claim.generation), "nothing of it runs"
    assert decide(second, command(CommandKind.STOP)) == EndJob()
    assert decide(second, command(CommandKind.STOP_WITH_SAVEPOINT)) == Again()


def test_a_stop_of_long_ago_does_not_end_a_job_that_somebody_has_started_since(tmp_path: Path) -> None:
    found = decide(two(tmp_path), command(CommandKind.STOP, age_seconds=3600.0))
    assert state_of(found) is CommandState.COMPLETED


@pytest.mark.parametrize("is_released", [True, False])
@pytest.mark.parametrize("age_seconds", [0.0, 3600.0])
def test_a_job_that_its_supervisor_has_started_again_was_not_stopped(
    tmp_path: Path, is_released: bool, age_seconds: float
) -> None:
    """Bug: after ten minutes without the database the stop was said to be completed, and the job ran on. The same when
    the driver had failed on the way, which releases its claim as well."""
    stop = command(CommandKind.STOP, age_seconds=age_seconds)
    assert decide(two(tmp_path / "a", is_released=is_released, supervisor="s"), stop) == EndJob()
    asked = command(CommandKind.STOP_WITH_SAVEPOINT, age_seconds=age_seconds)
    found = decide(two(tmp_path / "b", is_released=is_released, supervisor="s", saves=asked), asked)
    assert isinstance(found, EndJob)
    assert found.savepoint is not None
    assert decide(two(tmp_path / "c", is_released=is_released, supervisor="s"), asked) == Again()


@pytest.mark.parametrize("kind", [CommandKind.STOP, CommandKind.STOP_WITH_SAVEPOINT])
def test_a_job_that_a_person_has_stopped_and_started_since_runs(tmp_path: Path, kind: CommandKind) -> None:
    """Bug: only the driver that had claimed the command was looked at, so the next start of the job ended at once."""
    asked = command(kind)
    second = two(tmp_path, saves=asked)
    second.stop()
    assert state_of(decide(ScriptedDriver(tmp_path, supervisor="s"), asked)) is CommandState.COMPLETED


@pytest.mark.parametrize(("further", "is_planned"), [(0, False), (0, True), (1, False)])
def test_a_job_that_has_gone_beyond_its_last_savepoint_does_not_end_with_it(further: int, is_planned: bool) -> None:
    """Bug: the job ended with a savepoint behind which a driver that had no database had processed epochs."""
    files, asked = MemoryFiles(), command(CommandKind.STOP_WITH_SAVEPOINT)
    lineages = [restore_kit.opened(files, query, operators={}) for query in restore_kit.QUERIES]
    for lineage in lineages:
        restore_kit.run_spark(files, lineage.checkpoint, 5)
    saved = save(files, restore_kit.JOB)
    trigger = saved.metadata.trigger.model_copy(update={"key": command_key(asked)})
    metadata = saved.metadata.model_copy(update={"trigger": trigger})
    files.replace(f"{saved.path}/_metadata", encode_metadata(metadata))
    restore_kit.run_spark(files, lineages[1].checkpoint, 5 + further, planned=is_planned)
    port = SimpleNamespace(
        files=files,
        storage=lambda path: files,
        facts=SimpleNamespace(folder=restore_kit.JOB, generation=2),
        has_ended_cleanly=lambda generation: False,
        has_same_supervisor=lambda generation: False,
    )
    found = take_over(asked, port, NOW)
    if further or is_planned:
        assert found == Again()
    else:
        assert isinstance(found, EndJob)


@pytest.mark.parametrize("is_released", [True, False])
@pytest.mark.parametrize("is_saved", [True, False])
def test_a_stop_with_a_savepoint_looks_at_both(tmp_path: Path, is_released: bool, is_saved: bool) -> None:
    asked = command(CommandKind.STOP_WITH_SAVEPOINT)
    driver = two(tmp_path, is_released=is_released, saves=asked if is_saved else None)
    found = decide(driver, asked)
    if is_released:
        assert state_of(found) is (CommandState.COMPLETED if is_saved else CommandState.REFUSED)
    elif is_saved:
        assert isinstance(found, EndJob)
        assert found.savepoint is not None
        assert (found.savepoint.kind, found.savepoint.epochs) == ("savepoint", {"q": 1}), "as the metadata says it"
    else:
        assert found == Again()


def test_a_savepoint_whose_state_is_damaged_was_taken_all_the_same(tmp_path: Path) -> None:
    """Bug: each try to take the command over failed, and no command was taken any more."""
    asked = command(CommandKind.STOP_WITH_SAVEPOINT)
    driver = two(tmp_path, is_released=True, saves=asked)
    [entry] = catalog_of(driver).entries()
    damage_state(f"{entry.path}/_metadata")
    found = decide(driver, asked)
    assert isinstance(found, Outcome)
    assert (found.state, found.checkpoint) == (CommandState.COMPLETED, entry.checkpoint)


def test_a_restore_is_seen_by_its_record(tmp_path: Path) -> None:
    first = ScriptedDriver(tmp_path)
    saved = first.submit(CheckpointRequest(kind=CheckpointKind.SAVEPOINT)).wait(0.0)
    first.stop()
    asked = command(CommandKind.RESTORE, payload={"ref": "latest"}, progress={"path": saved.path})
    early = ScriptedDriver(tmp_path)
    assert decide(early, asked) == Again()
    early.stop()
    files = LocalFiles()
    restore_job(files, lambda path: files, RestoreRequest(ref=saved.path), root=str(tmp_path), job=JOB)
    found = decide(ScriptedDriver(tmp_path), asked)
    assert state_of(found) is CommandState.COMPLETED
    unknown = command(CommandKind.RESTORE, payload={"ref": "latest"})
    assert decide(ScriptedDriver(tmp_path), unknown) == Again()


@pytest.mark.parametrize(("asked_for", "is_done"), [(False, True), (True, False)])
def test_a_restore_that_left_the_sinks_is_not_one_that_sets_them_back(
    tmp_path: Path, asked_for: bool, is_done: bool
) -> None:
    """Fault: a person had restored the same checkpoint without the sinks, and the command was said to be completed."""
    first = ScriptedDriver(tmp_path)
    saved = first.submit(CheckpointRequest(kind=CheckpointKind.SAVEPOINT)).wait(0.0)
    first.stop()
    payload = {"ref": "latest", "roll_back_sinks": asked_for}
    asked = command(CommandKind.RESTORE, payload=payload, progress={"path": saved.path})
    files = LocalFiles()
    restore_job(files, lambda path: files, RestoreRequest(ref=saved.path), root=str(tmp_path), job=JOB)
    found = decide(ScriptedDriver(tmp_path), asked)
    assert (found != Again()) is is_done


#: Seconds by which the clock of a driver may differ from the database's, either way.
SKEWS = st.floats(-1e6, 1e6)


@given(skew=SKEWS, adopted=st.integers(0, 3), is_fork=st.booleans(), is_done=st.booleans(), others=st.integers(0, 2))
def test_whether_a_restore_was_done_does_not_depend_on_anybodys_clock(
    skew: float, adopted: int, is_fork: bool, is_done: bool, others: int
) -> None:
    """The restore of generation 5 was committed under generation 6; ``adopted`` drivers died without giving the
    outcome; people have restored something else since."""
    files, job = MemoryFiles(), "copy" if is_fork else JOB
    done_at = NOW + datetime.timedelta(seconds=10.0 + skew)
    number = itertools.count(1)

    def restored(generation: int, path: str, key: str | None) -> None:
        record = RestoreRecord(
            number=next(number),
            id="x",
            path=path,
            checkpoint=CheckpointId(1),
            job=JOB,
            completed_at=NOW,
            ref="1",
            key=key,
            generation=Generation(generation),
            committed_at=done_at,
            queries={"q": "lineage-000002"},
        )
        commit_restore(files, f"/r/{job}", job, record)

    payload = {"ref": "1", "as_name": "copy"} if is_fork else {"ref": "1"}
    asked = command(CommandKind.RESTORE, generation=5 + adopted, payload=payload, progress={"path": "/r/saved/1"})
    restored(4, "/r/saved/1", None)  # from the same place, before anybody asked for this one
    if is_done:
        # In a folder of its own a fork counts its generations from another number.
        restored(1 if is_fork else 6, "/r/saved/1", command_key(asked))
    for other in range(others):
        restored(10 + other, "/r/saved/2", None)
    port = SimpleNamespace(files=files, facts=SimpleNamespace(name=JOB, root="/r", generation=20))
    found = take_over(asked, port, NOW)
    if is_done:
        assert state_of(found) is CommandState.COMPLETED
    else:
        assert found == Again()


def test_a_restore_from_the_same_folder_before_this_one_was_claimed_is_another_one(tmp_path: Path) -> None:
    first = ScriptedDriver(tmp_path)
    saved = first.submit(CheckpointRequest(kind=CheckpointKind.SAVEPOINT)).wait(0.0)
    first.stop()
    files = LocalFiles()
    asked = command(CommandKind.RESTORE, generation=3, payload={"ref": "latest"}, progress={"path": saved.path})
    restore_job(
        files, lambda path: files, RestoreRequest(ref=saved.path), root=str(tmp_path), job=JOB
    )  # of generation 2
    assert decide(ScriptedDriver(tmp_path), asked) == Again()


@pytest.mark.parametrize(
    "kind",
    [
        CommandKind.TRIGGER_CHECKPOINT,
        CommandKind.TRIGGER_SAVEPOINT,
        CommandKind.ABORT,
        CommandKind.DISPOSE,
        CommandKind.VERIFY,
        CommandKind.SEND_EVENT,
    ],
)
def test_all_others_are_carried_out_again(tmp_path: Path, kind: CommandKind) -> None:
    assert decide(two(tmp_path), command(kind)) == Again()


def test_a_command_that_this_release_cannot_read_is_carried_out_again_which_refuses_it(tmp_path: Path) -> None:
    """Bug: the agent of the next driver failed in every pass, and did nothing else."""
    assert decide(two(tmp_path), command(CommandKind.RESTORE, payload={"ref": ""})) == Again()
    assert decide(two(tmp_path), command(CommandKind("rescale_everything"))) == Again()
