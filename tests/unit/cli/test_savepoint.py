"""`coordctl savepoint` and `coordctl restore` on local paths: what they print, and how they end. No Spark."""

from __future__ import annotations

import getpass
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from coord_control.control.client.control_client import ControlClient
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.holder import Holder
from coord_control.durable.job_folder.lineage import current_lineage, open_lineage
from coord_control.durable.offline.offline_savepoint import save
from coord_control.ids import QueryName
from tests.cli_kit import call
from tests.unit.durable.restore_kit import OP, QUERIES, RECORD, put_checkpoint, run_spark

DELAYS = QUERIES[0]


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A root with a job of one query, which ran to epoch 3."""
    root = str(tmp_path / "jobs")
    lineage = open_lineage(LocalFiles(), f"{root}/flights/queries/delays", DELAYS, {})
    run_spark(LocalFiles(), lineage.checkpoint, 3)
    return root


def run(*arguments: str, code: int = 0) -> str:
    result = call(*arguments)
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def run_json(*arguments: str, code: int = 0) -> Any:
    result = call(*arguments, "--json")
    assert result.exit_code == code, (result.output, result.exception)
    return json.loads(result.stdout)


def lineage_of(root: str, job: str = "flights") -> str:
    lineage = current_lineage(LocalFiles(), f"{root}/{job}/queries/delays", DELAYS)
    assert lineage is not None
    return lineage.name


def test_a_savepoint_from_its_making_to_its_end(root: str, tmp_path: Path) -> None:
    target = str(tmp_path / "mine")
    made = run_json("savepoint", "create", "flights", "--root", root, "--label", "end", "--target", target)
    assert (made["path"], made["epochs"]) == (target, {"delays": 3})
    [listed] = run_json("savepoint", "list", "flights", "--root", root)
    assert (listed["checkpoint"], listed["kind"], listed["state"], listed["label"]) == (
        1,
        "savepoint",
        "completed",
        "end",
    )
    assert "end" in run("savepoint", "list", "flights", "--root", root)
    # "size" is everything that belongs to a savepoint, and a list of what is on storage knows its files only.
    assert "files  file size  path" in run("savepoint", "list", "flights", "--root", root)
    assert run_json("savepoint", "list", "flights", "--root", root, "--by", "dagster:schedule:hourly") == []
    shown = run("savepoint", "show", "flights", "end", "--root", root)
    assert "savepoint 1 of job flights" in shown
    assert "stateStoreSave" in shown
    assert '{"logOffset": 3}' in shown
    assert "all intact" in run("savepoint", "verify", target)
    assert "removed " in run("savepoint", "dispose", "flights", "1", "--root", root, "--yes")
    assert run_json("savepoint", "list", "flights", "--root", root) == []
    assert not Path(target).exists()


def test_a_savepoint_on_storage_has_an_author_and_a_label_of_its_own(root: str, tmp_path: Path) -> None:
    author = getpass.getuser()
    run("savepoint", "create", "flights", "--root", root, "--label", "end")
    listed = run_json("savepoint", "list", "flights", "--root", root, "--by", author)
    assert [(each["label"], each["requested_by"]) for each in listed] == [("end", author)]
    assert "has the label 'end'" in run("savepoint", "create", "flights", "--root", root, "--label", "end", code=78)
    for label in ("../end", "e" * 101):
        assert "label" in run("savepoint", "create", "flights", "--root", root, "--label", label, code=78)
    assert len(run_json("savepoint", "list", "flights", "--root", root)) == 1


def test_the_savepoints_of_a_schedule_are_found_by_who_asked_for_them(root: str) -> None:
    hourly = save(LocalFiles(), f"{root}/flights", label="a", requested_by="dagster:schedule:hourly")
    save(LocalFiles(), f"{root}/flights", label="b")
    listed = run_json("savepoint", "list", "flights", "--root", root, "--by", "dagster:schedule:hourly")
    assert [(each["path"], each["requested_by"]) for each in listed] == [(hourly.path, "dagster:schedule:hourly")]
    assert "dagster:schedule:hourly" in run("savepoint", "list", "flights", "--root", root)
    assert "no such checkpoint" in run("savepoint", "list", "flights", "--root", root, "--by", "eve")
    assert "name the JOB" in run("savepoint", "list", "--by", "eve", code=2)


def test_show_has_samples_of_states_and_what_was_in_the_channels(tmp_path: Path) -> None:
    source = put_checkpoint(LocalFiles(), str(tmp_path / "s"))
    shown = run("savepoint", "show", source.path, "--sample", "1")
    assert '{"n":1}' in shown
    fields = run_json("savepoint", "show", source.path)
    operator = fields["operators"][OP]
    assert operator["subtask_states"] == {"0": {"n": 1}, "1": None}
    assert operator["coordinator_state"] == "17 bytes"
    assert operator["down"] == {"1": {"A": 1}}
    assert operator["up"] == [{"subtask": 1, "B": 1}]
    assert fields["queries"]["raw"]["files"]["count"] == 8
    assert run_json("savepoint", "show", source.path, "--sample", "0")["operators"][OP]["subtask_states"] == {}


def test_verify_names_what_is_damaged(tmp_path: Path) -> None:
    source = put_checkpoint(LocalFiles(), str(tmp_path / "s"))
    victim = Path(source.path) / "queries" / "raw" / "spark" / "state" / "0" / "0" / "6.zip"
    victim.write_bytes(b"zup" * 5)
    (victim.parent / "7.zip").write_bytes(b"extra")
    output = run("savepoint", "verify", source.path, code=65)
    assert str(victim) in output
    assert "is damaged: 1 of 16 files" in output
    problems = run_json("savepoint", "verify", source.path, code=65)["problems"]
    assert {problem["kind"]: problem["fatal"] for problem in problems} == {"checksum": True, "extra": False}


def test_verify_tells_the_control_database_when_it_knows_the_savepoint(tmp_path: Path) -> None:
    source = put_checkpoint(LocalFiles(), str(tmp_path / "s"))
    control = f"sqlite:///{tmp_path / 'control.db'}"
    run("savepoint", "verify", source.path, "--control", control)
    assert not (tmp_path / "control.db").exists(), "nobody asked for a database"
    run("savepoint", "import", source.path, "--control", control)
    run("savepoint", "verify", source.path, "--control", control)
    with ControlClient(control) as client:
        [known] = client.savepoints()
        assert (known.verified_ok, known.problems) == (True, ())
        victim = Path(source.path) / "queries" / "raw" / "spark" / "state" / "0" / "0" / "6.zip"
        victim.write_bytes(b"zup" * 5)
        run("savepoint", "verify", source.path, "--control", control, code=65)
        [known] = client.savepoints()
        assert known.verified_ok is False
        assert str(victim) in known.problems[0]
        assert [(each.action, each.subject) for each in client.audit(limit=2)] == [("verify", source.path)] * 2


def test_a_job_that_has_a_driver_is_left_alone(root: str) -> None:
    generations.claim(LocalFiles(), f"{root}/flights/generations", Holder.of([os.getpid()]))
    assert "is running" in run("savepoint", "create", "flights", "--root", root, code=75)
    error = run_json_error("savepoint", "create", "flights", "--root", root, code=75)
    assert error["type"] == "JobRunning"


def run_json_error(*arguments: str, code: int) -> Any:
    return run_json(*arguments, code=code)["error"]


def test_a_reference_that_means_nothing_is_answered_with_what_is_near(root: str, tmp_path: Path) -> None:
    run("savepoint", "create", "flights", "--root", root, "--label", "before-the-upgrade")
    near = run("savepoint", "show", "flights", "before-upgrade", "--root", root, code=78)
    assert "did you mean before-the-upgrade?" in near
    assert "give the job and an id, a label or latest; or a path" in run("savepoint", "show", "end", code=2)
    assert "expected 2 or 3 arguments, not 1" in run("savepoint", "state", "/s/7", code=2)
    assert "expected 1 or 2 arguments, not 3" in run("savepoint", "show", "flights", "/s/7", "more", code=2)
    assert "did you mean flights?" in run("savepoint", "create", "flihgts", "--root", root, code=78)
    assert "did you mean flights?" in run("restore", "flihgts", "latest", "--root", root, code=78)
    assert not (tmp_path / "jobs" / "flihgts").exists()


def test_a_directory_of_spark_is_adopted_and_given_back(root: str, tmp_path: Path) -> None:
    plain, target, again = str(tmp_path / "plain"), str(tmp_path / "adopted"), str(tmp_path / "again")
    run_spark(LocalFiles(), plain, 2, planned=True)
    LocalFiles().create(f"{plain}/metadata", b'{"id":"its-own"}')
    made = run("savepoint", "create", "new", "--adopt", plain, "--query", "delays", "--target", target)
    assert "epoch 3 was planned but not committed" in made
    assert "use it as the query's checkpointLocation" in run("savepoint", "export", target, "delays", again)
    assert json.loads(Path(again, "metadata").read_text()) == {"id": "its-own"}
    assert "has no query 'delayz'; it has: delays; did you mean delays?" in run(
        "savepoint", "export", target, "delayz", again, code=78
    )
    restored = run_json("restore", "new", target, "--root", root)
    assert restored["restore"]["queries"] == {"delays": "lineage-000001"}
    assert "--adopt needs a --target" in run("savepoint", "create", "new", "--adopt", plain, code=2)


def test_dispose_asks_first(root: str) -> None:
    run("savepoint", "create", "flights", "--root", root)
    arguments = ("savepoint", "dispose", "flights", "1", "--root", root)
    result = call(*arguments, text="n\n")
    assert result.exit_code == 1
    assert len(run_json("savepoint", "list", "flights", "--root", root)) == 1


def test_restore_checks_first_and_tells_what_it_did(root: str) -> None:
    run("savepoint", "create", "flights", "--root", root)
    run_spark(LocalFiles(), f"{root}/flights/queries/delays/lineage-000001/spark", 6)
    checked = run("restore", "flights", "1", "--root", root, "--check", "--no-verify")
    assert "can be restored; nothing was changed" in checked
    assert "epochs 4 to 6 were committed after the checkpoint" in checked
    assert lineage_of(root) == "lineage-000001"
    assert "job flights was restored from" in run("restore", "flights", "1", "--root", root)
    assert lineage_of(root) == "lineage-000002"
    assert "job copy was forked from" in run("restore", "flights", "latest", "--root", root, "--as", "copy")
    assert lineage_of(root, "copy") == "lineage-000001"


@pytest.mark.parametrize("options", [(), ("--check",)])
def test_a_fork_is_not_taken_for_a_restore_of_the_job_itself(root: str, options: tuple[str, ...]) -> None:
    run("savepoint", "create", "flights", "--root", root)
    said = run("restore", "flights", "1", "--root", root, "--as", "flights", *options, code=78)
    assert "'flights' is the job itself" in said
    assert lineage_of(root) == "lineage-000001"


def test_a_damaged_savepoint_is_refused(root: str) -> None:
    run("savepoint", "create", "flights", "--root", root)
    victim = Path(root, "flights", "savepoints", "1", "queries", "delays", "spark", "commits", "3")
    victim.unlink()
    victim.write_bytes(b"v1")
    fields = run_json("restore", "flights", "1", "--root", root, "--check", code=65)
    assert fields["refused"] is True
    assert str(victim) in run("restore", "flights", "1", "--root", root, code=65)
    assert lineage_of(root) == "lineage-000001"


def test_a_query_that_would_be_left_behind_is_refused(root: str) -> None:
    run("savepoint", "create", "flights", "--root", root)
    open_lineage(LocalFiles(), f"{root}/flights/queries/more", QueryName("more"), {OP: RECORD})
    assert "would begin empty" in run("restore", "flights", "1", "--root", root, code=78)
    run("restore", "flights", "1", "--root", root, "--allow-non-restored-state")
    assert lineage_of(root) == "lineage-000002"


def test_other_shuffle_partitions_are_checked_before_spark_is_asked(root: str) -> None:
    run("savepoint", "create", "flights", "--root", root)
    restore = ("restore", "flights", "1", "--root", root, "--shuffle-partitions")
    run(*restore, "0", code=2)
    for option in (["--check"], []):
        fields = run(*restore, "3", *option, code=78)
        assert "Spark rewrites that of RocksDB only" in fields
        assert lineage_of(root) == "lineage-000001"
    # It has one already: nothing for Spark to do.
    assert "1 in the checkpoint already" in run(*restore, "1")
    assert lineage_of(root) == "lineage-000002"


def test_a_restore_that_the_program_does_not_fit_is_undone(root: str) -> None:
    assert "it was never restored" in run("restore", "flights", "--undo", "--root", root, code=78)
    run("savepoint", "create", "flights", "--root", root)
    run("restore", "flights", "1", "--root", root)
    assert lineage_of(root) == "lineage-000002"
    assert "leave REF out" in run("restore", "flights", "1", "--undo", "--root", root, code=2)
    assert "is back where it was before it was restored from" in run("restore", "flights", "--undo", "--root", root)
    assert lineage_of(root) == "lineage-000001"
    run("restore", "flights", "1", "--root", root)
    assert run_json("restore", "flights", "--undo", "--root", root)["undone"]["checkpoint"] == 1
    assert "name what to restore" in run("restore", "flights", "--root", root, code=2)


@pytest.mark.parametrize("options", [("--check",), (), ("--as", "copy")], ids=["check", "restore", "fork"])
@pytest.mark.parametrize("victim", ["_metadata", "queries/delays/spark/state/0/0/4.snapshot"])
def test_what_is_damaged_ends_with_one_code_and_leaves_nothing(
    root: str, victim: str, options: tuple[str, ...]
) -> None:
    made = run_json("savepoint", "create", "flights", "--root", root)
    path = Path(made["path"], victim)
    content = path.read_bytes()
    path.unlink()  # it is linked to the live one
    path.write_bytes(content[:-1])
    run("restore", "flights", made["path"], "--root", root, *options, code=65)
    assert lineage_of(root) == "lineage-000001"
    assert not Path(root, "copy").exists()


def test_what_is_proposed_for_a_folder_without_a_checkpoint_is_one(root: str, tmp_path: Path) -> None:
    for name in ("backup-1", "backup-2"):
        (tmp_path / name).mkdir()
    said = run("restore", "flights", str(tmp_path / "backup-1"), "--root", root, code=78)
    assert "did you mean" not in said
    assert "see coordctl savepoint list" in said
    made = run_json("savepoint", "create", "flights", "--root", root)
    shutil.copytree(made["path"], tmp_path / "backup-3")
    said = run("restore", "flights", str(tmp_path / "backup-1"), "--root", root, code=78)
    assert f"did you mean {tmp_path}/backup-3?" in said
