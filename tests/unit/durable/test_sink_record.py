from __future__ import annotations

from coord_control.durable.job_folder.sink_record import SinkRecord, read_sink, write_sink
from tests.simulation.memory_files import MemoryFiles


def test_the_sink_of_a_lineage_is_kept_for_when_the_job_does_not_run(files: MemoryFiles) -> None:
    assert read_sink(files, "/lineage") is None
    for sink in (SinkRecord(kind="kafka"), SinkRecord(kind="file", place="file:/out"), SinkRecord(kind="kafka")):
        for _ in range(2):
            write_sink(files, "/lineage", sink)
            assert read_sink(files, "/lineage") == sink
