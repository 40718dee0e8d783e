"""The live values of a running job: declared, changed one after the other, and answered when an epoch is planned.

A change is *accepted* when its record is durable in the log of the job and the claim was verified after it; then the
core knows it, and every query freezes it with the next epoch that it plans (:mod:`coord_control.protocol.live_epochs`).

Threads: any. Changes are carried out on one thread, in the order in which they were requested. An epoch asks on a
thread of its stream, and waits there until what it has frozen is durable.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel
from pyspark.sql import SparkSession

from coord_control.durable.restore.live_log import LiveLog
from coord_control.errors import (
    JobClosed,
    LiveModelInvalid,
    LiveValueNotFound,
    LiveVersionChanged,
    StoreError,
    StoreUnavailable,
)
from coord_control.ids import Epoch, QueryName, RunId
from coord_control.protocol.job_facts import LiveFacts, LiveUse
from coord_control.protocol.live_epochs import QueryLive
from coord_control.protocol.records import LiveChanged, LiveValue
from coord_control.spark.live import jvm_side
from coord_control.spark.live.live_model import LiveModel
from coord_control.spark.loop.runtime import JobRuntime

__all__ = ["LiveRequest", "LiveValues"]

_log = logging.getLogger("coord_control.live")

_RETRY_SECONDS: Final = 1.0
_TRIES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRequest:
    """A request to change a live value.

    Attributes:
        fields: those to change, as JSON has them.
        expect: the version that it must have; None for any.
        key: the same key never makes a second change.
        by: who asks.
    """

    name: str
    fields: Mapping[str, Any]
    expect: int | None = None
    key: str
    by: str


class LiveValues:
    """The live values of one job in one driver.

    Args:
        verify: checks on the storage that the job is still this driver's.
        closed: the error for requests that come after the job's end.
    """

    def __init__(
        self,
        job: str,
        spark: SparkSession,
        log: Callable[[], LiveLog],
        runtime: JobRuntime,
        *,
        verify: Callable[[], None],
        closed: Callable[[], JobClosed],
    ) -> None:
        self._job = job
        self._spark = spark
        self._make_log = log
        self._runtime = runtime
        self._verify = verify
        self._closed_error = closed
        self._models: dict[str, LiveModel[Any]] = {}
        self._log: LiveLog | None = None
        self._is_open = False
        self._current: dict[str, LiveChanged] = {}
        self._seen: Mapping[QueryName, QueryLive] = {}  # what was last in force
        self._requests: queue.SimpleQueue[tuple[LiveRequest, Future[LiveFacts]] | None] = queue.SimpleQueue()
        self._state = threading.Lock()
        self._is_closed = threading.Event()
        self._connected: list[tuple[str, jvm_side.Question]] = []
        self._thread = threading.Thread(target=self._run, name="coord-live", daemon=True)

    @property
    def is_used(self) -> bool:
        """Whether any is declared."""
        return bool(self._models)

    def declare(self, name: str, default: BaseModel) -> LiveModel[Any]:
        """Declare a live value.

        Raises:
            LiveModelInvalid: it cannot be declared like this, or not any more.
        """
        if self._is_open:
            raise LiveModelInvalid(name, "declare live values before the first query is started")
        if name in self._models:
            raise LiveModelInvalid(name, "this job has declared it already")
        model = LiveModel(name, default)
        for each, type_name in model.fields.items():
            jvm_side.register(self._spark, model.function(each), name, each, type_name)
        jvm_side.install(self._spark)
        self._models[name] = model
        return model

    def open(self) -> None:
        """Read what counts, before the first query starts and after a restore has taken place. May be repeated.

        Raises:
            LiveValueInvalid: a value does not fit its model, which has changed.
            DamagedRecord, MissingRecord, UnsupportedFormat, StoreUnavailable: the log cannot be used.
        """
        if self._is_open:
            return
        if self._models:
            log = self._make_log()
            found = log.open({name: model.default for name, model in self._models.items()})
            for name, model in self._models.items():
                model.texts(found[name].value)
            self._verify()
            values = {name: _value(change) for name, change in found.items()}
            self._runtime.call(lambda core, now: [core.live_changed(name, value) for name, value in values.items()])
            self._current, self._log = found, log
        self._is_open = True
        self._thread.start()  # also without any: requests that have come are refused

    def begin(self, query: QueryName, query_id: str, session: SparkSession) -> None:
        """Let a query use live values: its session replaces them, and its epochs are answered."""
        jvm_side.install(session)

        def question(run: str, epoch: int) -> Mapping[str, str | None]:
            frozen = self._runtime.call(lambda core, now: core.freeze(query, RunId(run), Epoch(epoch)), is_answer=True)
            texts: dict[str, str | None] = {}
            for name, model in self._models.items():
                for each, text in model.texts(frozen[name].value).items():
                    texts[model.function(each)] = text
            return texts

        jvm_side.connect(query_id, question)
        self._connected.append((query_id, question))

    def values(self) -> dict[str, LiveValue]:
        """Return what is accepted, by name; for a checkpoint."""
        with self._state:
            return {name: _value(change) for name, change in self._current.items()}

    def names(self) -> list[str]:
        """Return the names of the declared ones, sorted."""
        return sorted(self._models)

    def models(self) -> list[LiveModel[Any]]:
        """Return the models of the declared ones."""
        return list(self._models.values())

    def model(self, name: str) -> LiveModel[Any]:
        """Return the model of a live value.

        Raises:
            LiveValueNotFound: none of this name is declared.
        """
        if (found := self._models.get(name)) is None:
            raise LiveValueNotFound(name, self._job, self._models)
        return found

    def request(self, request: LiveRequest) -> Future[LiveFacts]:
        """Ask for a change; it is carried out behind those before it, once the job has begun.

        The future raises LiveValueNotFound, LiveValueInvalid, LiveVersionChanged: nothing was changed; JobClosed,
        Fenced: the next driver carries it out if it is asked for again with the same key; StoreUnavailable: likewise,
        and the change may be durable already.
        """
        future: Future[LiveFacts] = Future()
        with self._state:
            if self._is_closed.is_set():
                future.set_exception(self._closed_error())
            else:
                self._requests.put((request, future))
        return future

    def facts(self, name: str) -> LiveFacts:
        """Return what is known of a live value, once the job has begun.

        Raises:
            LiveValueNotFound: none of this name is declared.
            JobClosed: the job has ended.
        """
        model = self.model(name)
        in_force = self._in_force()
        with self._state:
            if name not in self._current:
                raise LiveModelInvalid(name, "it has no value before the first query is started")
            return _facts(self._current[name], model, in_force)

    def all(self, timeout_seconds: float | None = None) -> tuple[LiveFacts, ...]:
        """Return what is known of every declared one, by name; none before the job has begun.

        When the job has ended, its queries are as they were last seen.

        Args:
            timeout_seconds: None: what the queries have seen is durable. Otherwise it may not be, and the wait for it
                is limited.

        Raises:
            TimeoutError, StoreError: the driver's loop does not answer, or the storage hangs.
        """
        if self._log is None:
            return ()
        with contextlib.suppress(JobClosed):
            self._seen = self._in_force() if timeout_seconds is None else self._in_force_now(timeout_seconds)
        with self._state:
            current = self._current
        return tuple(_facts(current[name], self._models[name], self._seen) for name in sorted(self._models))

    def versions(self) -> dict[str, int]:
        """Return the accepted version of each declared one, by name; none before the job has begun."""
        with self._state:
            return {name: self._current[name].version for name in self._models if name in self._current}

    def history(self, name: str) -> list[LiveChanged]:
        """Return the changes of a live value, oldest first, as far as they are known."""
        self.model(name)
        with self._state:
            return [] if self._log is None else self._log.history(name)

    def close(self, timeout_seconds: float) -> None:
        """End the thread; what was not carried out fails with the error of the job's end."""
        for query_id, question in self._connected:
            jvm_side.forget(query_id, question)
        with self._state:
            self._is_closed.set()
            self._requests.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        else:
            self._run()

    # On the thread of the changes.

    def _run(self) -> None:
        while (item := self._requests.get()) is not None:
            request, future = item
            try:
                future.set_result(self._change(request))
            except Exception as error:
                future.set_exception(error)

    def _change(self, request: LiveRequest) -> LiveFacts:
        if self._is_closed.is_set():
            raise self._closed_error()
        model, log = self.model(request.name), self._log
        assert log is not None, "it is open where values are declared"
        change = log.find(request.key)
        if change is None:
            before = self._current[request.name]
            if request.expect is not None and request.expect != before.version:
                raise LiveVersionChanged(request.name, request.expect, before.version)
            change = self._durable(request, model.changed(before.value, request.fields))
            with self._state:
                self._current = {**self._current, change.name: change}
            _log.info(
                "= live value %s has version %d, changed by %s",
                change.name,
                change.version,
                change.by or "unknown",
                extra={"action": "live_changed", "live": change.name},
            )
            self._runtime.post(lambda core, now: core.live_changed(change.name, _value(change)))
        # It is accepted, so an error in looking up what the queries have seen of it must not fail the request.
        with contextlib.suppress(StoreError, TimeoutError):
            self._seen = self._in_force()
        return _facts(change, model, self._seen)

    def _durable(self, request: LiveRequest, value: bytes) -> LiveChanged:
        assert self._log is not None, "it is open"
        while True:
            try:
                change = self._log.change(request.name, value, key=request.key, by=request.by)
                self._verify()
                return change
            except StoreUnavailable as error:
                _log.warning("= live value %s: it is not known whether the change is durable: %s", request.name, error)
                # Nothing may be decided before it is known, so those behind it wait as well.
                if self._is_closed.wait(_RETRY_SECONDS):
                    raise

    def _in_force(self) -> Mapping[QueryName, QueryLive]:
        for _ in range(_TRIES - 1):
            # A failed write takes back what was seen together with it. What the core says next has nothing of it.
            with contextlib.suppress(StoreError):
                return self._runtime.call(lambda core, now: core.live_values())
        return self._runtime.call(lambda core, now: core.live_values())

    def _in_force_now(self, timeout_seconds: float) -> Mapping[QueryName, QueryLive]:
        return self._runtime.read(lambda core, now: core.live_values(), timeout_seconds)


def _value(change: LiveChanged) -> LiveValue:
    return LiveValue(change.version, change.value)


def _facts(change: LiveChanged, model: LiveModel[Any], in_force: Mapping[QueryName, QueryLive]) -> LiveFacts:
    uses = {}
    for query, live in in_force.items():
        if (seen := live.values.get(change.name)) is not None:
            is_seen = seen.version == change.version
            uses[query] = LiveUse(
                version=seen.version, since=seen.since, next_epoch=None if is_seen else live.next_epoch
            )
    return LiveFacts(
        name=change.name,
        version=change.version,
        value=change.value,
        by=change.by,
        at_seconds=change.at_seconds,
        schema=model.schema(),
        uses=uses,
    )
