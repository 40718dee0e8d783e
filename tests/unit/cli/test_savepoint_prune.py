"""`coordctl savepoint prune`: on the storage of a job, and through its driver. No Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coord_control.control.commands import Refusal
from coord_control.durable.checkpoints.holds import hold
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder.lineage import open_lineage
from coord_control.durable.offline.offline_savepoint import save
from coord_control.storage.records import CommandRecord, JobState, Outcome
from coord_control.storage.store import ControlStore
from tests import control_kit as kit
from tests.cli_kit import invoke, run, run_json
from tests.unit.durable.restore_kit import QUERIES, run_spark

_PRUNE = ("savepoint", "prune", "flights")


@pytest.fixture
def root(tmp_path: Path, store: ControlStore) -> str:
    """The root of a job with four savepoints that runs, as far as the control database knows."""
    root = str(tmp_path / "jobs")
    lineage = open_lineage(LocalFiles(), f"{root}/flights/queries/delays", QUERIES[0], {})
    run_spark(LocalFiles(), lineage.checkpoint, 3)
    for label, actor in (("nightly-1", "cron"), ("by-hand", "ada"), ("nightly-2", "cron"), ("nightly-3", "cron")):
        save(LocalFiles(), f"{root}/flights", label=label, requested_by=actor)
    kit.put_job(store, root=root, folder=f"{root}/flights")
    return root


@pytest.fixture
def ended(root: str, store: ControlStore) -> str:
    """The root of the job when it has ended."""
    store.jobs.ended("flights", 1, JobState.ENDED)
    return root


def _left(folder: Path) -> list[str]:
    return [each["label"] for each in run_json(folder, "savepoint", "list", "flights")]


def _labels(found: list[dict[str, Any]]) -> list[str]:
    return [each["label"] for each in found]


def test_all_but_the_newest_go(tmp_path: Path, ended: str) -> None:
    shown = run(tmp_path, *_PRUNE, "--keep", "2", "--yes")

    assert "2 of 4 savepoints of job flights were removed" in shown
    assert _left(tmp_path) == ["nightly-2", "nightly-3"]
    assert not Path(ended, "flights", "savepoints", "1-nightly-1").exists()
    assert "0 of 2 savepoints of job flights were removed" in run(tmp_path, *_PRUNE, "--keep", "2")


def test_only_those_that_are_meant(tmp_path: Path, ended: str) -> None:
    found = run_json(tmp_path, *_PRUNE, "--keep", "1", "--label", "nightly-*", "--yes")
    assert (_labels(found["removed"]), found["left"]) == (["nightly-1", "nightly-2"], 1)
    assert _left(tmp_path) == ["by-hand", "nightly-3"]
    assert run_json(tmp_path, *_PRUNE, "--keep", "1", "--by", "ada", "--yes")["removed"] == []


def test_a_young_one_stays(tmp_path: Path, ended: str) -> None:
    assert run_json(tmp_path, *_PRUNE, "--keep", "1", "--older-than", "7d", "--yes")["removed"] == []


def test_a_dry_run_changes_nothing(tmp_path: Path, ended: str) -> None:
    shown = run(tmp_path, *_PRUNE, "--keep", "3", "--dry-run")
    assert "1 of 4 savepoints of job flights would be removed; nothing was changed" in shown
    assert "nightly-1" in shown
    assert _labels(run_json(tmp_path, *_PRUNE, "--keep", "3", "--dry-run")["removed"]) == ["nightly-1"]
    assert len(_left(tmp_path)) == 4


def test_it_asks_first(tmp_path: Path, ended: str) -> None:
    result = invoke(tmp_path, *_PRUNE, "--keep", "1", text="n\n")
    assert result.exit_code == 1
    assert "remove these 3 of 4 savepoints?" in result.output
    assert len(_left(tmp_path)) == 4


def test_none_is_kept_is_refused(tmp_path: Path, ended: str) -> None:
    run(tmp_path, *_PRUNE, "--keep", "0", code=2)


def test_the_one_that_the_job_was_restored_from_stays(tmp_path: Path, ended: str) -> None:
    run(tmp_path, "restore", "flights", "by-hand")
    run(tmp_path, *_PRUNE, "--keep", "1", "--yes")
    assert _left(tmp_path) == ["by-hand", "nightly-3"]


def test_one_that_is_being_read_is_named_and_goes_next_time(tmp_path: Path, ended: str) -> None:
    with hold(LocalFiles(), f"{ended}/flights/savepoints/1-nightly-1", "somebody looks at it"):
        shown = run(tmp_path, *_PRUNE, "--keep", "2", "--yes", code=75)
    assert "savepoints/1-nightly-1 is kept: " in shown
    assert "1 of 4 savepoints of job flights were removed" in shown
    assert _left(tmp_path) == ["nightly-1", "nightly-2", "nightly-3"]
    run(tmp_path, *_PRUNE, "--keep", "2", "--yes")
    assert _left(tmp_path) == ["nightly-2", "nightly-3"]


def test_the_driver_of_a_running_job_removes_them(tmp_path: Path, root: str) -> None:

    def refuse_the_second(store: ControlStore, command: CommandRecord) -> Outcome:
        if command.payload["ref"] == "2":
            return kit.refused(Refusal.CHECKPOINT_IN_USE, "it is being read")
        return kit.completed(path="/somewhere", checkpoint=1)

    with kit.driver(tmp_path, refuse_the_second) as taken:
        found = run_json(tmp_path, *_PRUNE, "--keep", "2", "--yes", code=75)

    assert [(each.kind.value, each.payload) for each in taken] == [("dispose", {"ref": "1"}), ("dispose", {"ref": "2"})]
    assert _labels(found["removed"]) == ["nightly-1"]
    assert "CHECKPOINT_IN_USE" in found["not_removed"][0]["problem"]


def test_one_that_somebody_is_about_to_restore_stays(tmp_path: Path, root: str) -> None:
    run(tmp_path, "restore", "flights", "by-hand", "--no-wait")
    assert _labels(run_json(tmp_path, *_PRUNE, "--keep", "1", "--dry-run")["removed"]) == ["nightly-1", "nightly-2"]


def test_the_age_is_that_from_the_newest(tmp_path: Path, ended: str) -> None:
    found = run_json(tmp_path, *_PRUNE, "--keep", "1", "--older-than", "0s", "--yes")
    assert _labels(found["removed"]) == ["nightly-1", "by-hand", "nightly-2"]
