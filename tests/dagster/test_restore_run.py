"""Restores and forks through Dagster: by the driver of a job that runs, on the storage of one that does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from coord_control.dagster.spec import StartSpec, StreamingJobSpec
from coord_control.durable.files.filesystem import LocalFiles, join
from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.holder import Holder, Process
from coord_control.durable.job_folder.restore_log import RestoreRecord, newest_restore
from coord_control.durable.job_folder.sink_record import SinkRecord, write_sink
from coord_control.durable.offline.offline_savepoint import save
from coord_control.storage.records import CheckpointState
from tests.agent_kit import ScriptedDriver
from tests.control_kit import put_job
from tests.dagster.action_kit import Actions, has_run, meanwhile, saved_job, silence
from tests.dagster_kit import (
    Plane,
    plane_in,
)
from tests.patience import eventually
from tests.unit.durable.restore_kit import run_spark

RESTORE = "restore_streaming_job"
FORK = "fork_streaming_job"


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    with plane_in(tmp_path) as plane:
        yield plane


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as instance:
        yield instance


@pytest.fixture
def actions(plane: Plane, instance: dg.DagsterInstance) -> Actions:
    return Actions(plane, instance)


@pytest.fixture
def dead(plane: Plane) -> str:
    """A job that has run and was stopped, with a savepoint 1 that is labelled "end"; its path."""
    path = saved_job(plane.root, "flights")
    plane.driver().stop()
    return path


def restored(plane: Plane, job: str = "flights") -> RestoreRecord | None:
    return newest_restore(LocalFiles(), join(str(plane.root), job))


def lose_input(plane: Plane) -> None:
    """The query goes on to epoch 5, and one of the two files that it reads then is removed."""
    checkpoint = plane.root / "flights/queries/counts/lineage-000001/spark"
    run_spark(LocalFiles(), str(checkpoint), 5)
    (checkpoint.parent / "spark-input/5.json").unlink()


def saved_by_driver(plane: Plane) -> str:
    client = plane.client()
    client.wait(client.trigger_savepoint("flights", label="mine"), 30.0)
    (record,) = client.checkpoints("flights", state=CheckpointState.COMPLETED)
    assert record.path is not None
    return record.path


# On the storage.


def test_a_job_that_does_not_run_is_restored_on_its_storage(plane: Plane, actions: Actions, dead: str) -> None:
    ended = actions.run(RESTORE)

    assert ended.is_success, ended.description
    found = restored(plane)
    assert found is not None
    assert (found.path, found.ref, found.checkpoint) == (dead, "latest", 1)
    shown = ended.metadata
    assert (shown["way"], shown["job"], shown["checkpoint_id"], shown["path"]) == ("storage", "flights", "1", dead)
    assert shown["linked_bytes"] + shown["copied_bytes"] > 0
    assert "| ok | files | counts |" in shown["preflight"]
    assert ended.has_said(f"job flights was restored from {dead}: its next driver resumes from there")
    assert ended.has_said("preflight: ok: files of counts")


def test_a_job_that_runs_again_meanwhile_goes_on_from_there(plane: Plane, actions: Actions, dead: str) -> None:
    assert actions.run(RESTORE, ref="end").is_success

    driver = plane.driver()

    assert driver.generation > 2  # the restore has claimed one as well
    found = restored(plane)
    assert found is not None
    assert (found.ref, list(found.queries)) == ("end", ["counts"])


def test_a_refused_restore_shows_the_table_and_changes_nothing(plane: Plane, actions: Actions, dead: str) -> None:
    has_run(plane.root, "flights", "added")

    ended = actions.run(RESTORE)

    assert not ended.is_success
    assert f"{dead} cannot be restored, and nothing was changed: query of added: " in ended.description
    assert "allow_non_restored_state" in ended.description
    assert "| refused | query | added |" in ended.metadata["preflight"]
    assert "| ok | files | counts |" in ended.metadata["preflight"]
    assert ended.has_said("preflight: refused: query of added")
    assert restored(plane) is None

    allowed = actions.run(RESTORE, allow_non_restored_state=True)

    assert allowed.is_success, allowed.description
    assert "| warning | query | added |" in allowed.metadata["preflight"]
    assert restored(plane) is not None


def test_a_check_alone_shows_the_table_and_changes_nothing(plane: Plane, actions: Actions, dead: str) -> None:
    ended = actions.run(RESTORE, check_only=True, start=True)

    assert ended.is_success, ended.description
    assert (ended.metadata["way"], ended.metadata["job"], ended.metadata["path"]) == ("check", "flights", dead)
    assert "| ok | files | counts |" in ended.metadata["preflight"]
    assert ended.has_said(f"job flights can be restored from {dead}; nothing was changed")
    assert restored(plane) is None
    assert plane.client().commands("flights") == ()


def test_a_check_alone_of_a_restore_that_would_be_refused_fails_with_the_table(
    plane: Plane, actions: Actions, dead: str
) -> None:
    has_run(plane.root, "flights", "added")

    ended = actions.run(RESTORE, check_only=True)

    assert not ended.is_success
    assert f"{dead} cannot be restored, and nothing was changed: query of added: " in ended.description
    assert "| refused | query | added |" in ended.metadata["preflight"]
    assert actions.run(RESTORE, check_only=True, allow_non_restored_state=True).is_success
    assert restored(plane) is None


def test_a_check_alone_leaves_a_job_running_and_asks_its_driver_nothing(plane: Plane, actions: Actions) -> None:
    driver = plane.driver()
    path = saved_by_driver(plane)
    asked = len(plane.client().commands("flights"))

    ended = actions.run(RESTORE, check_only=True, ref="mine")

    assert ended.is_success, ended.description
    assert ended.metadata["path"] == path
    assert not driver.ended.is_set()
    assert len(plane.client().commands("flights")) == asked


def test_the_check_of_a_job_that_is_not_known_says_which_there_are(plane: Plane, actions: Actions) -> None:
    for name in ("orders", "fights"):
        plane.driver(name=name)

    ended = actions.run(RESTORE, check_only=True)

    assert ended.metadata["error"] == "JobNotFound"
    assert "did you mean fights?; the jobs there are fights, orders" in ended.description


def test_a_restore_whose_input_is_gone_is_refused_unless_that_is_allowed(
    plane: Plane, actions: Actions, dead: str
) -> None:
    lose_input(plane)

    ended = actions.run(RESTORE)

    assert not ended.is_success
    assert "1 of 2 files that were read after the checkpoint are gone" in ended.description
    assert "| refused | input | counts/0 |" in ended.metadata["preflight"]
    assert restored(plane) is None
    assert not actions.run(FORK, as_name="other").is_success

    assert actions.run(RESTORE, allow_missing_input=True).is_success
    assert actions.run(FORK, as_name="other", allow_missing_input=True).is_success

    found = restored(plane)
    assert found is not None
    assert found.allow_missing_input


def file_sink_goes_on(plane: Plane) -> str:
    """A savepoint of a query with a file sink, which receives an epoch after it; returns where it lies."""
    lineage = plane.root / "flights/queries/counts/lineage-000001"
    log = plane.root / "out" / "_spark_metadata"
    log.mkdir(parents=True)
    for epoch in range(5):
        (log / str(epoch)).write_text("v1\n")
    run_spark(LocalFiles(), str(lineage / "spark"), 4)
    write_sink(LocalFiles(), str(lineage), SinkRecord(kind="file", place=str(log.parent)))
    path = save(LocalFiles(), str(plane.root / "flights"), label="with-sink").path
    (log / "5").write_text("v1\n")
    return path


def test_a_restore_that_would_lose_rows_asks_what_becomes_of_the_sinks(
    plane: Plane, actions: Actions, dead: str
) -> None:
    path = file_sink_goes_on(plane)

    ended = actions.run(RESTORE, ref=path)

    assert not ended.is_success
    assert "| refused | sink | counts |" in ended.metadata["preflight"]
    assert "--roll-back-sinks (roll_back_sinks=True)" in ended.description
    assert restored(plane) is None
    assert actions.run(RESTORE, ref=path, accept_skipped_epochs=True).is_success
    found = restored(plane)
    assert found is not None
    assert not found.roll_back_sinks
    rolled = actions.run(RESTORE, ref=path, roll_back_sinks=True)
    assert rolled.is_success
    assert "is set back to epoch 4 before a query starts" in rolled.metadata["preflight"]
    found = restored(plane)
    assert found is not None
    assert found.roll_back_sinks


def test_a_damaged_savepoint_is_not_restored(plane: Plane, actions: Actions, dead: str) -> None:
    (state,) = Path(dead).rglob("4.snapshot")
    state.write_bytes(b"x" * state.stat().st_size)

    ended = actions.run(RESTORE)

    assert "4.snapshot" in ended.description
    assert "| refused | files | counts |" in ended.metadata["preflight"]
    assert restored(plane) is None
    assert actions.run(RESTORE, verify=False).is_success  # its size is right


def test_what_there_is_not_cannot_be_restored(plane: Plane, actions: Actions, dead: str) -> None:
    ended = actions.run(RESTORE, ref="7")

    assert ended.metadata["error"] == "CheckpointNotFound"
    assert "there is none of that number" in ended.description
    assert restored(plane) is None


def test_a_repeated_step_does_not_go_back_twice(plane: Plane, actions: Actions, dead: str) -> None:
    first = actions.run(RESTORE, ref="end")

    again = actions.run(RESTORE, again=first, ref="end")

    assert again.metadata == {
        "way": "storage",
        "job": "flights",
        "checkpoint_id": "1",
        "path": dead,
        "was_restored_before": True,
    }
    found = restored(plane)
    assert found is not None
    assert found.number == 1


def test_a_repeated_step_finds_its_restore_behind_a_newer_one(plane: Plane, actions: Actions, dead: str) -> None:
    first = actions.run(RESTORE, ref="end")
    assert actions.run(RESTORE, ref="1").is_success

    again = actions.run(RESTORE, again=first, ref="end")

    assert again.metadata["was_restored_before"]
    found = restored(plane)
    assert found is not None
    assert (found.number, found.ref) == (2, "1")


def test_executing_all_of_it_anew_goes_back_once_more(plane: Plane, actions: Actions, dead: str) -> None:
    first = actions.run(RESTORE)

    again = actions.run(RESTORE, again=first, from_failure=False)

    assert "was_restored_before" not in again.metadata
    found = restored(plane)
    assert found is not None
    assert found.number == 2


def test_a_process_that_still_lives_is_not_overtaken(plane: Plane, actions: Actions, dead: str) -> None:
    ScriptedDriver(plane.root)  # it lives, and has not reported to the database

    ended = actions.run(RESTORE)

    assert "is running (generation" in ended.description
    assert "stop it first" in ended.description
    assert restored(plane) is None


def test_a_driver_that_cannot_be_looked_at_is_fenced_off_only_on_request(
    plane: Plane, actions: Actions, dead: str
) -> None:
    far = Holder(host="far", boot="1", namespace="1", processes=(Process(pid=1, started="1"),))
    theirs = generations.claim(LocalFiles(), join(str(plane.root), "flights", "generations"), far)

    ended = actions.run(RESTORE)

    assert "which cannot be checked from here" in ended.description
    assert "`force: true`" in ended.description
    assert theirs.is_current()

    forced = actions.run(RESTORE, force=True)

    assert forced.is_success, forced.description
    assert not theirs.is_current()


def test_a_driver_that_was_killed_just_now_is_not_asked(plane: Plane, actions: Actions, dead: str) -> None:
    silence(plane.driver(is_supervised=True))
    assert plane.client().job("flights").is_alive

    ended = actions.run(RESTORE)

    assert ended.is_success, ended.description
    assert (ended.metadata["way"], ended.metadata["path"]) == ("storage", dead)
    [entry] = [each for each in plane.client().audit("flights") if each.action == "restore"]
    assert (entry.subject, entry.outcome) == (dead, "completed")
    assert not plane.client().commands("flights")


@pytest.mark.parametrize(
    ("root", "problem"),
    [
        ("hdfs://name/jobs", "Dagster does not start Spark to read"),
        ("/not/here", "is not accessible from this machine"),
    ],
)
def test_a_storage_that_cannot_be_read_here_is_said_to(
    plane: Plane, actions: Actions, dead: str, root: str, problem: str
) -> None:
    put_job(plane.store(), "far", root=root, folder=f"{root}/far", lease_seconds=0.1)
    eventually(lambda: not plane.client().job("far").is_alive)
    actions.jobs = (StreamingJobSpec(name="far"),)

    ended = actions.run(RESTORE)

    assert problem in ended.description
    assert "coordctl restore" in ended.description.replace("\n", " ")


# Fork.


def test_a_fork_begins_beside_the_original(plane: Plane, actions: Actions, dead: str) -> None:
    ended = actions.run(FORK, as_name="flights-copy", ref=dead)

    assert ended.is_success, ended.description
    found = restored(plane, "flights-copy")
    assert found is not None
    assert (found.is_fork, found.job, found.path) == (True, "flights", dead)
    assert restored(plane) is None
    assert ended.metadata["job"] == "flights-copy"
    assert ended.has_said("start a driver with a job named flights-copy")


def test_a_fork_of_a_name_that_is_taken_is_refused(plane: Plane, actions: Actions, dead: str) -> None:
    first = actions.run(FORK, as_name="copy")

    again = actions.run(FORK, again=first, as_name="copy")
    other = actions.run(FORK, as_name="copy")

    assert again.metadata["was_restored_before"]
    assert "choose another name for the fork" in other.description
    assert "| refused | job |" in other.metadata["preflight"]


@pytest.mark.parametrize(("name", "problem"), [("flights", "a fork needs a new name"), ("a/b", "a/b")])
def test_a_fork_needs_a_name(plane: Plane, actions: Actions, dead: str, name: str, problem: str) -> None:
    ended = actions.run(FORK, as_name=name)

    assert not ended.is_success
    assert problem in ended.description


def test_the_driver_of_a_job_that_runs_makes_the_fork(plane: Plane, actions: Actions) -> None:
    driver = plane.driver()
    path = saved_by_driver(plane)

    ended = actions.run(FORK, as_name="copy", ref="mine")

    assert ended.is_success, ended.description
    assert (ended.metadata["way"], ended.metadata["job"], ended.metadata["path"]) == ("driver", "copy", path)
    assert not driver.ended.is_set()
    found = restored(plane, "copy")
    assert found is not None
    assert found.is_fork


# Through the driver.


def start_next(plane: Plane, driver: ScriptedDriver) -> None:
    eventually(driver.ended.is_set)
    eventually(lambda: not plane.client().job("flights").is_alive)
    plane.driver(is_supervised=True)


def test_a_job_that_is_being_restarted_is_restored_by_its_next_driver(plane: Plane, actions: Actions) -> None:
    """Fault: the run restored it on the storage, beside a supervisor that was starting its driver."""
    driver = plane.driver(is_supervised=True)
    saved_by_driver(plane)
    client = plane.client()
    client.restart("flights")
    eventually(lambda: client.job("flights").waits_for_driver)

    def start_twice() -> None:
        eventually(lambda: any(each.kind == "restore" for each in client.commands("flights")))
        start_next(plane, plane.driver(is_supervised=True))

    with meanwhile(start_twice):
        ended = actions.run(RESTORE, ref="mine")

    assert ended.is_success, ended.description
    assert driver.is_restarting
    assert ended.metadata["way"] == "driver"
    assert ended.has_said("coordctl run is restarting job flights: its next driver restores it")


def test_a_job_that_runs_is_restored_by_its_driver_and_starts_again(plane: Plane, actions: Actions) -> None:
    driver = plane.driver(is_supervised=True)
    path = saved_by_driver(plane)

    with meanwhile(lambda: start_next(plane, driver)):
        ended = actions.run(RESTORE, ref="mine")

    assert ended.is_success, ended.description
    assert driver.is_restarting
    found = restored(plane)
    assert found is not None
    assert found.path == path
    assert (ended.metadata["way"], ended.metadata["path"], ended.metadata["checkpoint_id"]) == ("driver", path, "1")
    assert ended.metadata["generation"] == str(plane.client().job("flights").generation)
    assert ended.has_said("job flights was restored, waiting for its next driver")


def test_what_the_driver_refuses_is_shown_as_a_table(plane: Plane, actions: Actions) -> None:
    driver = plane.driver(is_supervised=True)
    saved_by_driver(plane)
    has_run(plane.root, "flights", "added")

    ended = actions.run(RESTORE)

    assert ended.metadata["reason"] == "RESTORE_REFUSED"
    assert "| refused | query | added |" in ended.metadata["preflight"]
    assert "problems" not in ended.metadata
    assert ended.has_said("preflight: refused: query of added")
    assert not driver.ended.is_set()
    assert restored(plane) is None


def test_the_driver_refuses_a_restore_whose_input_is_gone_unless_that_is_allowed(
    plane: Plane, actions: Actions, dead: str
) -> None:
    lose_input(plane)
    driver = plane.driver(is_supervised=True)

    ended = actions.run(RESTORE, ref="end")

    assert ended.metadata["reason"] == "RESTORE_REFUSED"
    assert "| refused | input | counts/0 |" in ended.metadata["preflight"]
    assert restored(plane) is None
    with meanwhile(lambda: start_next(plane, driver)):
        assert actions.run(RESTORE, ref="end", allow_missing_input=True).is_success
    found = restored(plane)
    assert found is not None
    assert found.allow_missing_input


def test_the_driver_is_told_whether_to_read_all_files_and_whom_to_fence_off(
    plane: Plane, actions: Actions, dead: str
) -> None:
    """Bug: a driver was sent neither "verify" nor "force"."""
    plane.driver()
    (state,) = Path(dead).rglob("4.snapshot")
    state.write_bytes(b"x" * state.stat().st_size)
    far = Holder(host="far", boot="1", namespace="1", processes=(Process(pid=1, started="1"),))
    generations.claim(LocalFiles(), join(str(plane.root), "copy", "generations"), far)

    damaged = actions.run(FORK, as_name="copy", ref="end")
    unseen = actions.run(FORK, as_name="copy", ref="end", verify=False)
    forced = actions.run(FORK, as_name="copy", ref="end", verify=False, force=True)

    assert damaged.metadata["reason"] == "RESTORE_REFUSED"
    assert "4.snapshot" in damaged.description
    assert "which cannot be checked from here" in unseen.description
    assert forced.is_success, forced.description
    assert forced.metadata["way"] == "driver"


def test_a_driver_that_nobody_would_start_again_refuses(plane: Plane, actions: Actions) -> None:
    driver = plane.driver()
    saved_by_driver(plane)

    ended = actions.run(RESTORE)

    assert ended.metadata["reason"] == "NOT_SUPERVISED"
    assert "stop the job, repeat the restore, and start the job by hand" in ended.description
    assert not driver.ended.is_set()


def test_a_repeated_step_waits_for_what_the_driver_was_asked_for(plane: Plane, actions: Actions) -> None:
    driver = plane.driver(is_supervised=True)
    saved_by_driver(plane)
    late = actions.run(RESTORE, timeout_seconds=1.0)
    assert not late.is_success  # nobody has started the next driver
    start_next(plane, driver)

    again = actions.run(RESTORE, again=late)

    assert again.is_success, again.description
    assert len(plane.client().commands("flights", limit=10)) == 2  # the savepoint and one restore
    found = restored(plane)
    assert found is not None
    assert found.number == 1


# Starting it afterwards.


def test_a_job_that_cannot_be_started_is_not_restored_and_started(plane: Plane, actions: Actions, dead: str) -> None:
    ended = actions.run(RESTORE, start=True)

    assert "Dagster cannot start job flights" in ended.description
    assert ended.description.endswith("Nothing was done")
    assert restored(plane) is None


def test_a_restore_counts_when_the_start_fails(
    plane: Plane, actions: Actions, dead: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    actions.jobs = (StreamingJobSpec(name="flights", start=StartSpec(script=str(tmp_path / "missing.py"))),)

    ended = actions.run(RESTORE, start=True)

    assert ended.description.startswith("job flights was restored, but not started: ")
    assert "missing.py" in ended.description
    assert "from failure, which does not repeat the restore" in ended.description
    assert ended.metadata["path"] == dead
    assert "Invalid value" in ended.metadata["error"]
    found = restored(plane)
    assert found is not None
    assert found.number == 1

    actions.run(RESTORE, again=ended, start=True)

    assert restored(plane) == found
