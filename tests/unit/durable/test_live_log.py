"""The log of a job's live values: one durable record for each change, set back by a restore, fenced like the rest."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata, QuerySnapshot, Trigger
from coord_control.durable.files.filesystem import Files, LocalFiles, join
from coord_control.durable.job_folder.restore_log import RestoreRecord, commit_restore, next_number
from coord_control.durable.restore.live_log import LiveLog, stored_live_values
from coord_control.durable.restore.seeds import write_seed
from coord_control.ids import BarrierId, CheckpointId, Epoch, Generation, QueryName
from coord_control.protocol.records import LiveValue

NOON = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
QUERY = QueryName("q")
DEFAULTS = {"a": b"30"}


@pytest.fixture
def files() -> Files:
    return LocalFiles()


@pytest.fixture
def job(tmp_path: Path) -> str:
    return str(tmp_path / "job")


def log(files: Files, job: str, generation: int) -> LiveLog:
    return LiveLog(files, job, Generation(generation))


def restore(files: Files, job: str, live: dict[str, LiveValue], *, undoes: bool = False) -> int:
    number = next_number(files, job)
    name = f"lineage-{number:06}"
    metadata = CheckpointMetadata(
        checkpoint=CheckpointId(1),
        kind="savepoint",
        job="job",
        generation=Generation(1),
        barrier=BarrierId(1),
        trigger=Trigger(cause="api", requested_at=NOON),
        triggered_at=NOON,
        completed_at=NOON,
        queries={QUERY: QuerySnapshot(query_id="id", epoch=Epoch(0), lineage="l", spark_version="4")},
        live=live,
    )
    write_seed(files, join(job, "queries", QUERY, name), metadata, QUERY)
    record = RestoreRecord(
        number=number,
        id=str(number),
        path="/s/1",
        checkpoint=CheckpointId(1),
        job="job",
        completed_at=NOON,
        ref="1",
        generation=Generation(1),
        committed_at=NOON,
        queries={QUERY: name},
        replaced=None if undoes else {QUERY: "before"},
    )
    commit_restore(files, job, "job", record)
    return number


def test_a_new_job_begins_with_the_default_durably(files: Files, job: str) -> None:
    assert log(files, job, 1).open(DEFAULTS)["a"].version == 1
    assert stored_live_values(files, job, Generation(2)) == {"a": LiveValue(1, b"30")}


def test_the_default_counts_for_a_new_job_only(files: Files, job: str) -> None:
    log(files, job, 1).open(DEFAULTS)
    found = log(files, job, 2).open({"a": b"99", "b": b"1"})
    assert {name: (change.version, change.value) for name, change in found.items()} == {"a": (1, b"30"), "b": (1, b"1")}


def test_a_change_is_found_by_the_next_driver_and_costs_one_file(files: Files, job: str) -> None:
    first = log(files, job, 1)
    first.open(DEFAULTS)
    before = {info.path for info in files.walk(join(job, "live"))}
    first.change("a", b"45", key="k", by="me")
    assert len({info.path for info in files.walk(join(job, "live"))} - before) == 1
    found = log(files, job, 2).open(DEFAULTS)["a"]
    assert (found.version, found.value, found.by) == (2, b"45", "me")


def test_a_request_is_carried_out_once_also_by_the_next_driver(files: Files, job: str) -> None:
    first = log(files, job, 1)
    first.open(DEFAULTS)
    made = first.change("a", b"45", key="k")
    assert first.change("a", b"46", key="k") == made
    second = log(files, job, 2)
    second.open(DEFAULTS)
    assert second.change("a", b"45", key="k") == made
    assert second.change("a", b"45", key="other").version == 3


def test_what_a_fenced_driver_writes_is_never_read(files: Files, job: str) -> None:
    first, second = log(files, job, 1), log(files, job, 2)
    first.open(DEFAULTS)
    second.open(DEFAULTS)
    first.change("a", b"66", key="late")
    assert second.change("a", b"45", key="k").version == 2
    third = log(files, job, 3)
    assert third.open(DEFAULTS)["a"].value == b"45"
    assert third.find("late") is None


def test_a_restore_sets_values_back_under_a_version_above_all_others(files: Files, job: str) -> None:
    first = log(files, job, 1)
    first.open(DEFAULTS)
    for value in (b"31", b"32", b"33"):
        first.change("a", value)
    restore(files, job, {"a": LiveValue(2, b"31")})
    assert stored_live_values(files, job, Generation(2)) == {"a": LiveValue(2, b"31")}
    found = log(files, job, 3).open(DEFAULTS)["a"]
    assert (found.version, found.value, found.by) == (5, b"31", "the restore of /s/1")
    again = log(files, job, 4)
    assert again.open(DEFAULTS)["a"] == found
    assert again.change("a", b"40").version == 6


def test_a_value_that_the_checkpoint_does_not_have_begins_with_its_default(files: Files, job: str) -> None:
    first = log(files, job, 1)
    first.open(DEFAULTS)
    first.change("a", b"31")
    restore(files, job, {})
    found = log(files, job, 2).open(DEFAULTS)["a"]
    assert (found.version, found.value, found.by) == (3, b"30", "the default of the job")


def test_a_fork_inherits_and_goes_its_own_way(files: Files, job: str, tmp_path: Path) -> None:
    fork = str(tmp_path / "fork")
    restore(files, fork, {"a": LiveValue(4, b"44"), "gone": LiveValue(1, b"1")})
    ours = log(files, fork, 1)
    found = ours.open(DEFAULTS)
    assert (found["a"].version, found["a"].value) == (5, b"44")
    assert found["gone"].value == b"1", "a program that declares it again finds it"
    ours.change("a", b"1")
    assert stored_live_values(files, job, Generation(1)) == {}


@pytest.mark.parametrize("has_run", [False, True])
def test_an_undone_restore_gives_back_what_counted_before_it(files: Files, job: str, has_run: bool) -> None:
    first = log(files, job, 1)
    first.open(DEFAULTS)
    first.change("a", b"33")
    restore(files, job, {"a": LiveValue(1, b"30")})
    if has_run:
        second = log(files, job, 2)
        second.open(DEFAULTS)
        second.change("a", b"77")
    restore(files, job, {"a": LiveValue(9, b"not these")}, undoes=True)
    assert stored_live_values(files, job, Generation(3))["a"].value == b"33"
    found = log(files, job, 4).open(DEFAULTS)["a"]
    assert (found.version, found.value) == (5 if has_run else 3, b"33")


def test_a_job_without_live_values_has_no_log(files: Files, job: str) -> None:
    assert stored_live_values(files, job, Generation(1)) == {}
    assert not files.list(join(job, "live"))
