"""The threads around draining, with queries of the test's: what is waited for, for how long, and what ends it."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import pytest

from coord_control.errors import CheckpointNotCompleted, StoreUnavailable
from coord_control.protocol.query_state import QueryState
from coord_control.spark.checkpoints import drain_first
from coord_control.spark.checkpoints.drain_first import drain
from tests.patience import SECONDS, eventually
from tests.unit.spark.test_drain import kafka, progress

SHORT: Final = 0.3


class Run:
    """A run of Spark: it is asked whether it is idle."""

    def __init__(self) -> None:
        self.isActive = True
        self.asked, self._released = threading.Event(), threading.Event()

    def processAllAvailable(self) -> None:
        self.asked.set()
        assert self._released.wait(SECONDS)

    def is_idle(self) -> None:
        self._released.set()

    def end(self) -> None:
        self.isActive = False
        self._released.set()


class Query:
    """A query as draining sees it."""

    def __init__(self, name: str = "q") -> None:
        self.name = name
        self.state = QueryState.RUNNING
        self.error: Exception | None = None
        self.spark_query = Run()
        self.committed = 0
        self.progress: dict[str, Any] = {}
        self.looks: list[Exception | None] = []

    @property
    def is_active(self) -> bool:
        return self.state.is_active

    def look(self) -> int:
        if self.looks and (error := self.looks.pop()) is not None:
            raise error
        return self.committed

    def status(self) -> Any:
        return self

    def hears(self, epoch: int, *sources: tuple[Any, Any]) -> None:
        self.committed, self.progress = epoch, progress(epoch, *sources)


class Draining:
    """Drains on another thread."""

    def __init__(self, *queries: Any, seconds: float = SECONDS) -> None:
        self.told: list[str] = []
        self.stop: Exception | None = None
        self.error: Exception | None = None
        self._queries, self._seconds = queries, seconds
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        try:
            drain(self._queries, self.told.append, self._check, self._seconds)
        except Exception as error:
            self.error = error

    def _check(self) -> None:
        if self.stop is not None:
            raise self.stop

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def over(self) -> None:
        self._thread.join(SECONDS)
        assert self.is_over


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_first, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(drain_first, "_TELL_SECONDS", 0.0)


def test_every_query_is_waited_for_and_what_is_left_is_told() -> None:
    orders, files = Query("orders"), Query("files")
    draining = Draining(orders, files)
    eventually(lambda: draining.told)
    orders.hears(2, (kafka(0), kafka(1234)))
    eventually(
        lambda: (
            draining.told[-1] == "draining: query 'orders' has 1,234 records left; query 'files' still finds new data"
        )
    )
    orders.hears(3, (kafka(1234), kafka(5000)))
    eventually(lambda: draining.told[-1] == "draining: query 'files' still finds new data")
    assert not draining.is_over
    files.spark_query.is_idle()
    draining.over()
    assert draining.error is None


def test_a_job_without_queries_is_drained() -> None:
    drain([], lambda _: None, lambda: None, SHORT)


def test_a_query_that_is_being_restarted_is_waited_for_and_its_next_run_is_watched() -> None:
    query = Query()
    draining = Draining(query)
    assert query.spark_query.asked.wait(SECONDS)
    query.spark_query.end()
    time.sleep(0.1)
    assert not draining.is_over, "the end of a run is no silence"
    query.state = QueryState.RESTARTING
    eventually(lambda: draining.told[-1:] == ["draining: query 'q' is being restarted"])
    query.spark_query = Run()
    query.state = QueryState.RUNNING
    assert query.spark_query.asked.wait(SECONDS)
    query.spark_query.is_idle()
    draining.over()
    assert draining.error is None


def test_a_query_that_has_ended_by_itself_is_drained() -> None:
    query = Query()
    query.state = QueryState.FINISHED
    Draining(query).over()


def test_a_query_that_has_failed_for_good_is_not() -> None:
    query = Query()
    draining = Draining(query)
    query.error = OSError("no")
    draining.over()
    assert isinstance(draining.error, CheckpointNotCompleted)
    assert draining.error.reason == "query_failed"
    assert "query 'q' failed while it was drained" in str(draining.error)


def test_the_time_that_ends_names_the_query_and_what_is_left() -> None:
    query = Query()
    query.hears(0)
    draining = Draining(query, seconds=SHORT)
    eventually(lambda: draining.told)
    query.hears(2, (kafka(0), kafka(12)))
    draining.over()
    assert isinstance(draining.error, TimeoutError)
    assert "draining, query 'q' has 12 records left: there is no savepoint" in str(draining.error)


def test_what_is_not_wanted_any_more_ends_at_once() -> None:
    query = Query()
    draining = Draining(query)
    draining.stop = CheckpointNotCompleted("savepoint", "aborted", "on request")
    draining.over()
    assert draining.error is draining.stop
    assert query.state is QueryState.RUNNING


def test_a_storage_that_is_away_for_a_moment_is_asked_again() -> None:
    query = Query()
    query.looks = [None, StoreUnavailable("jobs", "read", "no route")]
    draining = Draining(query)
    assert query.spark_query.asked.wait(SECONDS)
    query.spark_query.is_idle()
    draining.over()
    assert draining.error is None


def test_progress_is_told_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_first, "_TELL_SECONDS", SECONDS)
    query = Query()
    draining = Draining(query)
    eventually(lambda: draining.told)
    query.hears(2, (kafka(0), kafka(12)))
    time.sleep(0.1)
    assert draining.told == ["draining: query 'q' still finds new data"]
    draining.stop = OSError("over")
    draining.over()
