"""The agent in the driver: carries out the commands in the database, and records there what happens in the job.

It is a guest in the job. The job never waits for it, except twice, for a bounded time: at the start (to find a stop
command that killed an earlier driver, before any query starts) and at the end (to write outcomes before the process
ends). If the database is unavailable, the job keeps running, commands in progress are finished, and records wait
(:mod:`.buffer`) until it is back. The storage is the source of truth: at the start and after each outage the history is
reconciled with it.

What it does, and in which phase, is decided in :mod:`.agent_run`; here the steps are taken. A client that reads a
command's outcome also finds its checkpoint, because the outcome goes into the buffer after it.

Fencing: every write contains the generation. If the database has a newer one, the job is fenced, and this agent writes
nothing more; the next driver takes over the commands that it had claimed.

Threads: one for the passes, one that waits for the database's signal (:mod:`.signal_listener`), one for upkeep;
:meth:`Agent.start` and :meth:`Agent.close` are called by the threads that start and end the job.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, assert_never

from coord_control.control.agent.agent_run import AgentRun, Input, Phase, Step
from coord_control.control.agent.buffer import Buffer
from coord_control.control.agent.contact import Contact
from coord_control.control.agent.driver_records import live_status, operator_records, query_records
from coord_control.control.agent.early_stop import EarlyStop
from coord_control.control.agent.executor import Executor
from coord_control.control.agent.journal import CommandJournal
from coord_control.control.agent.live_reporter import LiveReporter
from coord_control.control.agent.reconciliation import reconcile
from coord_control.control.agent.registration import register
from coord_control.control.agent.reporter import Reporter
from coord_control.control.agent.sampler import Sampler
from coord_control.control.agent.signal_listener import SignalListener
from coord_control.control.agent.upkeep import Upkeep
from coord_control.control.commands import ends_job, take_over
from coord_control.control.execution.command import EndJob
from coord_control.control.execution.driver_port import DriverPort
from coord_control.control.settings import ControlSettings
from coord_control.errors import (
    CoordControlError,
    DatabaseError,
    Fenced,
    GenerationSuperseded,
    JobClosed,
    JobNameTaken,
    JobNotFound,
    JobRootMismatch,
    StoreError,
)
from coord_control.ids import OperatorUid
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
_FENCED_SECONDS: Final = 5.0
#: Errors of a job that has ended.
_OVER: Final = (JobClosed, Fenced)


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
        self._live_values = LiveReporter(port, store)
        self._reporter = Reporter(self._facts, self._buffer, self._wake_up)
        self._closing = threading.Event()
        journal = CommandJournal(self._facts, store, self._buffer, self._closing)
        self._executor = Executor(port, journal, wake=self._wake_up, is_supervised=is_supervised)
        self._sampler = Sampler(self._facts.name, settings.sample_seconds)
        self._upkeep = Upkeep(store, settings)
        self._wake = threading.Event()
        self._first_pass = threading.Event()
        self._pass_lock = threading.Lock()  # one pass at a time: close() makes the last one on another thread
        self._run = AgentRun(settings.heartbeat_seconds)
        self._run_lock = threading.Lock()
        # What the database has of these; a query's epoch is part of the heartbeat.
        self._written: tuple[tuple[QueryRecord, ...], tuple[OperatorRecord, ...]] = ((), ())
        self._early = EarlyStop()
        self._mismatch: JobRootMismatch | None = None
        self._signal = SignalListener(store.database, self._facts.name, settings, self._signalled)
        self._unlisten: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._make_passes, name="coord-agent", daemon=True)

    def start(self, wait_seconds: float = _START_SECONDS) -> CommandRecord | None:
        """Start, and wait a moment for the first contact with the database, which may also come later.

        Returns:
            A stop command that killed an earlier driver: the job must end, and close the agent.

        Raises:
            JobRootMismatch: the name has the history of another folder; the job must end, and close the agent.
        """
        self._unlisten = [self._port.add_listener(self._reporter), self._port.add_listener(self._executor.desk)]
        self._thread.start()
        self._signal.start()
        self._first_pass.wait(wait_seconds)
        if self._mismatch is not None:
            self._happened(Input.SUPERSEDED)  # nothing is written of a job that does not begin
            raise self._mismatch
        return self._early.over()

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
        if is_fenced:
            self._happened(Input.SUPERSEDED)
        if not self._happened(Input.CLOSE):
            return
        self._closing.set()
        self._wake_up()
        for stop in self._unlisten:
            stop()
        if threading.current_thread() is not self._thread and self._thread.ident is not None:  # it was started
            self._thread.join(_CLOSE_SECONDS)
        if self._run.phase is not Phase.CLOSED:
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
            self._happened(Input.ENDED)
        self._upkeep.close(1.0)
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
        return self._run.phase in (Phase.REGISTERED, Phase.ENDING) and not self._contact.is_lost

    # The thread of the passes.

    def _make_passes(self) -> None:
        while not self._closing.is_set():
            self._wake.clear()
            with self._pass_lock:
                self._pass(time.monotonic())
            self._first_pass.set()
            self._wake.wait(self._seconds_to_wait(time.monotonic()))
        self._first_pass.set()  # of a job that has ended before it

    def _seconds_to_wait(self, now: float) -> float:
        if self._run.phase is Phase.FENCED:
            return _FENCED_SECONDS
        due = self._contact.seconds_until_due(now) if self._contact.is_failing else self._run.seconds_until_due(now)
        return min(due, _BUSY_SECONDS) if self._executor.is_busy else max(due, 0.001)

    def _pass(self, now: float) -> None:
        can_use_database = self._contact.is_due(now)
        try:
            for step in self._run.steps(now, can_use_database=can_use_database):
                if self._take(step, now):
                    self._run.done(step, now)
            if can_use_database and self._run.phase is Phase.REGISTERED:
                self._contact.worked()
        except GenerationSuperseded as error:
            self._superseded(error)
        except (DatabaseError, JobNameTaken, JobNotFound, JobRootMismatch) as error:  # not found: it was removed
            self._mismatch = error if isinstance(error, JobRootMismatch) else None
            self._happened(Input.LOST)
            self._contact.failed(error, now)
        except StoreError as error:  # the job notices this itself; the agent only cannot reconcile now
            self._contact.failed(error, now, is_database=False)
        except Exception as error:
            _log.exception("x internal error in the agent; please report it")
            self._contact.failed(_Internal(f"{type(error).__name__}: {error}"), now, is_database=False)

    def _happened(self, input_: Input) -> bool:
        with self._run_lock:
            return self._run.happened(input_)

    def _take(self, step: Step, now: float) -> bool:
        """Take a step of a pass; return False if it has to be taken again."""
        match step:
            case Step.LOOK | Step.LOOK_AGAIN:
                self._executor.look()
            case Step.SAMPLE:
                self._sample()
            case Step.REGISTER:
                self._resume()
            case Step.TAKE_OLDER:
                return self._take_older()
            case Step.FLUSH | Step.FLUSH_AGAIN:
                self._flush()
            case Step.HEARTBEAT:
                self._heartbeat()
            case Step.CLAIM:
                return self._claim()
            case Step.SEND_EVENTS:
                if self._executor.desk.has_work():
                    self._executor.desk.work(self._store)
            case Step.PROGRESS:
                self._write_progress()
            case Step.UPKEEP:
                self._upkeep.look(now)
            case _:
                assert_never(step)
        return True

    # Its steps.

    def _resume(self) -> None:
        """Register and reconcile, at the start and after each outage of the database."""
        self._register()
        self._written = ((), ())
        self._live_values.forget()
        reconcile(self._port, self._store)
        self._happened(Input.REGISTERED)

    def _register(self) -> None:
        register(self._port, self._store, self._registration(), may_create=self._run.may_create)

    def _take_older(self) -> bool:
        # Like new commands, they wait until the program has started its queries: a savepoint of only some of them would
        # not be a savepoint of the job.
        name, generation, is_ready = self._facts.name, self._facts.generation, self._port.is_ready()
        now = self._store.jobs.heartbeat(name, generation).now
        for command in self._store.commands.claimed_by(name, generation) if is_ready else ():
            self._executor.take(command)
        may_end = True  # not before an older command that ends the job as well, and has to wait
        for command in self._store.commands.claimed_by_older(name, generation):
            is_taken = self._take_over(command, now, is_ready=is_ready, may_end=may_end)
            may_end = may_end and (is_taken or not ends_job(command))
        return is_ready

    def _take_over(self, command: CommandRecord, now: datetime.datetime, *, is_ready: bool, may_end: bool) -> bool:
        found = take_over(command, self._port, now)
        is_stop = isinstance(found, EndJob) and self._early.is_open and may_end
        if not (is_ready or is_stop or isinstance(found, Outcome)):
            return False
        if not self._store.commands.adopt(command.id, self._facts.generation):
            return True
        with self._early.held() as is_early:
            if self._executor.take_over(command, found, is_early=is_early):
                self._early.found(command)
        return True

    def _flush(self) -> None:
        self._live_values.write_changes()  # before the outcomes of their commands
        self._reporter.flush(self._store)

    def _heartbeat(self) -> None:
        live, metrics = self._live(), self.metrics()
        self._store.jobs.heartbeat(self._facts.name, self._facts.generation, live, metrics, state=self._state())
        self._write_parts()

    def _write_parts(self) -> None:
        """Write queries and operators if they have changed; what changes all the time is part of the heartbeat."""
        with contextlib.suppress(*_OVER), self._reporter.unless_refused():
            queries, operators = self._queries(), self._operators()
            seen = tuple(replace(each, epoch=None) for each in queries)
            if seen != self._written[0]:
                self._store.jobs.update_queries(self._facts.name, self._facts.generation, queries)
            if operators != self._written[1]:
                self._store.jobs.update_operators(self._facts.name, self._facts.generation, operators)
            self._written = (seen, operators)
        self._live_values.write()

    def _claim(self) -> bool:
        if not self._port.is_ready() or self._closing.is_set():
            return False  # commands would be refused for operators that the program has not declared yet
        name, generation = self._facts.name, self._facts.generation
        is_all = False
        while not is_all:  # another look would cost each command the time of a transaction
            commands = self._store.commands.claim(name, generation, _CLAIMED_AT_ONCE)
            for command in commands:
                self._executor.take(command)
            is_all = len(commands) < _CLAIMED_AT_ONCE
        if self._executor.may_be_cancelled:
            self._executor.cancel(self._store.commands.cancel_requests(name, generation))
        return True

    def _write_progress(self) -> None:
        for command, progress in self._executor.progress().items():
            checkpoint = progress.get("checkpoint")
            with self._reporter.unless_refused():
                self._store.commands.progress(command, self._facts.generation, progress, checkpoint=checkpoint)

    def _sample(self) -> None:
        now = datetime.datetime.now(datetime.UTC)
        if not self._sampler.is_due(now):
            return
        with contextlib.suppress(*_OVER):
            sampled = self._sampler.take(self._port.status(), now)
            if sampled.queries or sampled.operators:
                self._buffer.sample(sampled)

    def _state(self) -> JobState:
        if self._executor.is_ending:
            return JobState.STOPPING
        return JobState.RUNNING if self._port.is_ready() else JobState.STARTING

    def _live(self) -> LiveStatus | None:
        with contextlib.suppress(*_OVER):
            metrics, spark_ui = self._port.metrics_address(), self._facts.spark_ui
            return live_status(self._port.status(), self._reporter.current, metrics, spark_ui)
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
            process_seconds=time.monotonic() - facts.process_started,
            log_file=self._log_file,
            spark_version=facts.spark_version,
            version=facts.version,
        )

    def _superseded(self, error: GenerationSuperseded) -> None:
        self._happened(Input.SUPERSEDED)
        _log.error("x %s", error, extra={"action": "fenced", "job": self._facts.name})
        self._port.fenced(error.newest)

    def _wake_up(self) -> None:
        self._wake.set()

    def _signalled(self) -> None:
        self._run.signalled()
        self._wake_up()

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
                    if self._run.phase is Phase.ENDING_AWAY:
                        self._register()
                        self._happened(Input.REGISTERED)
                    self._flush()
                    self._write_progress()  # of a command that the next driver finishes: a client waits for it
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
