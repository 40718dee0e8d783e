"""One lineage of a simulated job: Spark's logs and the epoch stores of all its queries, and what must hold among them.

A restore begins a new lineage and never touches the old one, in which an older driver may go on for a while without
knowing it. So each has invariants of its own; only the order of barrier ids goes on from one to the next.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from coord_control.durable.epochs.epoch_store import EpochStore
from coord_control.durable.epochs.generation_log import GenerationLog
from coord_control.durable.epochs.records_codec import Header
from coord_control.ids import NO_CHECKPOINT, NO_EPOCH, Epoch, Generation, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.control_events import unseal
from coord_control.protocol.cut import OperatorCut, seed
from coord_control.protocol.records import EventBatch, LiveFrozen, Record
from coord_control.protocol.recovery import Facts, Outbox, RecoveredOperator, recover
from tests.simulation.checkpoints import Stored
from tests.simulation.invariants import BarriersSeen, Invariants, View
from tests.simulation.live_book import LiveBook
from tests.simulation.memory_files import MemoryFiles
from tests.simulation.spark import SparkLog
from tests.simulation.statistics import Statistics
from tests.simulation.values import Event, Violation, events_of

__all__ = ["Lineage"]

RETAIN_EPOCHS: Final = 2


@dataclass(slots=True, eq=False)
class Lineage:
    """One simulated lineage.

    Args:
        logs: Spark's log of each query; they begin at the epoch that was restored.
        barriers: what coordinators have seen, in all lineages.
        newest_generation: of all drivers so far.
        is_deaf: what subtasks send does not change the state of a coordinator.
        restored: the checkpoint with which it begins.
    """

    number: int
    disk: MemoryFiles
    logs: dict[QueryName, SparkLog]
    barriers: BarriersSeen
    statistics: Statistics
    newest_generation: Callable[[], Generation]
    max_segments: int
    is_deaf: bool
    job: str = "job"  #: the name under which it runs
    restored: Stored | None = None  #: None: the first lineage
    invariants: Invariants = field(init=False)
    read_by: dict[tuple[QueryName, Generation], View] = field(default_factory=dict)
    undamaged: dict[QueryName, MemoryFiles] = field(default_factory=dict)  #: before a file of the query went bad
    deepest: dict[QueryName, Epoch] = field(default_factory=dict)
    live: LiveBook = field(default_factory=LiveBook)
    durable_items: dict[OperatorUid, int] = field(default_factory=dict)  #: as a driver has said
    _restored_at: dict[QueryName, Epoch] = field(init=False)
    _views: dict[QueryName, tuple[int, View]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.invariants = Invariants(self.logs, self.view, self.barriers, is_deaf=self.is_deaf)
        self._restored_at = {query: log.committed for query, log in self.logs.items()}
        if self.restored is not None:
            self.live.first = self.restored.live
            for query, part in self.restored.parts.items():
                if part.rest is not None:
                    self.invariants.taken_over(part.rest.served)
                    if part.rest.live_seen is not None:
                        self.live.seen[query, Epoch(part.boundary + 1)] = part.rest.live_seen

    def folder(self, query: QueryName) -> str:
        """Where the epoch store of a query is."""
        return f"/job/{query}/lineage-{self.number}/epochs"

    def store(self, files: MemoryFiles, query: QueryName, generation: Generation) -> EpochStore:
        """The epoch store of a query, as one driver sees it."""
        return EpochStore(files, self.folder(query), generation, RETAIN_EPOCHS, max_segments=self.max_segments)

    def live_log(self, files: MemoryFiles, generation: Generation) -> EpochStore:
        """The log of its live values, as one driver sees it."""
        return EpochStore(files, f"/job/live-{self.number}", generation, 0, max_segments=self.max_segments)

    def view(self, query: QueryName, generation: Generation) -> View:
        """What the successor of a driver has read, or would read now."""
        for other in sorted(other for name, other in self.read_by if name == query and other > generation):
            return self.read_by[query, other]
        version = self.statistics.writes
        cached = self._views.get(query)
        if cached is None or cached[0] != version:
            cached = self._views[query] = (version, View.of(self.read(query)))
        return cached[1]

    def read(self, query: QueryName) -> list[Record]:
        """The live records of a query, as whoever comes next would find them; nothing is written."""
        return self.store(self.disk.copy(), query, Generation(self.newest_generation() + 1)).open()

    def was_read(self, query: QueryName, generation: Generation, view: View) -> None:
        """A driver has recovered a query."""
        self.read_by[query, generation] = view

    def forget_view(self, query: QueryName) -> None:
        self._views.pop(query, None)

    # The beginning of a restored lineage.

    def items_durable(self, query: QueryName, operator: OperatorUid, number: int) -> None:
        """A driver says that nothing can undo items from outside up to this one.

        Raises:
            Violation: the next driver would go back behind it.
        """
        log = self.logs[query]
        facts = Facts(tuple(self.read(query)), log.committed, log.planned)
        state = recover(facts, operator).coordinator_state
        found = unseal(operator, state).numbers.get(self.job, 0)
        if found < number:
            raise Violation(f"control: items up to {number} of {operator} are said to be durable, these are {found}")
        self.durable_items[operator] = number

    def check_durable(self, operator: OperatorUid, applied: int) -> None:
        """A coordinator goes back to this item.

        Raises:
            Violation: that is behind what was said to be durable.
        """
        if applied < (durable := self.durable_items.get(operator, 0)):
            raise Violation(f"control: {operator} goes back to item {applied}, {durable} was said to be durable")

    def must_be_seeded(self, query: QueryName) -> bool:
        """Whether nothing has run in it yet: then each start writes its first records again.

        With a planned epoch only the first start does: attempts of that epoch may be answered from then on.
        """
        if self.restored is None:
            return False
        if self._has_planned(query):
            return not self.disk.exists(self._seeded(query))
        return self.logs[query].planned == self._restored_at[query]

    def _has_planned(self, query: QueryName) -> bool:
        assert self.restored is not None
        rest = self.restored.parts[query].rest
        return rest is not None and rest.log.planned > rest.log.committed

    def _seeded(self, query: QueryName) -> str:
        return f"/job/{query}/lineage-{self.number}/seeded"

    def seed(self, files: MemoryFiles, query: QueryName, generation: Generation) -> None:
        """Write the first records: as if the boundary, and the epoch planned behind it, were epochs of this lineage.

        Raises:
            Violation: what recovers from them is not what was cut.
        """
        assert self.restored is not None
        part = self.restored.parts[query]
        records = [record for cut in part.cuts for record in seed(cut, part.boundary, self.restored.barrier)]
        if part.rest is not None and part.rest.live is not None:
            records.append(LiveFrozen(Epoch(part.boundary + 1), part.rest.live))
        log = GenerationLog(files, self.folder(query), generation)
        log.remove()
        log.write(Header(True, generation, 0, Epoch(part.boundary + 1)), records)
        spark = self.logs[query]
        facts = Facts(tuple(self.store(files, query, generation).open()), spark.committed, spark.planned)
        for cut in part.cuts:
            recovered = recover(facts, cut.operator)
            if part.rest is None:
                _check_recovered(recovered, _from(cut))
            elif spark.planned == part.rest.log.planned:
                _check_recovered(recovered, part.rest.recovered[cut.operator])
        if self._has_planned(query):
            files.replace(self._seeded(query), b"")

    # What storage and power do to it.

    def damage(self, query: QueryName, path: str, rng: random.Random) -> str:
        """A file of the epoch store goes bad; returns how. What is then started must be what would have started
        without."""
        self.undamaged[query] = self.disk.copy()
        size = len(self.disk.read(path))
        how = rng.choice(("bit", "cut", "gone"))
        if how == "bit":
            self.disk.damage(path, flip_bit=rng.randrange(size * 8))
        elif how == "cut":
            self.disk.damage(path, keep=rng.randrange(size))
        elif self._is_newest_file(path):
            how = "bit"  # the one loss that no file betrays
            self.disk.damage(path, flip_bit=rng.randrange(size * 8))
        else:
            self.disk.delete(path)
        self.statistics.damaged += 1
        self.statistics.writes += 1
        return how

    def _is_newest_file(self, path: str) -> bool:
        folder = path.rpartition("/")[0]
        return path == max(other for other in self.disk.paths() if other.startswith(folder + "/"))

    def set_back(self, query: QueryName) -> bool:
        """The power fails: Spark's newest file was not on the disk yet. False: there is none that may be lost."""
        log = self.logs[query]
        if log.planned > log.committed:
            del log.plans[log.planned]
            log.planned = log.committed
        elif log.committed > self._restored_at[query] and log.committed == self.deepest.get(query, NO_EPOCH):
            log.committed = Epoch(log.committed - 1)
        else:
            return False
        log.sink = min(log.sink, log.planned)
        self.live.set_back(query, log.planned)
        self.durable_items.clear()
        self.statistics.set_back += 1
        return True


def _from(cut: OperatorCut) -> RecoveredOperator:
    return RecoveredOperator(cut.states, cut.coordinator_state, NO_CHECKPOINT, cut.up, cut.down, None)


def _check_recovered(recovered: RecoveredOperator, original: RecoveredOperator) -> None:
    for what, found in _facts(recovered).items():
        if found != (expected := _facts(original)[what]):
            raise Violation(f"I6: {what} is {found!r} after the restore, and was {expected!r} when it was saved")


def _facts(recovered: RecoveredOperator) -> dict[str, object]:
    # All but the ids of barriers, which the restore gives.
    replay = recovered.replay
    return {
        "the coordinator's state": recovered.coordinator_state,
        "the state of the subtasks": dict(recovered.states),
        "what waits in the mailboxes": _events(recovered.mailboxes),
        "what coordinators have not seen": _sent(recovered.undelivered),
        "the epoch that is run again": None if replay is None else (replay.epoch, replay.barrier is not None),
        "what its subtasks are given": None if replay is None else _events(replay.inputs),
        "what was acknowledged in it": None if replay is None else dict(replay.acks),
    }


def _events(by_subtask: Mapping[SubtaskIndex, tuple[EventBatch, ...]]) -> dict[SubtaskIndex, list[Event]]:
    return {subtask: events_of(batches) for subtask, batches in by_subtask.items()}


def _sent(outboxes: tuple[Outbox, ...]) -> dict[SubtaskIndex, list[Event]]:
    sent: dict[SubtaskIndex, list[Event]] = {}
    for outbox in outboxes:
        sent.setdefault(outbox.subtask, []).extend(events_of(outbox.events))
    return sent
