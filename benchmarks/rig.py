"""A driver without Spark: everything else of it is the real thing.

The runtime, the core, the endpoint with its sockets, the coordinator thread, the claim of the generation and the epoch
store on the local disk are put together as :class:`coord_control.spark.job.job.Job` does it. What Spark would do,
running tasks and committing epochs, is done by worker processes: the first hello of an epoch implies that Spark has
committed the one before it."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from coord_control.coordinators import OperatorCoordinator
from coord_control.durable.epochs.epoch_store import EpochStore
from coord_control.durable.files.filesystem import LocalFiles, join
from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.generations import Claim
from coord_control.durable.job_folder.holder import Holder
from coord_control.errors import CoordControlError, Fenced
from coord_control.ids import NO_EPOCH, AttemptId, Epoch, Generation, OperatorUid, QueryName, RunId, SubtaskIndex
from coord_control.protocol.job import JobCore
from coord_control.protocol.messages import CheckpointFailed, EpochSettled, QueryCaptured
from coord_control.protocol.operator import OperatorSpec
from coord_control.protocol.records import Record
from coord_control.protocol.recovery import Facts
from coord_control.spark.job.news import News
from coord_control.spark.loop.bound_coordinator import BoundCoordinator, DeclaredCoordinator
from coord_control.spark.loop.coordinator_thread import CoordinatorThread
from coord_control.spark.loop.request_types import RequestTypes
from coord_control.spark.loop.runtime import JobRuntime
from coord_control.spark.wire.connection import DriverAddress
from coord_control.spark.worker.model_codec import EventTypes

__all__ = ["OPERATOR", "RUN", "Rig", "attempt"]

OPERATOR: Final = OperatorUid("bench")

_QUERY: Final = QueryName("query")
_QUERY_ID: Final = "00000000-0000-4000-8000-000000000000"
RUN: Final = RunId("1.0")
_CLOSE_SECONDS: Final = 5.0
# As many epochs as Spark keeps by default.
_RETAIN_EPOCHS: Final = 100


def attempt(generation: Generation, subtask: int, epoch: int, task_attempt: int) -> AttemptId:
    """One execution of a subtask of the rig's operator."""
    return AttemptId(generation, RUN, _QUERY_ID, OPERATOR, SubtaskIndex(subtask), Epoch(epoch), task_attempt, epoch, 0)


@dataclass(frozen=True, slots=True)
class Rig:
    """One operator that runs. ``coordinator.context`` is what user code would call."""

    runtime: JobRuntime
    store: EpochStore
    coordinator: OperatorCoordinator

    @property
    def address(self) -> DriverAddress:
        return self.runtime.endpoint.address

    @classmethod
    @contextlib.contextmanager
    def running(
        cls,
        coordinator: OperatorCoordinator,
        parallelism: int,
        *,
        down: Sequence[type[BaseModel]] = (),
        up: Sequence[type[BaseModel]] = (),
        captured: Callable[[QueryCaptured], None] = lambda _: None,
    ) -> Iterator[Rig]:
        """Start a driver in a temporary folder, with one query that has one operator; ends it afterwards.

        Args:
            captured: gets the operator's part of each checkpoint, on the driver's loop.
        """
        with tempfile.TemporaryDirectory(prefix="coord-bench-") as root:
            files = LocalFiles()
            claim = generations.claim(files, join(root, "generations"), Holder.of([os.getpid()]))
            store = EpochStore(files, join(root, "epochs"), claim.generation, _RETAIN_EPOCHS)

            coordinators: dict[OperatorUid, BoundCoordinator] = {}
            runtime = JobRuntime(
                JobCore(claim.generation),
                coordinators,
                _Owner(store, claim, captured),
                tls=False,
            )
            thread = CoordinatorThread()
            runtime.endpoint.start("127.0.0.1")
            thread.start()
            runtime.start()
            declared = DeclaredCoordinator(
                OPERATOR,
                coordinator,
                parallelism,
                EventTypes(OPERATOR, "down", down),
                EventTypes(OPERATOR, "up", up),
                RequestTypes(OPERATOR),
            )
            coordinators[OPERATOR] = BoundCoordinator(declared, thread, runtime.post, news=News())
            spec = OperatorSpec(OPERATOR, parallelism)
            facts = Facts(tuple(store.open()), NO_EPOCH, NO_EPOCH)
            runtime.call(lambda core, now: core.add_query(_QUERY, _QUERY_ID, [spec]))
            runtime.call(lambda core, now: core.start_run(_QUERY, facts, now))
            coordinators[OPERATOR].start()
            try:
                yield cls(runtime, store, coordinator)
            finally:
                thread.close(_CLOSE_SECONDS)
                runtime.writer.close(_CLOSE_SECONDS)
                runtime.endpoint.close()


class _Owner:
    """The job, for its runtime."""

    def __init__(self, store: EpochStore, claim: Claim, captured: Callable[[QueryCaptured], None]) -> None:
        self._store = store
        self._claim = claim
        self.captured = captured

    def append(self, query: QueryName, records: Sequence[Record]) -> None:
        self._store.append(records)

    def verify(self) -> None:
        assert self._claim.is_current(), "no other driver claims in a temporary folder"

    def may_answer(self) -> bool:
        return self._claim.is_fresh()

    def query_failed(self, query: QueryName, error: CoordControlError) -> None:
        # From now on the core refuses every attempt, which ends the workers and the benchmark.
        print(f"query {query} failed: {error}", file=sys.stderr)

    def fenced(self, error: Fenced) -> None:
        print(error, file=sys.stderr)

    def settled(self, epoch: EpochSettled) -> None: ...

    def checkpoint_failed(self, failed: CheckpointFailed) -> None: ...

    def events_wait(self, operator: OperatorUid) -> None: ...
