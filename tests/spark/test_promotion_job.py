"""A fork takes the place of its parent on real Spark: no row is lost, none counts twice, and the way back is open."""

from __future__ import annotations

from pathlib import Path

import pytest

import coord_control as cc
from coord_control.control.client.control_client import ControlClient
from coord_control.control.settings import ControlSettings
from coord_control.durable.files.filesystem import Files, LocalFiles
from coord_control.launch.promotion import PromotionState, promote_fork
from tests.patience import SECONDS, eventually
from tests.spark.jobs import MakeJob, rows
from tests.spark.streams import FileStream
from tests.spark.test_restore import Results, collected, more


def _storage(path: str) -> Files:
    return LocalFiles()


def _start(job: cc.Job, source: FileStream, results: Results) -> None:
    """Sum the values of each key; a fork knows those before it from its state alone."""
    job.start("sums", collected(source.read().groupBy("key").sum("value"), results))
    job.await_termination(0.0)  # everything is declared


def _has_all(results: Results, epochs: int) -> bool:
    """Return whether the newest sum of each key is that of all rows of so many epochs."""
    found: dict[str, int] = dict(row for epoch in sorted(results) for row in results[epoch])
    oracle = {
        row["key"]: sum(each["value"] for epoch in range(epochs) for each in rows(epoch) if each["key"] == row["key"])
        for row in rows(0)
    }
    return found == oracle


def test_a_fork_is_promoted_while_rows_arrive_and_its_parent_can_come_back(
    make_job: MakeJob, source: FileStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORD_CONTROL_HEARTBEAT_SECONDS", "0.5")
    url = ControlSettings.load(f"sqlite:///{tmp_path / 'control.db'}").url
    old: Results = {}
    new: Results = {}
    parent = make_job("flights", control=url)
    _start(parent, source, old)
    eventually(lambda: _has_all(old, 3))
    with ControlClient(url) as client:
        savepoint = parent.trigger_savepoint(target=str(tmp_path / "before")).wait(SECONDS)
        more(source, range(3, 5))
        fork = make_job("flights-b", control=url, restore_from=savepoint.path, root=str(tmp_path / "other"))
        _start(fork, source, new)
        eventually(lambda: _has_all(new, 5) and _has_all(old, 5))
        assert sorted(new) == [3, 4], "the rows before come from the savepoint"
        fork.trigger_checkpoint().wait(SECONDS)
        more(source, [5])

        done = promote_fork(client, "flights-b", storage=_storage, ready_seconds=SECONDS, tell=print)

        assert (done.state, done.parent, done.problems) == (PromotionState.PROMOTED, "flights", ())
        assert done.unknown == ("the backlog of query sums, because its sources report none",)
        assert parent.await_termination(SECONDS)
        assert not client.job("flights").is_alive
        assert client.job("flights-b").is_alive
        assert _has_all(old, 5) or _has_all(old, 6), "the savepoint is between two epochs"
    more(source, range(6, 8))
    eventually(lambda: _has_all(new, 8))
    fork.stop()
    assert done.savepoint is not None
    back = make_job("flights", control=url, restore_from=done.savepoint.path)
    _start(back, source, old)
    eventually(lambda: _has_all(old, 8))
    back.stop()
