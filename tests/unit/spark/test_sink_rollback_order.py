"""Setting sinks back: what is asked before, in which order, and what a crash or a newer driver finds."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from coord_control.durable.checkpoints.metadata_file import SinkSnapshot
from coord_control.durable.files.filesystem import join
from coord_control.durable.job_folder.lineage import are_sinks_set_back, is_sink_back
from coord_control.errors import DamagedRecord, Fenced, OlderDriverAlive, RestoreRefused
from coord_control.ids import Generation, QueryName
from coord_control.spark.job.sink_rollback import SinkRollback
from coord_control.spark.sinks.table_format import FORMATS
from tests.simulation.memory_files import MemoryFiles

JOB = "/jobs/flights"


class Tables:
    """A table format that notes what is asked of it."""

    def __init__(self, gone: str = "", fails: str = "") -> None:
        self.calls: list[tuple[str, str, str]] = []
        self._gone, self._fails = gone, fails

    def exists(self, spark: Any, place: str, position: str) -> bool:
        self.calls.append(("exists", place, position))
        if place == self._fails:
            raise OSError("the catalog is down")
        return place != self._gone

    def roll_back(self, spark: Any, place: str, position: str) -> None:
        self.calls.append(("roll_back", place, position))
        if place == self._fails:
            raise OSError("the catalog is down")


def _restore(*, rolls_back: bool = True) -> Any:
    sinks = {"a": SinkSnapshot(kind="table", place="db.a", position="3"), "b": SinkSnapshot(kind="kafka")}
    sinks["c"] = SinkSnapshot(kind="table", place="db.c", position="5")
    return SimpleNamespace(
        path="/savepoints/one",
        is_applied=True,
        can_undo=True,
        is_rolled_back=False,
        has_touched_sinks=False,
        record=SimpleNamespace(roll_back_sinks=rolls_back, queries=dict.fromkeys(sinks, "lineage-000002")),
        metadata=SimpleNamespace(queries={QueryName(q): SimpleNamespace(sink=sink) for q, sink in sinks.items()}),
    )


def _rollback(
    files: MemoryFiles, tables: Any, monkeypatch: pytest.MonkeyPatch, verify: Any = None, verify_alone: Any = None
) -> SinkRollback:
    monkeypatch.setitem(FORMATS, "table", tables)
    place: Any = SimpleNamespace(files=files, folder=JOB, storage=lambda path: files)
    spark: Any = None
    return SinkRollback(place, spark, verify or (lambda: None), verify_alone or (lambda: None))


def _marked(files: MemoryFiles, is_marked: Callable[..., bool] = are_sinks_set_back) -> list[str]:
    lineages = {query: join(JOB, "queries", query, "lineage-000002") for query in "abc"}
    return [query for query, lineage in lineages.items() if is_marked(files, lineage)]


def test_all_tables_are_asked_before_one_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    files, tables, restore = MemoryFiles(), Tables(gone="db.c"), _restore()
    rollback = _rollback(files, tables, monkeypatch)
    with pytest.raises(
        RestoreRefused, match=r"sink of c: db\.c cannot go back to version 5: the table has removed"
    ) as e:
        rollback.check(restore)
    assert "db.a" not in str(e.value)
    assert [call[0] for call in tables.calls] == ["exists", "exists"]
    assert _marked(files) == []


def test_a_table_that_cannot_be_asked_refuses_the_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    rollback = _rollback(MemoryFiles(), Tables(fails="db.a"), monkeypatch)
    with pytest.raises(RestoreRefused, match="the catalog is down"):
        rollback.check(_restore())
    monkeypatch.delitem(FORMATS, "table")
    with pytest.raises(RestoreRefused, match="this release cannot set such a table back"):
        rollback.check(_restore())


def test_sinks_that_have_versions_go_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    files, tables, restore = MemoryFiles(), Tables(), _restore()
    rollback = _rollback(files, tables, monkeypatch)
    for _ in range(2):
        rollback.carry_out(restore)
    assert tables.calls == [("roll_back", "db.a", "3"), ("roll_back", "db.c", "5")]
    assert (restore.is_rolled_back, restore.has_touched_sinks, _marked(files)) == (True, True, ["a", "c"])
    assert _marked(files, is_sink_back) == ["a", "c"]


def test_after_a_failure_all_sinks_go_back_again(monkeypatch: pytest.MonkeyPatch) -> None:
    files, restore = MemoryFiles(), _restore()
    with pytest.raises(OSError, match="down"):
        _rollback(files, Tables(fails="db.c"), monkeypatch).carry_out(restore)
    assert (restore.is_rolled_back, restore.has_touched_sinks) == (False, True)
    assert (_marked(files), _marked(files, is_sink_back)) == (["a", "c"], ["a"]), "begun is not back"
    again = Tables()
    _rollback(files, again, monkeypatch).carry_out(restore)
    assert again.calls == [("roll_back", "db.a", "3"), ("roll_back", "db.c", "5")]


def test_a_driver_that_was_fenced_touches_no_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who undoes the restore claims first and looks for marks then: one of the two stops."""
    files, tables = MemoryFiles(), Tables()

    def fenced() -> None:
        assert _marked(files) == ["a", "c"], "the marks come first"
        raise Fenced("flights", Generation(3))

    with pytest.raises(Fenced):
        _rollback(files, tables, monkeypatch, fenced).carry_out(_restore())
    assert tables.calls == []


def test_no_sink_is_touched_while_an_earlier_driver_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: what that driver wrote when it woke up hid epochs of this one, and others came out twice."""
    files, tables, restore = MemoryFiles(), Tables(), _restore()

    def alive() -> None:
        raise OlderDriverAlive(3, [17, 18])

    with pytest.raises(OlderDriverAlive, match=r"generation 3 .* no sink was touched.*kill -9 17 18") as e:
        _rollback(files, tables, monkeypatch, verify_alone=alive).carry_out(restore)
    assert e.value.retry, "the supervisor may try again"
    assert (tables.calls, _marked(files), restore.has_touched_sinks) == ([], [], False)


def test_a_driver_that_is_fenced_meanwhile_touches_no_further_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: it went on with a sink that its successor had set back, and wrote to."""
    files, tables = MemoryFiles(), Tables()

    def fenced() -> None:
        if tables.calls:
            raise Fenced("flights", Generation(3))

    restore = _restore()
    with pytest.raises(Fenced):
        _rollback(files, tables, monkeypatch, fenced).carry_out(restore)
    assert tables.calls == [("roll_back", "db.a", "3")]
    assert not restore.is_rolled_back


def test_an_entry_that_an_older_driver_writes_late_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    files, restore = MemoryFiles(), _restore()
    sink = SinkSnapshot(kind="file", place="/out", position="-1")
    restore.metadata.queries = {
        QueryName("a"): SimpleNamespace(sink=sink, sink_files=()),
        QueryName("c"): restore.metadata.queries[QueryName("c")],
    }

    class Late(Tables):
        def roll_back(self, spark: Any, place: str, position: str) -> None:
            files.replace("/out/_spark_metadata/4", b"v1")

    with pytest.raises(DamagedRecord, match=r"_spark_metadata is damaged: its newest entry is 4, .* set back to -1"):
        _rollback(files, Late(), monkeypatch).carry_out(restore)
    assert not restore.is_rolled_back
    _rollback(files, Tables(), monkeypatch).carry_out(restore)
    assert restore.is_rolled_back
    assert files.list("/out/_spark_metadata") == []


def test_a_restore_without_its_sinks_leaves_them_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    files, tables, restore = MemoryFiles(), Tables(gone="db.a"), _restore(rolls_back=False)
    rollback = _rollback(files, tables, monkeypatch)
    rollback.check(restore)
    rollback.carry_out(restore)
    assert (tables.calls, _marked(files), restore.has_touched_sinks) == ([], [], False)
