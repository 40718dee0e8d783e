"""What a checkpoint records about a sink, also when the sink cannot be asked."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from coord_control.durable.checkpoints.metadata_file import SinkSnapshot
from coord_control.durable.job_folder.sink_record import SinkRecord
from coord_control.ids import CheckpointId, Epoch
from coord_control.spark.checkpoints import sink_position
from coord_control.spark.checkpoints.sink_position import sink_at
from coord_control.spark.sinks.table_format import FORMATS


class Table:
    """A table format that answers as the test says."""

    def __init__(self, answer: Any = "7") -> None:
        self.answer = answer
        self.asked: list[tuple[Any, ...]] = []

    def position(self, session: Any, place: str, query_id: str, epoch: Epoch) -> str:
        self.asked.append((place, query_id, epoch))
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, threading.Event):
            self.answer.wait(60)
        return str(self.answer)


QUERY: Any = SimpleNamespace(
    name="q", session=None, spark_query=None, lineage=SimpleNamespace(name="lineage-000001", query_id="id-of-q")
)


def _at(monkeypatch: pytest.MonkeyPatch, sink: SinkRecord | Exception, table: Any = None) -> SinkSnapshot:
    def sink_of(session: Any, query: Any) -> SinkRecord:
        if isinstance(sink, Exception):
            raise sink
        return sink

    monkeypatch.setattr(sink_position, "sink_of", sink_of)
    if table is not None:
        monkeypatch.setitem(FORMATS, "table", table)
    nothing: Any = None
    snapshot, files = sink_at(nothing, CheckpointId(3), QUERY, Epoch(41))
    assert files == ()
    return snapshot


def test_a_table_is_asked_for_its_version_at_the_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("7")
    sink = _at(monkeypatch, SinkRecord(kind="table", place="db.t"), table)
    assert sink == SinkSnapshot(kind="table", place="db.t", position="7")
    assert table.asked == [("db.t", "id-of-q", 41)]


def test_a_table_that_does_not_answer_fails_no_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(OSError("the catalog is down\nat line 3"))
    sink = _at(monkeypatch, SinkRecord(kind="table", place="db.t"), table)
    assert sink == SinkSnapshot(kind="table", place="db.t", unknown="the catalog is down")


def test_a_table_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_position, "_PATIENCE_SECONDS", 0.01)
    hangs = threading.Event()
    sink = _at(monkeypatch, SinkRecord(kind="table", place="db.t"), Table(hangs))
    hangs.set()
    assert (sink.position, sink.unknown) == (None, "it did not answer within 0 s")


def test_a_query_whose_sink_is_not_known_is_recorded_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _at(monkeypatch, AssertionError()) == SinkSnapshot(kind="unknown", unknown="AssertionError")


def test_a_sink_without_versions_has_no_position(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _at(monkeypatch, SinkRecord(kind="kafka")) == SinkSnapshot(kind="kafka")
