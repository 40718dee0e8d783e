"""The agent in the driver: carries out the commands in the database, and records there what happens in the job.

It is a guest in the job. The job never waits for it, except twice, for a bounded time: at the start (to find a stop
command that killed an earlier driver, before any query starts) and at the end (to write outcomes before the process
ends). If the database is unavailable, the job keeps running, commands in progress are finished, and records wait
(:mod:`.buffer`) until it is back. The storage is the source of truth: at the start and after each outage the history is
reconciled with it.

One pass of the agent, in an order in which a client that reads a command's outcome also finds its checkpoint:

1. poll the commands in progress; outcomes go into the buffer after the checkpoints that they refer to;
2. register (at the start, after an outage), reconcile, take over commands that older drivers had claimed;
3. write the buffer; heartbeat; claim and begin commands; number control events; report progress.

Fencing: every write contains the generation. If the database has a newer one, the job is fenced, and this agent writes
nothing more; the next driver takes over the commands that it had claimed.

Threads: one for the passes, one that waits for the database's signal, one for upkeep; :meth:`Agent.start` and
:meth:`Agent.close` are called by the threads that start and end the job.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from coord_control.control.agent.buffer import Buffer
from coord_control.control.agent.contact import Contact
from coord_control.control.agent.driver_records import live_status, operator_records, query_records
from coord_control.control.agent.executor import Executor
from coord_control.control.agent.journal import CommandJournal
from coord_control.control.agent.reconciliation import reconcile
from coord_control.control.agent.registration import register
from coord_control.control.agent.reporter import Reporter
from coord_control.control.agent.sampler import Sampler
from coord_control.control.agent.upkeep import Upkeep
from coord_control.control.commands import take_over
from coord_control.control.execution.command import EndJob
from coord_control.control.execution.driver_port import DriverPort
from coord_control.control.settings import ControlSettings
from coord_control.errors import (
    CoordControlError,
    DatabaseError,
    GenerationSuperseded,
    JobClosed,
    JobNameTaken,
    JobNotFound,
    StoreError,
)
from coord_control.ids import OperatorUid
from coord_control.storage.notify import CommandSignal, for_database
from coord_control.storage.records import (
    ENDED_TO_RESTART,
    AgentMetrics,
    CommandRecord,
    JobRegistration,
    JobState,
    LiveStatus,
    OperatorRecord,
    Outcome,
    QueryRecord,
)
from coord_control.storage.store import ControlStore

__all__ = ["Agent"]

_log = logging.getLogger("coord_control.control")

#: How long the start of a job waits for a first contact.
_START_SECONDS: Final = 5.0
#: How long the end of a job waits for the database.
_CLOSE_SECONDS: Final = 5.0
#: How often commands in progress are polled.
_BUSY_SECONDS: Final = 0.1
_CLAIMED_AT_ONCE: Final = 50
_SIGNAL_SECONDS: Final = 5.0
_SIGNAL_RETRY_SECONDS: Final = 1.0


class Agent:
    """The agent of one job in one driver.

    Args:
        port: the job.
        store: the database; connects when it is first used.
        is_supervised: returns whether a supervisor restarts the driver on request; called by any thread.
        log_file: the file that the driver's output goes to, if any.
    """

    def __init__(
        self,
        port: DriverPort,
        store: ControlStore,
        settings: ControlSettings,
        *,
        is_supervised: Callable[[], bool] = lambda: False,
        log_file: str | None = None,
    ) -> None:
        self._port, self._store, self._settings = port, store, settings
        self._is_supervised, self._log_file = is_supervised, log_file
        self._facts = port.facts
        self._contact = Contact(store.database.display_url)
        self._buffer = Buffer()
        self._reporter = Reporter(self._facts, self._buffer, self._wake_up)
        self._closing = threading.Event()
        journal = CommandJournal(self._facts, store, self._buffer, self._closing)
        self._executor = Executor(port, journal, wake=self._wake_up, is_supervised=is_supervised)
        self._sampler = Sampler(self._facts.name, settings.sample_seconds)
        self._upkeep = Upkeep(store, settings)
        self._wake = threading.Event()
        self._first_pass = threading.Event()
        self._pass_lock = threading.Lock()  # one pass at a time: close() makes the last one on another thread
        self._is_registered = False
        self._is_fenced = False
        self._may_have_commands = True
        self._may_have_older = True  # claimed before this driver, or by it when the answer was lost
        self._next_heartbeat = 0.0
        self._written: tuple[Any, Any] = ((), ())  # queries and operators as they are in the database
        self._early_lock = threading.Lock()
        self._is_early = True  # the job is being made, no query was started
        self._early_stop: CommandRecord | None = None
        self._signal: CommandSignal | None = None
        self._unlisten: list[Callable[[], None]] = []
        self._threads = [
            threading.Thread(target=self._run, name="coord-agent", daemon=True),
            threading.Thread(target=self._listen, name="coord-agent-signal", daemon=True),
        ]

    def start(self, wait_seconds: float = _START_SECONDS) -> CommandRecord | None:
        """Start, and wait a moment for the first contact with the database, which may also come later.

        Returns:
            A stop command that killed an earlier driver: the job must end, and close the agent.
        """
        self._unlisten = [self._port.add_listener(self._reporter), self._port.add_listener(self._executor.desk)]
        for thread in self._threads:
            thread.start()
        self._first_pass.wait(wait_seconds)
        with self._early_lock:
            self._is_early = False
            return self._early_stop

    def close(
        self,
        state: JobState = JobState.ENDED,
        reason: str = "",
        *,
        is_clean: bool = True,
        is_fenced: bool = False,
        is_final: bool = False,
    ) -> None:
        """Write the last outcomes of a job that has ended, if the database can be reached. May be called twice.

        Args:
            is_clean: whether the driver has recorded on the storage that it ended cleanly.
            is_fenced: whether a newer driver owns the job and its commands.
            is_final: whether a restart would not help, so that the supervisor does not restart the driver.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        self._wake_up()
        for stop in self._unlisten:
            stop()
        if threading.current_thread() is not self._threads[0]:
            self._threads[0].join(_CLOSE_SECONDS)
        if not (self._is_fenced or is_fenced):
            is_followed = self._is_supervised() and state is JobState.FAILED and not is_final
            self._executor.job_ended(is_followed=is_followed, final_error=reason if is_final else None)
            if state is JobState.ENDED and self._executor.is_restarting:
                reason = ENDED_TO_RESTART
            ended = partial(
                self._store.jobs.ended,
                self._facts.name,
                self._facts.generation,
                state,
                reason,
                is_clean=is_clean,
                is_final=is_final,
                queries=self._queries(),
            )
            self._last_words(ended)
        self._upkeep.close(1.0)
        if self._signal is not None:
            self._signal.close()
        self._store.close()

    def metrics(self) -> AgentMetrics:
        """Return the agent's metrics; any thread."""
        return AgentMetrics(
            buffered=len(self._buffer),
            dropped=self._buffer.dropped,
            database_failures=self._contact.failures,
            last_failure=self._contact.last_failure,
            last_contact=self._contact.last_at,
            commands=self._executor.finished,
        )

    def outcomes(self) -> dict[tuple[str, str], int]:
        """Return the number of commands that this driver has finished, by kind and state; any thread."""
        return dict(self._executor.outcomes)

    @property
    def commands_under_way(self) -> int:
        """Return the number of commands in progress; any thread."""
        return self._executor.under_way

    @property
    def is_stopping(self) -> bool:
        """Return whether a command is stopping the job; any thread."""
        return self._executor.is_ending and not self._executor.is_restarting

    @property
    def is_restarting(self) -> bool:
        """Return whether a command is restarting the job; any thread."""
        return self._executor.is_restarting

    @property
    def is_connected(self) -> bool:
        """Return whether the last attempt to use the database succeeded."""
        return self._is_registered and not self._contact.is_lost

    # The thread of the passes.

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.clear()
            with self._pass_lock:
                self._pass(time.monotonic())
            self._first_pass.set()
            self._wake.wait(self._seconds_to_wait(time.monotonic()))

    def _seconds_to_wait(self, now: float) -> float:
        if self._is_fenced:
            return _SIGNAL_SECONDS
        if self._contact.is_lost:
            due = self._contact.seconds_until_due(now)
        else:
            due = max(0.0, self._next_heartbeat - now)
        return min(due, _BUSY_SECONDS) if self._executor.is_busy else max(due, 0.001)

    def _pass(self, now: float) -> None:
        if self._is_fenced:
            return
        try:
            self._executor.look()
            self._sample()
            if self._contact.is_due(now):
                self._use_database(now)
                self._contact.worked()
        except GenerationSuperseded as error:
            self._superseded(error)
        except (DatabaseError, JobNameTaken, JobNotFound) as error:  # the last: the job's history was removed
            self._is_registered = False
            self._contact.failed(error, now)
        except StoreError as error:  # the job notices this itself; the agent only cannot reconcile now
            self._contact.failed(error, now)
        except Exception as error:
            _log.exception("x internal error in the agent; please report it")
            self._contact.failed(_Internal(f"{type(error).__name__}: {error}"), now)

    def _use_database(self, now: float) -> None:
        if not self._is_registered:
            self._resume()
        if self._may_have_older:
            self._take_older()
        self._reporter.flush(self._store)
        if now >= self._next_heartbeat:
            self._heartbeat(now)
        if self._may_have_commands:
            self._claim()
        if self._executor.desk.has_work():
            self._executor.desk.work(self._store)
        # Commands that have just begun may have finished already, and a client is waiting for them.
        self._executor.look()
        self._reporter.flush(self._store)
        for command, progress in self._executor.progress().items():
            checkpoint = progress.get("checkpoint")
            self._store.commands.progress(command, self._facts.generation, progress, checkpoint=checkpoint)
        self._upkeep.look(now)

    # Its parts.

    def _resume(self) -> None:
        """Register and reconcile, at the start and after each outage of the database."""
        self._register()
        self._written = ((), ())
        reconcile(self._port, self._store)
        self._is_registered = True
        self._may_have_commands = self._may_have_older = True
        self._next_heartbeat = 0.0

    def _register(self) -> None:
        is_new = self._contact.last_at is None
        register(self._port, self._store, self._registration(), may_create=is_new)

    def _take_older(self) -> None:
        # Like new commands, they wait until the program has started its queries: a savepoint of only some of them would
        # not be a savepoint of the job.
        name, generation, is_ready = self._facts.name, self._facts.generation, self._port.is_ready()
        now = self._store.jobs.heartbeat(name, generation).now
        for command in self._store.commands.claimed_by(name, generation) if is_ready else ():
            self._executor.take(command)
        for command in self._store.commands.claimed_by_older(name, generation):
            self._take_over(command, now, is_ready)
        self._may_have_older = not is_ready

    def _take_over(self, command: CommandRecord, now: datetime.datetime, is_ready: bool) -> None:
        found = take_over(command, self._port, now)
        is_stop = isinstance(found, EndJob) and self._is_early
        if not (is_ready or is_stop or isinstance(found, Outcome)):
            return
        if not self._store.commands.adopt(command.id, self._facts.generation):
            return
        with self._early_lock:
            if self._executor.take_over(command, found, is_early=self._is_early):
                self._early_stop = command

    def _heartbeat(self, now: float) -> None:
        self._next_heartbeat = now + self._settings.heartbeat_seconds
        live, metrics = self._live(), self.metrics()
        self._store.jobs.heartbeat(self._facts.name, self._facts.generation, live, metrics, state=self._state())
        self._write_parts()
        self._may_have_commands = True  # a signal may have been lost

    def _write_parts(self) -> None:
        """Write queries and operators if they have changed; what changes all the time is part of the heartbeat."""
        with contextlib.suppress(JobClosed):
            queries, operators = self._queries(), self._operators()
            seen = tuple((each.name, each.lineage, each.state, each.restarts, each.last_failure) for each in queries)
            if seen != self._written[0]:
                self._store.jobs.update_queries(self._facts.name, self._facts.generation, queries)
            if operators != self._written[1]:
                self._store.jobs.update_operators(self._facts.name, self._facts.generation, operators)
            self._written = (seen, operators)

    def _claim(self) -> None:
        if not self._port.is_ready() or self._closing.is_set():
            return  # commands would be refused for operators that the program has not declared yet
        name, generation = self._facts.name, self._facts.generation
        while commands := self._store.commands.claim(name, generation, _CLAIMED_AT_ONCE):
            for command in commands:
                self._executor.take(command)
        self._may_have_commands = False
        if self._executor.is_busy:
            self._executor.cancel(self._store.commands.cancel_requests(name, generation))

    def _sample(self) -> None:
        now = datetime.datetime.now(datetime.UTC)
        if not self._sampler.is_due(now):
            return
        with contextlib.suppress(JobClosed):
            sampled = self._sampler.take(self._port.status(), now)
            if sampled.queries or sampled.operators:
                self._buffer.sample(sampled)

    def _state(self) -> JobState:
        if self._executor.is_ending:
            return JobState.STOPPING
        return JobState.RUNNING if self._port.is_ready() else JobState.STARTING

    def _live(self) -> LiveStatus | None:
        with contextlib.suppress(JobClosed):
            return live_status(self._port.status(), self._reporter.current, self._port.metrics_address())
        return None

    def _queries(self) -> tuple[QueryRecord, ...]:
        return query_records(self._port.queries())

    def _operators(self) -> tuple[OperatorRecord, ...]:
        operators = self._port.operators()
        durable = {str(each.uid): self._port.feed_status(OperatorUid(each.uid)).durable for each in operators}
        return operator_records(operators, durable)

    def _registration(self) -> JobRegistration:
        facts = self._facts
        return JobRegistration(
            name=facts.name,
            root=facts.root,
            folder=facts.folder,
            generation=facts.generation,
            host=facts.host,
            pid=facts.pid,
            lease_seconds=self._settings.lease_seconds,
            state=self._state(),
            is_supervised=self._is_supervised(),
            log_file=self._log_file,
            spark_version=facts.spark_version,
            version=facts.version,
        )

    def _superseded(self, error: GenerationSuperseded) -> None:
        self._is_fenced = True
        _log.error("x %s", error, extra={"action": "fenced", "job": self._facts.name})
        self._port.fenced(error.newest)

    def _wake_up(self) -> None:
        self._wake.set()

    # The thread that waits for the database's signal.

    def _listen(self) -> None:
        while not self._closing.is_set():
            try:
                if self._signal is None:
                    self._signal = for_database(
                        self._store.database,
                        self._facts.name,
                        poll_min_seconds=self._settings.poll_min_seconds,
                        poll_max_seconds=self._settings.poll_max_seconds,
                    )
                if self._signal.wait(_SIGNAL_SECONDS):
                    self._may_have_commands = True
                    self._wake_up()
            except CoordControlError as error:  # the passes log and count it
                _log.debug("= %s", error)
                self._closing.wait(_SIGNAL_RETRY_SECONDS)
            except Exception:
                _log.exception("x internal error in the agent's signal; please report it")
                self._closing.wait(_SIGNAL_RETRY_SECONDS)

    # The end.

    def _last_words(self, write: Callable[[], None]) -> None:
        """Write within a bounded time, on a thread that may be abandoned, because a connection may hang."""
        thread = threading.Thread(target=self._say_last, args=(write,), name="coord-agent-end", daemon=True)
        thread.start()
        thread.join(_CLOSE_SECONDS)
        if thread.is_alive():
            _log.warning("= the control database does not answer; the next driver of the job reports what is missing")

    def _say_last(self, write: Callable[[], None]) -> None:
        deadline = time.monotonic() + _CLOSE_SECONDS
        while True:
            try:
                with self._pass_lock:
                    if not self._is_registered:
                        self._register()
                        self._is_registered = True
                    self._reporter.flush(self._store)
                    write()
                return
            except GenerationSuperseded:
                return
            except CoordControlError as error:
                if time.monotonic() + 0.5 > deadline:
                    _log.warning("= %s; the next driver of the job reports what is missing", error)
                    return
                time.sleep(0.5)
            except Exception:
                _log.exception("x internal error in the agent; please report it")
                return


class _Internal(CoordControlError):
    """An internal error, to be counted and shown."""
