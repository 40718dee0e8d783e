from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coord_control.control.client.database_connection import DatabaseConnection
from coord_control.control.settings import ControlSettings
from coord_control.errors import (
    DatabaseBusy,
    DatabaseReadOnly,
    DatabaseUnavailable,
    DatabaseUrlInvalid,
    NoControlPlane,
)
from coord_control.storage.store import ControlStore
from tests import control_kit as kit


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(round(seconds, 3))
        self.now += seconds


class Failing:
    """An action that fails some times, and then works."""

    def __init__(self, times: int, error: Exception) -> None:
        self.times, self.error, self.calls = times, error, 0

    def __call__(self, store: ControlStore) -> str:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return "done"


def connection(folder: Path, time: Time, **values: Any) -> DatabaseConnection:
    return DatabaseConnection(
        kit.settings(folder, **values), application="test", sleep=time.sleep, clock=lambda: time.now
    )


@pytest.mark.parametrize("error", [DatabaseUnavailable("db", "refused"), DatabaseBusy("db", "locked")])
def test_it_asks_again_with_growing_pauses(tmp_path: Path, error: Exception) -> None:
    time, action = Time(), Failing(7, error)

    assert connection(tmp_path, time).call(action) == "done"
    assert time.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_it_gives_up_within_its_time_with_the_error_of_the_database(tmp_path: Path) -> None:
    time, action = Time(), Failing(99, DatabaseUnavailable("db", "refused"))

    with pytest.raises(DatabaseUnavailable, match="refused"):
        connection(tmp_path, time, retry_seconds=5.0).call(action)
    assert time.now <= 5.0
    assert action.calls > 3


def test_an_error_that_no_waiting_helps_is_not_tried_again(tmp_path: Path) -> None:
    time, action = Time(), Failing(1, DatabaseReadOnly("db", "read-only"))

    with pytest.raises(DatabaseReadOnly):
        connection(tmp_path, time).call(action)
    assert (action.calls, time.pauses) == (1, [])


def test_after_it_was_closed_another_call_connects_again(tmp_path: Path) -> None:
    with kit.opened(tmp_path) as store:
        kit.put_job(store)
    used = connection(tmp_path, Time())
    assert len(used.call(lambda store: store.jobs.list())) == 1

    used.close()
    used.close()
    assert len(used.call(lambda store: store.jobs.list())) == 1
    used.close()


@pytest.mark.parametrize(("url", "error"), [("none", NoControlPlane), ("mysql://x/y", DatabaseUrlInvalid)])
def test_an_address_that_cannot_be_used_is_said_at_once(url: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        DatabaseConnection(ControlSettings.load(url), application="test")
