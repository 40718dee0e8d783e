"""A checkpoint whose files are removed by Spark before they are pinned, while another query of it is pinned slowly."""

from __future__ import annotations

import datetime
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_store import CheckpointStore
from coord_control.durable.checkpoints.verification import verify_files
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.errors import Fenced, StateFileMissing
from coord_control.ids import BarrierId, CheckpointId, CheckpointKind, Epoch, Generation, OperatorUid, QueryName
from coord_control.protocol.scheduler.tickets import CheckpointRequest, Outcome
from coord_control.spark.checkpoints.checkpoint_work import CheckpointWork, JobDescription
from coord_control.spark.loop.runtime import JobRuntime
from coord_control.spark.queries.query import ManagedQuery
from tests.unit.durable.checkpoint_kit import run_epoch

SECONDS = 30.0
SLOW, PURGED = QueryName("slow"), QueryName("purged")


class PurgingStore(CheckpointStore):
    """The first pin of one query finds its file gone, while the first pin of the other waits in the middle."""

    purges, waits = True, True

    def __init__(self, files: LocalFiles, folder: str) -> None:
        super().__init__(files, folder, Generation(1), lambda: None)
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
    files, folder = LocalFiles(), str(tmp_path / "flights")
    spark = {name: f"{folder}/queries/{name}/lineage-000001/spark" for name in (SLOW, PURGED)}
    for each in spark.values():
        for epoch in range(5):
            run_epoch(files, epoch, spark=each)
    store, box, outcomes = PurgingStore(files, folder), queue.Queue[Callable[[], None]](), list[Outcome]()
    cuts: list[str] = []

    def query(name: QueryName) -> ManagedQuery:
        lineage = SimpleNamespace(name="lineage-000001", checkpoint=spark[name], query_id=f"id-{name}", earlier=None)
        # It goes on between the two cuts.
        looked = SimpleNamespace(name=name, has_operators=False, is_active=True, lineage=lineage)
        looked.look = lambda: Epoch(min(4, 2 + len(cuts)))
        return cast(ManagedQuery, looked)

    def trigger(*_: object) -> BarrierId:
        cuts.append("cut")
        return BarrierId(6 + len(cuts))

    def abort(*_: object) -> tuple[()]:
        cuts.append("aborted")
        return ()

    core = SimpleNamespace(
        trigger_checkpoint=trigger,
        abort_checkpoint=abort,
        checkpoint_stored=lambda *_: None,
    )
    runtime = SimpleNamespace(call=lambda call: call(core, 0.0), post=lambda call: call(core, 0.0))
    work = CheckpointWork(
        CheckpointId(1),
        CheckpointRequest(kind=CheckpointKind.SAVEPOINT),
        datetime.datetime.now(datetime.UTC),
        store,
        cast(JobRuntime, runtime),
        [query(SLOW), query(PURGED)],
        JobDescription("flights", Generation(1), "4.3.0", lambda uid: _no_operator(uid)),
        post=box.put,
        ended=lambda work, outcome: outcomes.append(outcome),
        came_further=lambda work: None,
    )
    work.begin()
    box.get(timeout=SECONDS)()  # the purged one
    assert cuts == ["cut", "aborted"], "the slow one still pins"
    store.may_go_on.set()
    while not outcomes:
        box.get(timeout=SECONDS)()
    assert cuts == ["cut", "aborted", "cut"]
    assert outcomes[0].reason is None
    assert not store.pinned_together
    [entry] = Catalog(files, folder).entries()
    metadata = Catalog(files, folder).read(entry)
    assert {snapshot.epoch for snapshot in metadata.queries.values()} == {4}
    assert list(verify_files(files, entry.path, metadata)) == []


def test_a_driver_that_was_replaced_takes_no_id_from_its_successor(tmp_path: Path) -> None:
    """Bug: it left its claim, and the next checkpoint of the successor failed because the id was taken."""
    files, folder = LocalFiles(), str(tmp_path / "flights")

    def replaced() -> None:
        if store.is_open:
            raise Fenced("flights", 1, 2)

    class Store(CheckpointStore):
        is_open = False

    store = Store(files, folder, Generation(1), replaced)
    store.open()
    store.is_open = True
    runtime = SimpleNamespace(post=lambda call: None)
    work = CheckpointWork(
        CheckpointId(1),
        CheckpointRequest(),
        datetime.datetime.now(datetime.UTC),
        store,
        cast(JobRuntime, runtime),
        [],
        JobDescription("flights", Generation(1), "4.3.0", lambda uid: _no_operator(uid)),
        post=lambda call: call(),
        ended=lambda work, outcome: None,
        came_further=lambda work: None,
    )
    work.begin()
    assert not (tmp_path / "flights" / "checkpoints" / "1").exists()


def _no_operator(uid: OperatorUid) -> Any:
    raise AssertionError(uid)
