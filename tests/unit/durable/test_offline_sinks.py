"""Savepoints and restores of jobs that do not run, and their sinks."""

from __future__ import annotations

import pytest

from coord_control.durable.checkpoints.metadata_file import SinkSnapshot, encode_metadata
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.restore_log import newest_restore
from coord_control.durable.job_folder.sink_record import SinkRecord, write_sink
from coord_control.durable.offline.offline_restore import restore_job
from coord_control.durable.offline.offline_savepoint import save
from coord_control.durable.restore.request import RestoreRequest
from coord_control.errors import RestoreRefused
from tests.simulation.memory_files import MemoryFiles
from tests.unit.durable.restore_kit import JOB, QUERIES, opened, run_spark

RAW = QUERIES[1]
OUT = "file:/out"


def ran_to(files: MemoryFiles, epoch: int, kind: str = "file") -> None:
    """One query ran to an epoch, and so did its sink."""
    lineage = opened(files, RAW)
    run_spark(files, lineage.checkpoint, epoch)
    write_sink(files, lineage.folder, SinkRecord(kind=kind, place=OUT))
    if kind == "file":
        for number in range(epoch + 1):
            files.replace(f"{OUT}/_spark_metadata/{number}", b"v1\n")


def restore(files: MemoryFiles, path: str, *, roll_back_sinks: bool = False) -> None:
    request = RestoreRequest(ref=path, roll_back_sinks=roll_back_sinks)
    restore_job(files, lambda path: files, request, root="/jobs", job="flights")


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
