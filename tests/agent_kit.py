"""A driver that follows a script, behind the agent's port: no Spark, but everything that must survive it is real.

Claims, checkpoints, savepoints and restores lie on a real storage, written by the same code as those of a job. An
operator's coordinator is a list of what it was given; ``run_epoch`` applies what waits and records list and number
together in one file, as a begin record does. So a driver of this kind can be killed at any moment, and another one goes
on from what is there.
"""

from __future__ import annotations

import datetime
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from coord_control.control.agent.agent import Agent
from coord_control.control.settings import ControlSettings
from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_store import CheckpointStore
from coord_control.durable.checkpoints.metadata_file import (
    CheckpointMetadata,
    Kind,
    Trigger,
    decode_metadata,
    encode_metadata,
)
from coord_control.durable.checkpoints.removal import dispose_without_owner
from coord_control.durable.checkpoints.stored_statistics import stored_statistics
from coord_control.durable.files.filesystem import Files, LocalFiles, join
from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.holder import Aliveness, Holder
from coord_control.durable.restore.live_log import LiveLog
from coord_control.errors import (
    EventInvalid,
    Fenced,
    JobClosed,
    LiveValueInvalid,
    LiveValueNotFound,
    LiveVersionChanged,
    NotAnswered,
    OperatorNotFound,
    UndeclaredEvent,
    UndeclaredRequest,
)
from coord_control.ids import BarrierId, CheckpointId, Epoch, Generation, OperatorUid, QueryName
from coord_control.protocol.checkpoint import Progress
from coord_control.protocol.control_events import EventFeed
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.job_facts import (
    ControlEvent,
    EventSchema,
    FeedStatus,
    JobFacts,
    JobListener,
    LiveFacts,
    LiveUse,
    OperatorFacts,
    QueryFacts,
    RecoveryFact,
    RequestSchema,
)
from coord_control.protocol.operator import Totals
from coord_control.protocol.records import LiveChanged
from coord_control.protocol.scheduler.statistics_history import Overview, StatisticsHistory
from coord_control.protocol.scheduler.tickets import CheckpointOutcome, CheckpointRequest
from coord_control.protocol.statistics import (
    CheckpointStatistics,
    CheckpointStatus,
    OperatorStatistics,
    QueryStatistics,
    SubtaskStatistics,
    to_json,
)
from coord_control.protocol.status import GatewayStatus, JobStatus, OperatorStatus, QueryStatus
from coord_control.spark.checkpoints.checkpoint_handle import CheckpointHandle, CompletedCheckpoint
from coord_control.storage.database import Database
from coord_control.storage.store import ControlStore
from tests.patience import SECONDS
from tests.unit.durable.metadata_kit import full_metadata

JOB: Final = "flights"
OPERATOR: Final = "threshold"
SUBTASKS: Final = 2


#: The live value that every scripted driver has.
LIVE: Final = "limits"


def _live_facts(change: LiveChanged) -> LiveFacts:
    return LiveFacts(
        name=change.name,
        version=change.version,
        value=change.value,
        by=change.by,
        at_seconds=change.at_seconds,
        schema={"type": "object", "properties": {"minutes": {"type": "integer"}}},
        uses={QueryName("q"): LiveUse(version=change.version, since=Epoch(3), next_epoch=None)},
    )


class ScriptedDriver:
    """A job in a driver, as the agent sees one.

    Attributes:
        is_automatic: checkpoints complete by themselves; otherwise by :meth:`complete`.
        is_restarting: it has ended and asks for a new driver.
        fenced_by: the generation that the agent has heard of.
        is_silent: requests get no answer before :meth:`answer`.
        is_away: requests cannot be answered now.
        has_supervisor: it is started again when it asks for that.
    """

    def __init__(
        self,
        root: Path | str,
        name: str = JOB,
        *,
        is_automatic: bool = True,
        supervisor: str | None = None,
        waits: bool = False,
    ) -> None:
        """``waits``: for the end of the driver before it, as a job does; that one must be another process."""
        self.files: Files = LocalFiles()
        self.folder = join(str(root), name)
        holder = Holder.of([os.getpid()], supervisor=supervisor)
        self.claim = generations.claim(self.files, join(self.folder, "generations"), holder)
        while waits and generations.previous_may_live(self.claim) is not Aliveness.DEAD:
            time.sleep(0.02)
        self.generation = self.claim.generation
        self.is_automatic = is_automatic
        self.is_restarting = False
        self.fenced_by: int | None = None
        self.has_supervisor = False
        self.ended = threading.Event()
        self.closing: Callable[[], None] = lambda: None  # closes the agent
        self.was_ready = True
        self.is_silent = self.is_away = False
        self.asked: list[tuple[Future[Any], Any]] = []  # requests that were taken, with their payloads
        self._checkpoints = CheckpointStore(self.files, self.folder, self.generation, self._verify)
        self._history = StatisticsHistory(100)
        self._known = {request.key: (number, path) for request, number, path in self._checkpoints.completed_requests()}
        self._handles: dict[CheckpointId, CheckpointHandle] = {}
        self._by_key: dict[str, CheckpointHandle] = {}
        self._next = self._checkpoints.newest_id() + 1
        self._listeners: list[JobListener] = []
        self._lock = threading.RLock()
        self._state = Path(self.folder) / "coordinator.json"
        self._applied: list[Any] = []
        self._feed: EventFeed[ControlEvent] = EventFeed(1 << 20)
        self._live = LiveLog(self.files, self.folder, self.generation)
        self._live.open({LIVE: b'{"minutes":30}'})
        self._facts = JobFacts(
            name=name,
            root=str(root),
            folder=self.folder,
            generation=self.generation,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at_seconds=time.time(),
            process_started=time.monotonic(),
            version="0",
            python_version="3",
            spark_version="4",
            master="local",
            address="127.0.0.1",
            port=0,
            tls=False,
            spark_ui="http://127.0.0.1:4040",
        )

    # The port.

    @property
    def facts(self) -> JobFacts:
        return self._facts

    def storage(self, path: str) -> Files:
        return self.files

    def is_ready(self) -> bool:
        return self.was_ready

    def queries(self) -> tuple[QueryFacts, ...]:
        return (
            QueryFacts(
                name=QueryName("q"),
                query_id="id",
                lineage="l1",
                checkpoint=join(self.folder, "spark"),
                operators=(OperatorUid(OPERATOR),),
                status=self._query_status(),
            ),
        )

    def operators(self) -> tuple[OperatorFacts, ...]:
        schema = {"type": "object", "properties": {"minutes": {"type": "integer"}}}
        return (
            OperatorFacts(
                uid=OperatorUid(OPERATOR),
                query=QueryName("q"),
                parallelism=SUBTASKS,
                state="State",
                events=(EventSchema("Threshold", schema),),
                up=(),
                requests=(RequestSchema("Current", {"type": "object"}, schema),),
            ),
        )

    def status(self) -> JobStatus:
        self._check_open()
        gateways = tuple(GatewayStatus(subtask, True, 0, 0, 0.0, 0) for subtask in range(SUBTASKS))
        operator = OperatorStatus(OPERATOR, "q", 1, Totals(), gateways)
        return JobStatus(self._facts.name, self.generation, (self._query_status(),), (operator,), 0, 0)

    def _query_status(self) -> QueryStatus:
        state = "stopped" if self.ended.is_set() else "running"
        return QueryStatus("q", state, 1, 0, None, {}, batches=2, rows=16, batch_seconds=0.5)

    def metrics_address(self) -> str | None:
        return "127.0.0.1:9404"

    def checkpoint_statistics(self) -> Overview:
        self._check_open()
        with self._lock:
            return self._history.overview()

    def add_listener(self, listener: JobListener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def has_same_supervisor(self, generation: Generation) -> bool:
        return self.claim.has_same_supervisor(generation)

    def has_ended_cleanly(self, generation: Generation) -> bool:
        return self.claim.has_ended_cleanly(generation)

    def is_current(self) -> bool:
        return self.claim.is_current()

    def is_fenced(self) -> bool:
        return self.fenced_by is not None

    def submit(self, request: CheckpointRequest) -> CheckpointHandle:
        with self._lock:
            if request.key is not None and (known := self._by_key.get(request.key)) is not None:
                return known
            handle = CheckpointHandle(request, self._abort)
            if request.key is not None:
                self._by_key[request.key] = handle
            if self.ended.is_set():
                handle.finish(CheckpointOutcome(FailureReason.JOB_ENDING))
            elif request.key in self._known:
                number, path = self._known[request.key]
                handle.finish(CheckpointOutcome(path=path), number, self._stored(path))
            elif request.label in Catalog(self.files, self.folder, self.storage).labels():
                handle.finish(CheckpointOutcome(FailureReason.LABEL_TAKEN))
            else:
                self._start(request, handle)
        return handle

    def abort(self, checkpoint: CheckpointId) -> bool:
        with self._lock:
            if checkpoint not in self._handles:
                return False
            self._fail(checkpoint, FailureReason.ABORTED)
            return True

    def savepoint_and_pause(
        self,
        request: CheckpointRequest,
        began: Callable[[CheckpointHandle], None],
        is_wanted: Callable[[], bool],
        tell_draining: Callable[[str], None] | None = None,
    ) -> CompletedCheckpoint:
        handle = self.submit(request)
        began(handle)
        return handle.wait(SECONDS)

    def stop(self, grace_seconds: float | None = None, *, restart: bool = False) -> None:
        self.is_restarting = self.is_restarting or restart
        with self._lock:
            for checkpoint in list(self._handles):
                self._fail(checkpoint, FailureReason.JOB_ENDING)
            self.claim.release()
            self.ended.set()
        self.closing()

    def dispose(self, reference: str) -> tuple[CheckpointId, str]:
        entry = Catalog(self.files, self.folder, self.storage).resolve(reference)
        if entry.claim is not None:
            self._checkpoints.dispose(entry.checkpoint)
            self._discarded(entry.checkpoint)
        else:
            dispose_without_owner(self.files, self.folder, entry, self.storage)
        return entry.checkpoint, entry.path

    def fenced(self, newest: int) -> None:
        self.fenced_by = newest

    def set_live(
        self, name: str, fields: Mapping[str, object], expect: int | None, key: str, by: str
    ) -> Future[LiveFacts]:
        future: Future[LiveFacts] = Future()
        try:
            future.set_result(self._set_live(name, fields, expect, key, by))
        except Exception as error:
            future.set_exception(error)
        return future

    def live(self, name: str) -> LiveFacts:
        if name != LIVE:
            raise LiveValueNotFound(name, self._facts.name, [LIVE])
        with self._lock:
            return _live_facts(self._live.history(name)[-1])

    def live_values(self) -> tuple[LiveFacts, ...]:
        return (self.live(LIVE),)

    def live_versions(self) -> Mapping[str, int]:
        return {LIVE: self.live(LIVE).version}

    def live_history(self, name: str) -> Sequence[LiveChanged]:
        with self._lock:
            return self._live.history(name)

    def check_event(
        self, operator: str, event_type: str, payload: Any, subtask: int | None, *, is_accepted: bool = False
    ) -> ControlEvent:
        self._bound(operator)
        if event_type != "Threshold":
            raise UndeclaredEvent(operator, "down", event_type, ["Threshold"])
        if not isinstance(payload, dict) or not isinstance(payload.get("minutes"), int):
            problem = {"loc": ["minutes"], "msg": "Input should be a valid integer"}
            raise EventInvalid(operator, event_type, "minutes: Input should be a valid integer", [problem])
        return ControlEvent(OperatorUid(operator), event_type, json.dumps(payload).encode(), subtask)

    def feed_status(self, operator: OperatorUid) -> FeedStatus:
        self._bound(operator)
        with self._lock:
            return FeedStatus(self._feed.applied, self._feed.durable, self._feed.waiting, self._feed.refused)

    def feed(self, number: int, event: ControlEvent) -> bool:
        with self._lock:
            return self._feed.accept(number, event, len(event.payload))

    def forget_refusals(self, operator: OperatorUid, numbers: Collection[int]) -> None:
        with self._lock:
            self._feed.forget(numbers)

    def ask(self, operator: str, request: str, payload: Any) -> Future[Any]:
        self._bound(operator)
        if request != "Current":
            raise UndeclaredRequest(operator, request, ["Current"])
        if self.is_away:
            raise NotAnswered(operator, "its query does not run")
        future: Future[Any] = Future()
        self.asked.append((future, payload))
        if not self.is_silent:
            self.answer()
        return future

    # The script.

    def answer(self) -> None:
        """The coordinator answers what it was asked."""
        for future, payload in self.asked:
            if not future.done():
                future.set_result({"asked": payload})

    def open_feed(self) -> None:
        """The query starts, or recovers: the coordinator is as it was recorded."""
        with self._lock:
            recorded: dict[str, Any] = (
                json.loads(self._state.read_text())
                if self._state.exists()
                else {"number": 0, "refused": [], "events": []}
            )
            self._applied = recorded["events"]
            self._feed.recovered(recorded["number"], recorded["refused"])
        for listener in list(self._listeners):
            listener.on_feed_open(OperatorUid(OPERATOR), recorded["number"])
            if recorded["number"]:
                listener.on_events_durable(OperatorUid(OPERATOR), recorded["number"])

    def run_epoch(self) -> None:
        """Give the coordinator what waits, and record it; it raises at less than no minutes."""
        refused: list[int] = []
        with self._lock:
            while (event := self._feed.take()) is not None:
                minutes = json.loads(event.event.payload)["minutes"]
                if minutes < 0:
                    self._feed.refuse(event.number)
                    refused.append(event.number)
                else:
                    self._applied.append(minutes)
            number = self._feed.applied or 0
            part = self._state.with_suffix(".part")
            part.write_text(json.dumps({"number": number, "refused": self._feed.refused, "events": self._applied}))
            part.rename(self._state)
            is_news = self._feed.recorded(number)
        for each in refused:
            self._tell_refused(each)
        if is_news:
            for listener in list(self._listeners):
                listener.on_events_durable(OperatorUid(OPERATOR), number)

    def apply_events(self, *subtasks: int) -> None:
        """The coordinator handles what waits, and sends something to these subtasks; nothing is recorded."""
        with self._lock:
            taken = []
            while (event := self._feed.take()) is not None:
                self._applied.append(json.loads(event.event.payload)["minutes"])
                taken.append(event.number)
        for number in taken:
            for listener in list(self._listeners):
                listener.on_event_applied(OperatorUid(OPERATOR), number, subtasks)

    def refuse_event(self, number: int) -> None:
        """The coordinator raises at an event that waits."""
        with self._lock:
            while (event := self._feed.take()) is not None and event.number != number:
                self._applied.append(json.loads(event.event.payload)["minutes"])
            self._feed.refuse(number)
        self._tell_refused(number)

    def recorded_events(self) -> list[Any]:
        """What the coordinator's recorded state contains."""
        return list(json.loads(self._state.read_text())["events"]) if self._state.exists() else []

    def recover(self, fact: RecoveryFact) -> None:
        """A query has recovered."""
        for listener in list(self._listeners):
            listener.on_recovery(fact)

    def complete(self, checkpoint: int) -> None:
        """A checkpoint under way becomes complete."""
        with self._lock:
            number = CheckpointId(checkpoint)
            handle = self._handles.pop(number)
            path = self._checkpoints.complete(self._metadata(number, handle.request)).path
            statistics = self._statistics(number, handle.request, CheckpointStatus.COMPLETED, path)
            self._tell(statistics)
            handle.finish(CheckpointOutcome(path=path), number, statistics)

    def release(self) -> None:
        """Answer who waits for a checkpoint under way: the process of a test ends only when no thread waits."""
        with self._lock:
            for checkpoint, handle in self._handles.items():
                handle.finish(CheckpointOutcome(FailureReason.JOB_ENDING), checkpoint)

    def fail(self, checkpoint: int, reason: FailureReason) -> None:
        """A checkpoint under way fails."""
        with self._lock:
            self._fail(CheckpointId(checkpoint), reason)

    def discard(self, checkpoint: int) -> None:
        """Retention removes a complete one."""
        with self._lock:
            self._checkpoints.dispose(CheckpointId(checkpoint))
            self._discarded(CheckpointId(checkpoint))

    # Parts.

    def _verify(self) -> None:
        try:
            self.claim.verify(self.folder.rpartition("/")[2])
        except Fenced as error:
            self.fenced_by = error.newer or self.generation + 1
            raise

    def _tell_refused(self, number: int) -> None:
        for listener in list(self._listeners):
            listener.on_event_refused(OperatorUid(OPERATOR), number, ValueError("not this one"))

    def _start(self, request: CheckpointRequest, handle: CheckpointHandle) -> None:
        checkpoint, self._next = CheckpointId(self._next), self._next + 1
        kind: Kind = "savepoint" if request.is_savepoint else "checkpoint"
        self._checkpoints.verify()
        self._checkpoints.claim(checkpoint, kind, target=request.target, label=request.label)
        self._handles[checkpoint] = handle
        handle.started(checkpoint, lambda: Progress(SUBTASKS, 1, ()))
        self._tell(self._statistics(checkpoint, request, CheckpointStatus.IN_PROGRESS))
        if self.is_automatic:
            self.complete(checkpoint)

    def _abort(self, handle: CheckpointHandle) -> None:
        if handle.id is not None:
            self.abort(handle.id)

    def _fail(self, checkpoint: CheckpointId, reason: FailureReason) -> None:
        handle = self._handles.pop(checkpoint)
        self._checkpoints.discard(checkpoint)
        statistics = self._statistics(checkpoint, handle.request, CheckpointStatus.FAILED, reason=reason)
        self._tell(statistics)
        handle.finish(CheckpointOutcome(reason), checkpoint)

    def _discarded(self, checkpoint: CheckpointId) -> None:
        self._history.discarded(checkpoint)
        for listener in list(self._listeners):
            listener.on_checkpoint_discarded(checkpoint)

    def _tell(self, statistics: CheckpointStatistics) -> None:
        self._history.update(statistics)
        for listener in list(self._listeners):
            listener.on_checkpoint(statistics)

    def _statistics(
        self,
        checkpoint: CheckpointId,
        request: CheckpointRequest,
        status: CheckpointStatus,
        path: str | None = None,
        reason: FailureReason | None = None,
    ) -> CheckpointStatistics:
        subtasks = tuple(SubtaskStatistics(subtask, 0.1, 10) for subtask in range(SUBTASKS))  # type: ignore[arg-type]
        applied = {self._facts.name: self._feed.applied or 0}
        operator = OperatorStatistics(OperatorUid(OPERATOR), 0.0, 0.1, 5, subtasks, applied)
        return CheckpointStatistics(
            checkpoint=checkpoint,
            kind=request.kind,
            triggered_at_seconds=time.time(),
            label=request.label,
            key=request.key,
            cause=request.cause,
            requested_by=request.requested_by,
            status=status,
            duration_seconds=None if status is CheckpointStatus.IN_PROGRESS else 0.2,
            reason=reason,
            message="" if reason is None else reason.sentence,
            path=path,
            queries=(QueryStatistics(QueryName("q"), Epoch(1), operators=(operator,)),),
        )

    def _metadata(self, checkpoint: CheckpointId, request: CheckpointRequest) -> CheckpointMetadata:
        now = datetime.datetime.now(datetime.UTC)
        return CheckpointMetadata(
            checkpoint=checkpoint,
            kind="savepoint" if request.is_savepoint else "checkpoint",
            job=self._facts.name,
            label=request.label,
            generation=self.generation,
            barrier=BarrierId(1),
            trigger=Trigger(cause=request.cause, key=request.key, requested_at=now),
            triggered_at=now,
            completed_at=now,
            queries={},
            statistics=to_json(self._statistics(checkpoint, request, CheckpointStatus.IN_PROGRESS)),
        )

    def _stored(self, path: str) -> CheckpointStatistics:
        catalog = Catalog(self.files, self.folder, self.storage)
        return stored_statistics(catalog.read(catalog.resolve(path)), path)

    def _set_live(self, name: str, fields: Mapping[str, object], expect: int | None, key: str, by: str) -> LiveFacts:
        with self._lock:
            self._check_open()
            if (found := self._live.find(key)) is None:
                before = self.live(name)
                if expect is not None and expect != before.version:
                    raise LiveVersionChanged(name, expect, before.version)
                if not isinstance(fields.get("minutes"), int):
                    problem = {"loc": ["minutes"], "msg": "Input should be a valid integer"}
                    raise LiveValueInvalid(name, "minutes: Input should be a valid integer", [problem])
                found = self._live.change(name, json.dumps(dict(fields)).encode(), key=key, by=by)
            return _live_facts(found)

    def _bound(self, operator: str) -> None:
        if operator != OPERATOR:
            raise OperatorNotFound("operator", operator, "job", [OPERATOR], [])

    def _check_open(self) -> None:
        if self.ended.is_set():
            raise JobClosed(self._facts.name)


def damage_state(path: str) -> None:
    """Let the metadata at ``path`` hold the state of a coordinator that cannot be taken apart, and no measurements."""
    files = LocalFiles()
    stored = decode_metadata(path, files.read(path))
    held = full_metadata()
    damaged = {
        uid: operator.model_copy(update={"coordinator_state": b"\0coord_control:1:damaged"})
        for uid, operator in held.operators.items()
    }
    update = {"queries": held.queries, "operators": damaged, "statistics": {}}
    files.replace(path, encode_metadata(stored.model_copy(update=update)))


def control_settings(database: Path | str, **values: Any) -> ControlSettings:
    """Settings of a control database in a file, with quick heartbeats."""
    values = {"heartbeat_seconds": 0.2, "lease_seconds": 5.0, **values}
    return ControlSettings.load(f"sqlite:///{database}", **values)


def open_store(settings: ControlSettings) -> ControlStore:
    """The database as a client sees it."""
    return ControlStore(Database(settings.url, application="test"))


def make_agent(
    driver: ScriptedDriver, settings: ControlSettings, store: ControlStore, *, is_supervised: bool = False
) -> Agent:
    """An agent for a driver; the driver closes it when it stops."""
    driver.has_supervisor = is_supervised
    agent = Agent(driver, store, settings, is_supervised=lambda: driver.has_supervisor)
    driver.closing = agent.close
    return agent
