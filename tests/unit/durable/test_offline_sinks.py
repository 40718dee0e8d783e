"""Savepoints and restores of jobs that do not run, and their sinks."""

from __future__ import annotations

from typing import Any

import pytest

from coord_control.durable.checkpoints.checkpoint_folder import read_metadata
from coord_control.durable.checkpoints.checkpoint_source import open_checkpoint
from coord_control.durable.checkpoints.metadata_file import SinkSnapshot, encode_metadata
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.lineage import begin_setting_sinks_back, sink_is_back
from coord_control.durable.job_folder.restore_log import newest_restore
from coord_control.durable.job_folder.sink_record import SinkRecord, write_sink
from coord_control.durable.offline.offline_restore import restore_job
from coord_control.durable.offline.offline_savepoint import save
from coord_control.durable.restore.checks import Verdict
from coord_control.durable.restore.preflight_sinks import SinkOptions, check_sinks
from coord_control.durable.restore.request import RestoreRequest
from coord_control.errors import RestoreRefused, StoreUnavailable
from tests.simulation.memory_files import MemoryFiles
from tests.unit.durable.restore_kit import JOB, QUERIES, opened, run_spark
from tests.unit.durable.test_preflight_sources import log

RAW = QUERIES[1]
OUT = "file:/out"


def ran_to(files: MemoryFiles, epoch: int, kind: str = "file", *, content: bytes = b"v1\n", since: int = 0) -> None:
    """One query ran to an epoch, and so did its sink, whose log has this content from an epoch on."""
    lineage = opened(files, RAW)
    run_spark(files, lineage.checkpoint, epoch)
    write_sink(files, lineage.folder, SinkRecord(kind=kind, place=OUT))
    if kind == "file":
        for number in range(since, epoch + 1):
            files.replace(f"{OUT}/_spark_metadata/{number}", content)


def restore(files: MemoryFiles, path: str, *, root: str = "/jobs", **options: Any) -> None:
    restore_job(files, lambda path: files, RestoreRequest(ref=path, **options), root=root, job="flights")


def set_sinks_back(files: MemoryFiles) -> None:
    """A driver has set the sink back after the newest restore."""
    lineage = opened(files, RAW).folder
    begin_setting_sinks_back(files, lineage)
    sink_is_back(files, lineage)


def log_in(files: MemoryFiles, path: str) -> dict[str, str]:
    """The checksums of the sink's log in a savepoint."""
    metadata = read_metadata(files, path)
    assert metadata is not None
    return {entry.path: entry.crc32 for entry in metadata.queries[RAW].sink_files}


def saved(files: MemoryFiles, *, position: str | None = None) -> str:
    """Take a savepoint; with ``position`` it is as if a driver had asked the table."""
    made = save(files, JOB)
    path, metadata = made.path, made.metadata
    if position is not None:
        sink = SinkSnapshot(kind="delta", place=OUT, position=position)
        queries = {RAW: metadata.queries[RAW].model_copy(update={"sink": sink})}
        files.replace(join(path, "_metadata"), encode_metadata(metadata.model_copy(update={"queries": queries})))
    return path


@pytest.mark.parametrize(("kind", "position"), [("file", "3"), ("delta", "7")])
def test_a_savepoint_of_a_job_whose_sinks_are_to_go_back_takes_that_along(
    files: MemoryFiles, kind: str, position: str
) -> None:
    """Fault: its sink was unknown, and restoring it without the sinks dropped what was left to do with a warning."""
    ran_to(files, 3, kind)
    early = saved(files, position=None if kind == "file" else position)
    ran_to(files, 11, kind)
    restore(files, early, roll_back_sinks=True)
    again = save(files, JOB)
    assert again.metadata.queries[RAW].sink == SinkSnapshot(kind=kind, place=OUT, position=position)
    with pytest.raises(RestoreRefused, match="skips them"):
        restore(files, again.path)
    restore(files, again.path, roll_back_sinks=True)
    newest = newest_restore(files, JOB)
    assert newest is not None
    assert (newest.path, newest.roll_back_sinks) == (again.path, True)


def test_the_sink_of_a_query_that_has_run_since_its_restore_is_asked_again(files: MemoryFiles) -> None:
    ran_to(files, 3, "delta")
    early = saved(files, position="7")
    restore(files, early)
    ran_to(files, 4, "delta")
    sink = save(files, JOB).metadata.queries[RAW].sink
    assert sink is not None
    assert (sink.kind, sink.position) == ("delta", None)


def test_sinks_that_received_more_before_the_job_was_owned_are_seen(files: MemoryFiles) -> None:
    """Fault: they were looked at before the claim alone; a driver that ran in between was not seen."""
    ran_to(files, 3)
    early = saved(files)
    claims = len(files.list(f"{JOB}/generations"))

    def storage(path: str) -> Files:
        if len(files.list(f"{JOB}/generations")) > claims:
            files.replace(f"{OUT}/_spark_metadata/4", b"v1\n")  # what a driver did that ended just before
        return files

    request = RestoreRequest(ref=early)
    with pytest.raises(RestoreRefused, match="epoch 4 was received after the checkpoint"):
        restore_job(files, storage, request, root="/jobs", job="flights")
    assert newest_restore(files, JOB) is None


def test_input_that_was_read_before_the_job_was_owned_and_is_gone_is_missed(files: MemoryFiles) -> None:
    """Fault: it was looked for before the claim alone; a driver that ran in between had read and removed it."""
    ran_to(files, 3)
    early, lineage = saved(files), opened(files, RAW)

    class Reads:
        def before_write(self, path: str) -> None:
            pass

        def after_write(self, path: str) -> None:
            if path.startswith(f"{JOB}/generations/"):
                files.replace(join(lineage.checkpoint, "sources/0/4"), log([4]))

    with pytest.raises(RestoreRefused, match="1 of 1 files that were read after the checkpoint are gone"):
        restore(files.seen_by(Reads()), early)
    assert newest_restore(files, JOB) is None


def test_a_savepoint_before_the_sinks_are_back_has_the_log_of_the_restored_checkpoint(files: MemoryFiles) -> None:
    """Fault: it took what the sink held, of another history; setting the sink back to that doubled rows."""
    ran_to(files, 3)
    ran_to(files, 6, content=b"v1\nfirst\n", since=4)
    first = saved(files)
    ran_to(files, 7, content=b"v1\nsecond\n", since=4)
    restore(files, first, roll_back_sinks=True)
    again = saved(files)
    assert log_in(files, again) == log_in(files, first)
    restore(files, again, roll_back_sinks=True)
    assert log_in(files, saved(files)) == log_in(files, first)


def test_a_savepoint_whose_sink_holds_another_history_says_so(files: MemoryFiles) -> None:
    ran_to(files, 3)
    early = saved(files)
    ran_to(files, 3, content=b"v1\nsecond\n", since=2)
    restore(files, early, accept_skipped_epochs=True)
    sink = save(files, JOB).metadata.queries[RAW].sink
    assert sink is not None
    assert (sink.kind, sink.position) == ("file", None)
    assert "does not hold the epochs of the checkpoint" in sink.unknown


@pytest.mark.parametrize(("kind", "position"), [("file", "3"), ("delta", "7")])
def test_a_savepoint_in_another_root_takes_the_sink_along(files: MemoryFiles, kind: str, position: str) -> None:
    """Fault: its sinks were unknown and nothing was said of later epochs, so they were skipped."""
    ran_to(files, 3, kind)
    early = saved(files, position=None if kind == "file" else position)
    ran_to(files, 5, kind)
    restore(files, early, root="/other", roll_back_sinks=True)
    again = save(files, "/other/flights")
    assert again.metadata.queries[RAW].sink == SinkSnapshot(kind=kind, place=OUT, position=position)
    if kind == "file":
        with pytest.raises(RestoreRefused, match="epochs 4 to 5 were received after the checkpoint"):
            restore(files, again.path, root="/other")
    else:  # only a driver can ask the table
        with open_checkpoint(files, again.path) as source:
            [check] = check_sinks(files, "/other/flights", source, lambda path: files, SinkOptions())
        assert (check.verdict, check.found[:14]) == (Verdict.WARNING, "not known here")


def test_a_checkpoint_of_another_history_with_the_same_number_needs_its_sink_as_well(files: MemoryFiles) -> None:
    """Fault: the sink had "nothing after epoch 6", and of the other line of history."""
    ran_to(files, 6)
    first = saved(files)
    for number in range(3, 7):
        files.replace(f"{OUT}/_spark_metadata/{number}", b"v1\nsecond\n")
    with pytest.raises(RestoreRefused, match="holds other epochs up to 6 than when the checkpoint was taken"):
        restore(files, first)
    restore(files, first, roll_back_sinks=True)


def test_a_log_that_cannot_be_read_does_not_pass_for_that_of_the_checkpoint(
    files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran_to(files, 3)
    early = saved(files)

    def fail(path: str, names: object) -> None:
        raise StoreUnavailable(path, "read files of", "the disk is gone")

    monkeypatch.setattr(files, "checksum_all", fail)
    with open_checkpoint(files, early) as source, pytest.raises(StoreUnavailable, match="the disk is gone"):
        check_sinks(files, JOB, source, lambda path: files, SinkOptions())


def test_a_table_that_went_back_to_another_history_holds_no_checkpoint_of_this_one(files: MemoryFiles) -> None:
    ran_to(files, 3, "delta")
    early = saved(files, position="7")
    ran_to(files, 6, "delta")
    first = saved(files, position="10")
    restore(files, early, roll_back_sinks=True)
    set_sinks_back(files)
    ran_to(files, 6, "delta")
    second = saved(files, position="14")
    restore(files, first, roll_back_sinks=True)
    set_sinks_back(files)
    with pytest.raises(RestoreRefused, match="was set back to another history after the checkpoint"):
        restore(files, second)
    restore(files, first)  # that is what it holds
    restore(files, second, roll_back_sinks=True)
    set_sinks_back(files)
    ran_to(files, 6, "delta")
    third = saved(files, position="14")  # of the lineage that was restored from the second one
    restore(files, third, roll_back_sinks=True)
    set_sinks_back(files)
    restore(files, second)


def test_a_table_that_went_back_to_a_checkpoint_of_another_root_holds_nothing_of_this_one(files: MemoryFiles) -> None:
    ran_to(files, 3, "delta")
    for _ in range(2):
        moved = saved(files, position="7")
        restore(files, moved)
        ran_to(files, 4, "delta")
    moved = saved(files, position="7")  # of the third lineage there
    restore(files, moved, root="/other")
    here = save(files, "/other/flights").path
    restore(files, moved, root="/other", roll_back_sinks=True)
    lineage = f"/other/flights/queries/{RAW}/lineage-000002"
    begin_setting_sinks_back(files, lineage)
    sink_is_back(files, lineage)
    with pytest.raises(RestoreRefused, match="was set back to another history after the checkpoint"):
        restore(files, here, root="/other")
