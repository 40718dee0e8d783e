from __future__ import annotations

from coord_control.durable.job_folder.sink_record import SinkRecord, newest_sink, read_sink, write_sink
from coord_control.durable.offline.undo import undo_restore
from tests.simulation.memory_files import MemoryFiles
from tests.unit.durable.restore_kit import JOB, QUERIES, opened, prepared, put_checkpoint, run_before


def test_the_sink_of_a_lineage_is_kept_for_when_the_job_does_not_run(files: MemoryFiles) -> None:
    assert read_sink(files, "/lineage") is None
    for sink in (SinkRecord(kind="kafka"), SinkRecord(kind="file", place="file:/out"), SinkRecord(kind="kafka")):
        for _ in range(2):
            write_sink(files, "/lineage", sink)
            assert read_sink(files, "/lineage") == sink


def test_the_sink_of_a_job_is_that_of_the_newest_lineage_that_counts(files: MemoryFiles) -> None:
    query, (one, other) = QUERIES[1], (SinkRecord(kind="file", place=f"file:/out{number}") for number in (1, 2))
    assert newest_sink(files, JOB, query) is None
    run_before(files)
    assert newest_sink(files, JOB, query) is None
    write_sink(files, opened(files, query).folder, one)
    prepared(files, put_checkpoint(files, "/savepoints/one")).commit()
    assert newest_sink(files, JOB, query) == one, "the restored query has not started"
    write_sink(files, opened(files, query).folder, other)
    assert newest_sink(files, JOB, query) == other
    undo_restore(files, JOB)
    assert newest_sink(files, JOB, query) == one
