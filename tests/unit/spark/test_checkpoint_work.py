"""One checkpoint on a real storage, with threads that pin and write; Spark and the core are scripted.

The rules are those of ``protocol/scheduler/checkpoint_run.py``, tested in its own test module.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_store import CheckpointStore
from coord_control.durable.checkpoints.verification import verify_files
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.errors import Fenced, StateFileMissing
from coord_control.ids import BarrierId, CheckpointId, CheckpointKind, Epoch, Generation, OperatorUid, QueryName
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.messages import CheckpointFailed
from coord_control.protocol.recovery import Facts
from coord_control.protocol.scheduler.scheduler import StartCheckpoint
from coord_control.protocol.scheduler.tickets import CheckpointOutcome, CheckpointRequest, Ticket, TicketId
from coord_control.protocol.statistics import CheckpointStatistics
from coord_control.spark.checkpoints.checkpoint_contents import JobDescription
from coord_control.spark.checkpoints.checkpoint_work import CheckpointWork
from coord_control.spark.loop.runtime import JobRuntime
from coord_control.spark.queries.query import ManagedQuery
from tests.patience import SECONDS
from tests.unit.durable.checkpoint_kit import run_epoch

SLOW, PURGED = QueryName("slow"), QueryName("purged")
ID = CheckpointId(1)


class Core:
    """The loop and its core: what it was asked for, each answered at once."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.barriers: list[BarrierId] = []

    def call(self, call: Callable[[Any, float], Any]) -> Any:
        return call(self, 0.0)

    post = call

    def trigger_checkpoint(self, *_: object) -> BarrierId:
        self.calls.append("cut")
        self.barriers.append(BarrierId(7 + len(self.barriers)))
        return self.barriers[-1]

    def abort_checkpoint(self, *_: object) -> tuple[()]:
        self.calls.append("aborted")
        return ()

    def checkpoint_stored(self, *_: object) -> None:
        self.calls.append("stored")


class CheckpointRig:
    """A job on a local disk whose queries rest after their last commit, and one checkpoint of it."""

    def __init__(self, tmp_path: Path, *queries: QueryName, kind: CheckpointKind = CheckpointKind.SAVEPOINT) -> None:
        self.files, self.folder = LocalFiles(), str(tmp_path / "flights")
        self.kind = kind
        self.core = Core()
        self.box: queue.Queue[Callable[[], None]] = queue.Queue()
        self.outcomes: list[CheckpointOutcome] = []
        self.looked = 0
        self.on_change: Callable[[], None] = lambda: None
        self.queries = [self._query(name) for name in queries]

    def _query(self, name: QueryName) -> ManagedQuery:
        spark = f"{self.folder}/queries/{name}/lineage-000001/spark"
        for epoch in range(5):
            run_epoch(self.files, epoch, spark=spark)
        lineage = SimpleNamespace(name="lineage-000001", checkpoint=spark, query_id=f"id-{name}", earlier=None)
        found = SimpleNamespace(name=name, has_operators=False, is_active=False, lineage=lineage, operators=())
        found.look = self._look
        found.facts = lambda: Facts((), self._look(), self._look())
        return cast(ManagedQuery, found)

    def _look(self) -> Epoch:
        return Epoch(min(4, 2 + len(self.core.calls)))  # it goes on between two cuts

    def store(self, kind: type[CheckpointStore] = CheckpointStore) -> CheckpointStore:
        return kind(self.files, self.folder, Generation(1), lambda: None)

    def work(self, store: CheckpointStore) -> CheckpointWork:
        now = time.monotonic()
        return CheckpointWork(
            StartCheckpoint(Ticket(TicketId(1), CheckpointRequest(kind=self.kind), now).started(ID, now)),
            store,
            cast(JobRuntime, self.core),
            self.queries,
            JobDescription("flights", Generation(1), "4.3.0", _no_operator),
            self,
        )

    # The owner of the work.

    def post(self, call: Callable[[], None]) -> None:
        self.box.put(call)

    def changed(self, statistics: CheckpointStatistics) -> None:
        self.on_change()

    def ended(self, work: CheckpointWork, outcome: CheckpointOutcome) -> None:
        self.outcomes.append(outcome)

    def run(self, until: Callable[[], object]) -> None:
        while not until():
            self.box.get(timeout=SECONDS)()

    def entries(self) -> Sequence[object]:
        return list(Catalog(self.files, self.folder).entries())


class PurgingStore(CheckpointStore):
    """The first pin of one query finds its file gone, while the first pin of the other waits in the middle."""

    purges, waits = True, True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.is_purged, self.may_go_on = threading.Event(), threading.Event()
        self.pinning: set[QueryName] = set()
        self.pinned_together: list[tuple[QueryName, Epoch]] = []

    def pin(self, checkpoint: CheckpointId, query: QueryName, *more: Any) -> Any:
        boundary = more[2]
        if query == PURGED and self.purges:
            self.purges = False
            raise StateFileMissing("state/0/0/1.delta", "it was removed before it could be pinned")
        if query in self.pinning:
            self.pinned_together.append((query, boundary))
        self.pinning.add(query)
        if query == SLOW and self.waits:
            self.waits = False
            assert self.may_go_on.wait(SECONDS)
        pinned = super().pin(checkpoint, query, *more)
        self.pinning.discard(query)
        return pinned


def test_a_checkpoint_is_cut_again_when_every_pin_of_the_first_cut_has_ended(tmp_path: Path) -> None:
    rig = CheckpointRig(tmp_path, SLOW, PURGED)
    store = cast(PurgingStore, rig.store(PurgingStore))
    rig.work(store).begin()
    rig.box.get(timeout=SECONDS)()  # the purged one
    assert rig.core.calls == ["cut", "aborted"], "the slow one still pins"
    store.may_go_on.set()
    rig.run(lambda: rig.outcomes)
    assert rig.core.calls == ["cut", "aborted", "cut", "stored"]
    assert rig.outcomes[0].reason is None
    assert not store.pinned_together
    [entry] = Catalog(rig.files, rig.folder).entries()
    metadata = Catalog(rig.files, rig.folder).read(entry)
    assert {snapshot.epoch for snapshot in metadata.queries.values()} == {4}
    assert list(verify_files(rig.files, entry.path, metadata)) == []


def test_what_the_core_says_late_of_the_first_cut_does_not_end_the_second(tmp_path: Path) -> None:
    """Bug: the checkpoint failed with the news of a cut that was void, and the core never gave the second cut up."""
    rig = CheckpointRig(tmp_path, PURGED)
    work = rig.work(rig.store(PurgingStore))
    work.begin()
    rig.box.get(timeout=SECONDS)()
    assert rig.core.calls == ["cut", "aborted", "cut"]
    work.abandoned(CheckpointFailed(ID, rig.core.barriers[0], FailureReason.COORDINATOR_FAILED, "it did not answer"))
    rig.run(lambda: rig.outcomes)
    assert rig.outcomes[0].reason is None
    assert rig.core.calls[-1] == "stored"


def test_a_driver_that_was_replaced_takes_no_id_from_its_successor(tmp_path: Path) -> None:
    """Bug: it left its claim, and the next checkpoint of the successor failed because the id was taken."""
    rig = CheckpointRig(tmp_path, SLOW)

    def replaced() -> None:
        if is_replaced:
            raise Fenced("flights", 1, 2)

    is_replaced = False
    store = CheckpointStore(rig.files, rig.folder, Generation(1), replaced)
    store.open()
    is_replaced = True
    rig.work(store).begin()
    rig.run(lambda: rig.outcomes)
    assert rig.outcomes[0].reason is FailureReason.FENCED
    assert not (tmp_path / "flights" / "checkpoints" / "1").exists()


def test_a_checkpoint_whose_metadata_cannot_be_made_fails(tmp_path: Path) -> None:
    """Bug: it counted as being written for ever; no abort and no timeout ended it, nor its job's checkpoints."""
    rig = CheckpointRig(tmp_path, SLOW)
    rig.queries[0].operators = (OperatorUid("unknown"),)
    work = rig.work(rig.store())
    work.begin()
    rig.run(lambda: rig.outcomes)
    assert rig.outcomes[0].reason is FailureReason.INTERNAL
    assert rig.core.calls == ["cut", "aborted"]
    assert rig.entries() == []


def test_a_checkpoint_for_which_no_thread_can_be_started_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the thread that never ran was waited for; no abort and no timeout ended the checkpoint."""
    rig = CheckpointRig(tmp_path, SLOW)
    work = rig.work(rig.store())
    real, failed = threading.Thread.start, list[bool]()

    def start(thread: threading.Thread) -> None:
        if not failed:
            failed.append(True)
            raise RuntimeError("can't start new thread")
        real(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        work.begin()
    rig.run(lambda: rig.outcomes)
    assert rig.outcomes[0].reason is FailureReason.INTERNAL
    assert rig.entries() == []


def test_a_checkpoint_ends_although_what_it_has_left_cannot_be_removed(tmp_path: Path) -> None:
    """Bug: an error that is not the product's own kept it from its end."""

    class Store(CheckpointStore):
        def pin(self, *arguments: Any, **more: Any) -> Any:
            raise Fenced("flights", 1, 2)

        def discard(self, checkpoint: CheckpointId) -> None:
            raise OSError("the disk is gone")

    rig = CheckpointRig(tmp_path, SLOW)
    rig.work(rig.store(Store)).begin()
    rig.run(lambda: rig.outcomes)
    assert [outcome.reason for outcome in rig.outcomes] == [FailureReason.FENCED]


def test_a_checkpoint_goes_on_when_its_progress_cannot_be_shown(tmp_path: Path) -> None:
    """Bug: when the last pin could not be told of, no metadata was written."""
    rig = CheckpointRig(tmp_path, SLOW)

    def changed() -> None:
        raise RuntimeError("the view is broken")

    rig.on_change = changed
    rig.work(rig.store()).begin()
    rig.run(lambda: rig.outcomes)
    assert rig.outcomes[0].reason is None


def _no_operator(uid: OperatorUid) -> Any:
    raise KeyError(uid)
