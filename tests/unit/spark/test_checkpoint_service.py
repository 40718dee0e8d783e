"""The service on a real storage, with its threads; the core is scripted.

When a checkpoint starts, and which step comes next, is tested where it is decided (``protocol/scheduler``).
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest

from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_folder import Storage
from coord_control.durable.checkpoints.checkpoint_store import CheckpointStore
from coord_control.durable.checkpoints.pins import pin_savepoint
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.errors import (
    CheckpointNotCompleted,
    CoordControlError,
    Fenced,
    JobEndRequested,
    StoreUnavailable,
)
from coord_control.ids import CheckpointKind, Generation
from coord_control.protocol.query_state import QueryState
from coord_control.protocol.scheduler import checkpoint_run
from coord_control.protocol.scheduler.checkpoint_options import CheckpointOptions
from coord_control.protocol.scheduler.statistics_history import StatisticsHistory
from coord_control.protocol.scheduler.tickets import CheckpointRequest
from coord_control.protocol.statistics import CheckpointStatistics, CheckpointStatus
from coord_control.spark.checkpoints.checkpoint_contents import JobDescription
from coord_control.spark.checkpoints.checkpoint_service import CheckpointService
from coord_control.spark.job.news import News
from coord_control.spark.loop.runtime import JobRuntime
from coord_control.spark.queries.query import ManagedQuery
from tests.patience import eventually
from tests.unit.spark.test_checkpoint_work import SLOW, CheckpointRig, Core

SECONDS = 60.0  # a bug leaves requests open: mutations would be noticed late
SAVEPOINT = CheckpointRequest(kind=CheckpointKind.SAVEPOINT)


class Job:
    """The owner of the service."""

    def __init__(self, queries: list[ManagedQuery]) -> None:
        self._queries = queries

    def started_queries(self) -> list[ManagedQuery]:
        return self._queries

    def newest_restore(self) -> None:
        return None

    def fail_job(self, error: CoordControlError) -> None:
        raise AssertionError(error)


def service_of(rig: CheckpointRig, storage: Storage | None = None, **options: Any) -> CheckpointService:
    for query in rig.queries:
        query.state = QueryState.STOPPED
    return CheckpointService(
        CheckpointStore(rig.files, rig.folder, Generation(1), lambda: None, storage=storage),
        cast(JobRuntime, Core()),
        CheckpointOptions(**options),
        job=JobDescription("flights", Generation(1), "4.3.0", lambda uid: 1 / 0),  # type: ignore[arg-type, return-value]
        owner=Job(rig.queries),
        news=News(),
        look_seconds=0.01,
    )


def test_a_checkpoint_ends_although_its_statistics_cannot_be_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: an error there left the request open for ever, and the next checkpoint waited for it."""
    service = service_of(CheckpointRig(tmp_path, SLOW))
    update = StatisticsHistory.update

    def fail_at_the_end(history: StatisticsHistory, statistics: CheckpointStatistics) -> None:
        if statistics.status is not CheckpointStatus.IN_PROGRESS:
            raise ZeroDivisionError
        update(history, statistics)

    monkeypatch.setattr(StatisticsHistory, "update", fail_at_the_end)
    service.start()
    service.begin()
    first, second = service.submit(SAVEPOINT), service.submit(SAVEPOINT)
    assert first.wait(SECONDS).path != second.wait(SECONDS).path
    service.close(SECONDS)


def test_a_savepoint_of_queries_that_have_all_ended_waits_for_no_commit(tmp_path: Path) -> None:
    """Fault: it waited for ever."""
    rig = CheckpointRig(tmp_path, SLOW)
    rig.queries[0].has_operators = True  # type: ignore[misc]
    service = service_of(rig, timeout_seconds=10.0)
    service.start()
    service.begin()
    assert service.submit(SAVEPOINT).wait(20.0).id == 1
    service.close(SECONDS)


def test_a_storage_that_cannot_be_read_is_reported_once_and_the_checkpoint_still_expires(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    looks = []

    def look_for_next() -> None:
        looks.append(time.monotonic())
        raise StoreUnavailable("/commits/5", "read", OSError(5, "Input/output error"))

    rig = CheckpointRig(tmp_path, SLOW)
    [query] = rig.queries
    query.has_operators, query.is_active, query.look_for_next = True, True, look_for_next  # type: ignore[method-assign, misc]
    service = service_of(rig, timeout_seconds=1.0)
    service.start()
    service.begin()
    with caplog.at_level(logging.WARNING), pytest.raises(CheckpointNotCompleted, match="expired"):
        service.submit(SAVEPOINT).wait(20.0)
    service.close(SECONDS)
    assert len(looks) > 2
    assert [record.levelname for record in caplog.records if "wait for the storage" in record.message] == ["WARNING"]


class Hanging(LocalFiles):
    """A storage on which one kind of call hangs until it is released."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self.hangs, self.may_end = threading.Event(), threading.Event()

    def _meet(self, name: str) -> None:
        if name == self._name:
            self.hangs.set()
            assert self.may_end.wait(SECONDS)

    def list(self, path: str) -> list[str]:
        self._meet("claim")
        return super().list(path)

    def read(self, path: str) -> bytes:
        self._meet("pin")  # before anything is copied, whether the folder is still this savepoint's
        return super().read(path)

    def delete(self, path: str) -> None:
        self._meet("remove")
        super().delete(path)


@pytest.mark.parametrize("where", ["claim", "pin", "remove"])
def test_a_storage_that_hangs_under_a_savepoint_holds_up_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Fault: the claim and the removal of a savepoint elsewhere, and the look for labels, stopped all checkpoints."""
    monkeypatch.setattr(checkpoint_run, "REMOVED_SECONDS", 0.3)
    elsewhere, other = tmp_path / "elsewhere", Hanging(where)
    rig = CheckpointRig(tmp_path, SLOW)
    service = service_of(
        rig, lambda path: other if path.startswith(str(elsewhere)) else rig.files, timeout_seconds=1.0, retained=1
    )
    if where == "remove":

        def pin(live: Any, target_files: Any, target: str, *more: Any) -> Any:
            if target.startswith(str(elsewhere)):
                raise StoreUnavailable(target, "write", "the disk is full")
            return pin_savepoint(live, target_files, target, *more)

        monkeypatch.setattr(f"{CheckpointStore.__module__}.pin_savepoint", pin)
    service.start()
    service.begin()
    hung = service.submit(CheckpointRequest(kind=CheckpointKind.SAVEPOINT, target=str(elsewhere / "s"), label="far"))
    assert other.hangs.wait(SECONDS)
    done = [service.submit(CheckpointRequest(label=label)).wait(SECONDS).id for label in ("a", "b", "c")]
    with pytest.raises(CheckpointNotCompleted, match="storage" if where == "remove" else "expired"):
        hung.wait(SECONDS)
    assert service.overview().counts.failed == 1
    assert not other.may_end.is_set()
    other.may_end.set()
    eventually(lambda: [entry.checkpoint for entry in Catalog(rig.files, rig.folder).entries()] == done[-1:])
    # What hung ends first, and then what it wrote is removed.
    eventually(lambda: "coord-checkpoint-1" not in [thread.name for thread in threading.enumerate()])
    eventually(lambda: not (elsewhere / "s").exists())
    assert service.submit(CheckpointRequest(label="far")).wait(SECONDS).id > done[-1]
    service.close(SECONDS)


@pytest.mark.parametrize(
    ("error", "expected"),
    [(JobEndRequested("job"), JobEndRequested), (Fenced("job", 1, 2), Fenced), (None, CheckpointNotCompleted)],
)
def test_a_program_that_waits_when_the_job_ends_meets_what_has_ended_it(
    tmp_path: Path, error: Any, expected: type[Exception]
) -> None:
    service = service_of(CheckpointRig(tmp_path, SLOW))
    service.start()
    handle = service.submit(SAVEPOINT, lambda: error)  # it waits: queries are still being started
    time.sleep(0.1)
    service.close(SECONDS)
    late = service.submit(SAVEPOINT, lambda: error)
    for each in (handle, late):
        with pytest.raises(expected):
            each.wait(SECONDS)
