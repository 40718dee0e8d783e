"""Savepoints and restores of a job that the control database knows: through its driver, or on its storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from coord_control.control.commands import Refusal
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder.lineage import open_lineage
from coord_control.durable.restore.checks import Check, Verdict
from coord_control.storage.records import ENDED_TO_RESTART, CommandRecord, JobState
from coord_control.storage.store import ControlStore
from tests import control_kit as kit
from tests.cli_kit import invoke, run, run_json
from tests.unit.durable.restore_kit import QUERIES, put_checkpoint, run_spark


@pytest.fixture
def root(tmp_path: Path, store: ControlStore) -> str:
    """The root of the job that runs, as far as the control database knows; its storage has no driver."""
    root = str(tmp_path / "jobs")
    lineage = open_lineage(LocalFiles(), f"{root}/flights/queries/delays", QUERIES[0], {})
    run_spark(LocalFiles(), lineage.checkpoint, 3)
    kit.put_job(store, root=root, folder=f"{root}/flights")
    return root


def _asked(taken: list[CommandRecord]) -> list[tuple[str, dict[str, object]]]:
    return [(command.kind.value, command.payload) for command in taken]


def test_a_savepoint_of_a_running_job_is_its_driver_s(tmp_path: Path, root: str) -> None:
    target = str(tmp_path / "mine")
    with kit.driver(tmp_path) as taken:
        shown = run(tmp_path, "savepoint", "create", "flights", "--target", target, "--label", "x")

    assert "job flights: running, asking its driver" in shown
    assert "savepoint 7: /jobs/flights/savepoints/7" in shown
    assert _asked(taken) == [("trigger_savepoint", {"target": target, "label": "x"})]


def test_a_savepoint_of_a_job_that_has_ended_is_taken_on_its_storage(
    tmp_path: Path, root: str, store: ControlStore
) -> None:
    store.jobs.ended("flights", 1, JobState.ENDED)

    shown = run(tmp_path, "savepoint", "create", "flights", "--label", "end")

    assert "job flights: no running driver in the control database, using its storage" in shown
    assert "delays after epoch 3" in shown
    assert "end" in run(tmp_path, "savepoint", "list", "flights")
    assert run_json(tmp_path, "savepoint", "show", "flights", "end")["label"] == "end"
    assert "removed " in run(tmp_path, "savepoint", "dispose", "flights", "end", "--yes")
    assert store.commands.list("flights") == ()


@pytest.mark.parametrize("request_", [("savepoint", "create", "flights"), ("restore", "flights", "7")])
def test_the_next_driver_is_asked_while_a_supervisor_restarts_the_job(
    tmp_path: Path, root: str, store: ControlStore, request_: tuple[str, ...]
) -> None:
    """Fault: a restore went to the storage, and said that a driver had to be started, while one was being started."""
    store.jobs.ended("flights", 1, reason=ENDED_TO_RESTART)

    asked = run(tmp_path, *request_, "--no-wait")

    assert "job flights: coordctl run restarts it, if it still runs; asking its next driver" in asked
    assert len(store.commands.list("flights")) == 1


def test_another_job_of_that_name_below_another_root_is_not_asked(tmp_path: Path, root: str) -> None:
    other = str(tmp_path / "other")
    lineage = open_lineage(LocalFiles(), f"{other}/flights/queries/delays", QUERIES[0], {})
    run_spark(LocalFiles(), lineage.checkpoint, 5)

    assert "delays after epoch 5" in run(tmp_path, "savepoint", "create", "flights", "--root", other)


def test_a_job_that_nobody_knows_needs_a_root(tmp_path: Path, root: str) -> None:
    for command in (("savepoint", "create", "unknown"), ("restore", "unknown", "latest")):
        said = run(tmp_path, *command, code=78)
        assert "name the folder of the jobs with --root" in said
        assert "not running" not in said


def test_a_job_that_the_database_does_not_know_is_answered_with_what_is_near(tmp_path: Path, root: str) -> None:
    assert "did you mean flights?" in run(tmp_path, "savepoint", "create", "flihgts", code=78)
    assert "did you mean flights?" in run(tmp_path, "savepoint", "dispose", "flihgts", "1", code=78)
    assert "did you mean flights?" in run(tmp_path, "restore", "flihgts", "latest", code=78)


def test_without_a_control_database_a_job_needs_a_root(tmp_path: Path) -> None:
    assert "name the folder of the jobs with --root" in run(tmp_path, "savepoint", "create", "flights", code=2)
    assert not (tmp_path / "control.db").exists()


def test_a_database_that_cannot_be_asked_is_said_and_the_storage_has_the_last_word(tmp_path: Path, root: str) -> None:
    broken = tmp_path / "broken.db"
    broken.write_text("not a database, but quite a long text " * 100)

    result = invoke(tmp_path, "savepoint", "create", "flights", "--root", root, "--control", f"sqlite:///{broken}")

    assert result.exit_code == 0
    assert "continuing without the control database" in result.output
    assert "delays after epoch 3" in result.output


def test_the_driver_of_a_running_job_disposes_when_somebody_says_yes(tmp_path: Path, root: str) -> None:
    with kit.driver(tmp_path, lambda store, command: kit.completed(path="/s/7", checkpoint=7)) as taken:
        refused = run(tmp_path, "savepoint", "dispose", "flights", "7", text="n\n", code=1)
        unanswered = run(tmp_path, "savepoint", "dispose", "flights", "7", text="", code=1)
        shown = run(tmp_path, "savepoint", "dispose", "flights", "7", text="y\n")

    assert "have the driver of job flights remove 7?" in shown
    assert "use --yes to skip the question" in unanswered
    assert "--yes" not in refused
    assert "removed /s/7" in shown
    assert _asked(taken) == [("dispose", {"ref": "7"})]


@pytest.mark.parametrize(
    "command",
    [("restore", "flights", "1"), ("restore", "flights", "--undo"), ("savepoint", "dispose", "flights", "1")],
)
def test_a_key_is_refused_where_nothing_would_find_it_again(
    tmp_path: Path, root: str, store: ControlStore, command: tuple[str, ...]
) -> None:
    """Bug: it was dropped, and the same restore with the same key went back twice."""
    store.jobs.ended("flights", 1, JobState.ENDED)
    warned = run(tmp_path, "savepoint", "create", "flights", "--key", "k")
    assert "--key k is ignored: job flights is not running" in warned

    said = run(tmp_path, *command, "--key", "k", code=2)

    assert "--key k needs a running job" in said
    assert "Leave --key out, or start the job first" in said
    assert run_json(tmp_path, "savepoint", "list", "flights")[0]["checkpoint"] == 1
    assert not (Path(root) / "flights" / "restores").exists()


def test_the_key_of_a_request_that_a_driver_has_carried_out_finds_it_also_when_the_job_does_not_run(
    tmp_path: Path, root: str, store: ControlStore
) -> None:
    command = ("restore", "flights", "1", "--key", "k")
    restored = kit.completed(path="/jobs/flights/checkpoints/1", checkpoint=1, job="flights")
    with kit.driver(tmp_path, lambda store, command: restored) as taken:
        first = run(tmp_path, *command)
        store.jobs.ended("flights", 1, JobState.ENDED)
        second = run(tmp_path, *command)

    assert len(taken) == 1
    for shown in (first, second):
        assert "job flights resumes from checkpoint 1" in shown


def test_a_savepoint_from_anywhere_is_made_known(tmp_path: Path, root: str) -> None:
    path = put_checkpoint(LocalFiles(), str(tmp_path / "archive" / "one")).path
    assert "there are no savepoints in" in run(tmp_path, "savepoint", "list")

    assert f"{path}: savepoint" in run(tmp_path, "savepoint", "import", path)

    assert [each["imported"] for each in run_json(tmp_path, "savepoint", "list")] == [True]
    assert path in run(tmp_path, "savepoint", "list")
    assert "did you mean" in run(tmp_path, "savepoint", "import", f"{path}x", code=78)


def test_a_running_job_is_restored_by_its_driver(tmp_path: Path, root: str) -> None:
    result = kit.completed(path="/jobs/flights/checkpoints/7", checkpoint=7, job="flights")
    with kit.driver(tmp_path, lambda store, command: result) as taken:
        shown = run(tmp_path, "restore", "flights", "7", "--allow-non-restored-state")
        one = ("restore", "flights", "./savepoints/one", "--as", "other")
        run(tmp_path, *one, "--allow-missing-input", "--no-verify", "--force")
        run(tmp_path, "restore", "flights", "7", "--roll-back-sinks")
        run(tmp_path, "restore", "flights", "7", "--accept-skipped-epochs")

    sinks = [(payload["roll_back_sinks"], payload["accept_skipped_epochs"]) for _, payload in _asked(taken)]
    assert sinks == [(False, False), (False, False), (True, False), (False, True)]
    del taken[2:]
    assert "job flights: running, asking its driver" in shown
    assert "job flights resumes from checkpoint 7" in shown
    kinds = [(kind, payload["ref"], payload["as_name"]) for kind, payload in _asked(taken)]
    assert kinds == [("restore", "7", None), ("restore", str(Path.cwd() / "savepoints/one"), "other")]
    allowed = [(payload["allow_non_restored_state"], payload["allow_missing_input"]) for _, payload in _asked(taken)]
    assert allowed == [(True, False), (False, True)]
    assert [(payload["verify"], payload["force"]) for _, payload in _asked(taken)] == [(True, False), (False, True)]


def test_what_a_restore_through_the_driver_means_for_the_sinks_is_shown(tmp_path: Path, root: str) -> None:
    warning = Check("sink", "delays", Verdict.WARNING, "epochs 4 to 6 were committed", "set the sink back as well")
    result = kit.completed(path="/savepoints/7", checkpoint=7, job="flights", checks=[warning.to_json()])
    with kit.driver(tmp_path, lambda store, command: result):
        shown = run(tmp_path, "restore", "flights", "7")
    assert "epochs 4 to 6 were committed" in shown
    assert "sink of delays: set the sink back as well" in shown


def test_what_was_removed_on_storage_is_not_listed_any_more(tmp_path: Path, root: str, store: ControlStore) -> None:
    store.jobs.ended("flights", 1, JobState.ENDED)
    path = run_json(tmp_path, "savepoint", "create", "flights", "--label", "end")["path"]
    run(tmp_path, "savepoint", "import", path)
    assert [each["path"] for each in run_json(tmp_path, "savepoint", "list")] == [path]
    run(tmp_path, "savepoint", "dispose", "flights", "end", "--yes")
    assert run_json(tmp_path, "savepoint", "list") == []
    assert "dispose" in [entry.action for entry in store.audit.list(subject=path)]


def test_a_fork_of_a_running_job_under_its_own_name_is_not_even_asked_for(
    tmp_path: Path, root: str, store: ControlStore
) -> None:
    assert "leave the name of the fork (--as" in run(tmp_path, "restore", "flights", "7", "--as", "flights", code=78)
    assert store.commands.list("flights") == ()


def test_a_restore_that_cannot_be_says_why(tmp_path: Path, root: str) -> None:
    outcome = kit.refused(Refusal.RESTORE_REFUSED, "query raw would be left behind")
    with kit.driver(tmp_path, lambda store, command: outcome):
        assert "query raw would be left behind" in run(tmp_path, "restore", "flights", "7", code=78)


def test_other_shuffle_partitions_need_a_job_that_does_not_run(tmp_path: Path, root: str, store: ControlStore) -> None:
    shown = run(tmp_path, "restore", "flights", "7", "--shuffle-partitions", "8", code=2)
    assert "coordctl stop flights" in shown
    assert store.commands.list("flights") == ()


def test_a_job_that_has_ended_is_restored_on_its_storage(tmp_path: Path, root: str, store: ControlStore) -> None:
    store.jobs.ended("flights", 1, JobState.ENDED)
    run(tmp_path, "savepoint", "create", "flights", "--label", "end")

    shown = run(tmp_path, "restore", "flights", "end")

    assert "no running driver in the control database, using its storage" in shown
    assert "start its driver now" in shown
    assert "back where it was" in run(tmp_path, "restore", "flights", "--undo")
    run(tmp_path, "restore", "flights", "end", "--as", "copy")
    trail = store.audit.list("flights")
    assert [entry.action for entry in trail] == ["restore", "undo_restore", "restore", "trigger_savepoint"]
    assert {entry.outcome for entry in trail} == {"completed"}
    assert trail[0].details == {"as_name": "copy"}
    assert trail[0].subject.endswith("/savepoints/1-end")
