"""A file sink that was set back and holds an entry that its query has not planned."""

from __future__ import annotations

import pytest

from coord_control.errors import DamagedRecord
from coord_control.ids import Epoch
from coord_control.spark.queries.rolled_back_sink import RolledBackSink
from tests.simulation.memory_files import MemoryFiles

CHECKPOINT = "/jobs/flights/queries/q/lineage-000002/checkpoint"
LOG = "/out/_spark_metadata"


def _sink(files: MemoryFiles, *, entries: list[str], planned: int, committed: int) -> RolledBackSink:
    for name in entries:
        files.create(f"{LOG}/{name}", b"v1")
    for kind, newest in (("offsets", planned), ("commits", committed)):
        for epoch in range(newest + 1):
            files.create(f"{CHECKPOINT}/{kind}/{epoch}", b"v1")
    return RolledBackSink(files, "/out", files, CHECKPOINT)


@pytest.mark.parametrize("entries", [["0", "1", "2"], ["0", "1"], ["2.compact"], ["2.compact", "3"], []])
def test_a_query_that_writes_alone_is_left_alone(entries: list[str]) -> None:
    """It may be in its next epoch, and have written it, when the one before is heard of."""
    _sink(MemoryFiles(), entries=entries, planned=3, committed=2).check(Epoch(2))


@pytest.mark.parametrize("entry", ["4", "9.compact"])
def test_an_entry_of_an_epoch_that_was_not_planned_is_another_driver_s(entry: str) -> None:
    sink = _sink(MemoryFiles(), entries=["0", "1", "2", "3", entry], planned=3, committed=2)
    with pytest.raises(DamagedRecord, match=r"planned epochs up to 3: .* skips every epoch") as e:
        sink.check(Epoch(2))
    assert "coordctl restore JOB REF --roll-back-sinks" in str(e.value)
    assert not e.value.retry, "the query would skip its epochs"


def test_entries_are_listed_before_what_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query plans an epoch and writes it while it is looked at."""
    files = MemoryFiles()
    sink = _sink(files, entries=["0", "1", "2"], planned=2, committed=1)
    list_ = files.list

    def goes_on(path: str) -> list[str]:
        found = list_(path)
        if path == LOG:
            files.create(f"{CHECKPOINT}/commits/2", b"v1")
            files.create(f"{CHECKPOINT}/offsets/3", b"v1")
        elif "3" not in list_(LOG):
            files.create(f"{LOG}/3", b"v1")
        return found

    monkeypatch.setattr(files, "list", goes_on)
    sink.check(Epoch(1))
