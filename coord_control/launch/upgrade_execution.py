"""Carrying out an upgrade, step by step; the table of the steps is :mod:`coord_control.launch.upgrade_steps`.

Every step may be begun again, because the process that carries it out may have been killed in it: commands have keys,
the savepoint a label, each program a slot of its launcher, and the rollback a restore with a key.

Threads: the caller's.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from coord_control.control.client.control_client import ControlClient
from coord_control.control.commands import StopResult
from coord_control.control.settings import state_folder
from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_folder import CheckpointEntry, Storage
from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.generations import newest_claim
from coord_control.durable.job_folder.restore_log import find_restore, newest_restore
from coord_control.durable.job_folder.upgrade_record import Program, UpgradeRecord, UpgradeStep, write_upgrade
from coord_control.durable.offline.offline_restore import restore_job
from coord_control.durable.restore.prepared_restore import queries_of
from coord_control.durable.restore.reached import stands_at
from coord_control.durable.restore.request import RestoreRequest
from coord_control.errors import (
    CheckpointNotFound,
    CommandFailed,
    CoordControlError,
    DatabaseError,
    JobNotRunning,
    JobRunning,
    LaunchFailed,
    RestoreRefused,
    StoreUnavailable,
)
from coord_control.ids import LATEST, Generation
from coord_control.launch.check_run import run_check
from coord_control.launch.launcher import Launcher
from coord_control.launch.supervisors import supervisor_of
from coord_control.launch.upgrade_steps import ENDS, Look, QueryLook, StepOutcome, Watch, next_step
from coord_control.storage.records import JobRecord, JobState

__all__ = ["UpgradeExecution"]

_LOOK_SECONDS: Final = 0.5
#: How long the check of the new program may take.
_CHECK_SECONDS: Final = 600.0
#: How long a supervisor may take to end after its driver has, or after its grace period.
_END_SECONDS: Final = 60.0
_TAIL_LINES: Final = 12
#: How often a checkpoint is looked for that retention does not remove before it is held.
_TRIES: Final = 3
_RUNNING: Final = "running"

_Changes: TypeAlias = dict[str, Any]


class _StepFailed(Exception):
    """A step has failed for a reason that a repetition does not change, as after any error but those of :meth:`run`."""


class _Overtaken(_StepFailed):
    """Something else has run the job since it was stopped: nothing more is done, and nothing is undone."""


class UpgradeExecution:
    """One upgrade of a job.

    Args:
        job_folder: on its storage.
        launcher: starts the programs.
        environment: variables of the programs, in addition to those of this process: for the check of the new one.
        storage: gives the storage of a path.
        start_seconds: how long a program may take until all of its queries run.
        tell: receives what is done.
    """

    def __init__(
        self,
        client: ControlClient,
        job_folder: str,
        record: UpgradeRecord,
        launcher: Launcher,
        environment: Mapping[str, str],
        *,
        storage: Storage,
        start_seconds: float,
        tell: Callable[[str], None],
    ) -> None:
        self._client, self._folder, self._start_seconds, self._tell = client, job_folder, start_seconds, tell
        self._storage = storage
        self._files: Files = storage(job_folder)
        self._record = record
        self._launcher, self._environment = launcher, environment
        self._new, self._old = (f"{record.job}-upgrade-{record.id}-{which}" for which in ("new", "old"))

    def run(self) -> UpgradeRecord:
        """Carry out the steps that are left, and return how the upgrade has ended.

        Raises:
            DatabaseError, StoreUnavailable: for now; the same command continues.
        """
        steps: dict[UpgradeStep, Callable[[], _Changes]] = {
            UpgradeStep.CHECK: self._check,
            UpgradeStep.STOP: self._stop,
            UpgradeStep.START: self._start_new,
            UpgradeStep.VERIFY: self._verify,
            UpgradeStep.STOP_NEW: self._stop_new,
            UpgradeStep.SET_BACK: self._set_back,
            UpgradeStep.START_OLD: self._start_old,
        }
        while (step := self._record.step) not in ENDS:
            try:
                changes, outcome = steps[step](), StepOutcome.DONE
            except (DatabaseError, StoreUnavailable):
                raise
            except (_StepFailed, CoordControlError) as failed:
                self._tell(f"{step.value}: {failed}")
                why = "; ".join(filter(None, (self._record.why, str(failed))))
                is_back = step in (UpgradeStep.STOP_NEW, UpgradeStep.SET_BACK, UpgradeStep.START_OLD)
                is_undone = (self._record.rollback or is_back) and not isinstance(failed, _Overtaken)
                outcome = StepOutcome.FAILED if is_undone else StepOutcome.GIVEN_UP
                changes = {"why": why, "failed_at": step}
            self._save(step=next_step(step, outcome), **changes)
        return self._record

    def _save(self, **changes: Any) -> None:
        self._record = self._record.model_copy(update=changes)
        write_upgrade(self._files, self._folder, self._record)

    # The way to the new program.

    def _check(self) -> _Changes:
        catalog = Catalog(self._files, self._folder, self._storage)
        # Held: the job takes further checkpoints, and retention removes this one while the new program starts.
        with contextlib.ExitStack() as held:
            self._compare(self._hold_newest(catalog, held).path)
        return {}

    def _compare(self, checkpoint: str) -> None:
        record = self._record
        self._tell(f"checking {record.new.script} against {checkpoint}; the job runs on")
        scratch = join(self._folder, "upgrade-check")
        log = state_folder() / "logs" / f"{record.job}-upgrade-{record.id}-check.log"
        try:
            with tempfile.TemporaryDirectory(prefix="coordctl-upgrade-") as folder:
                report = Path(folder, "report")
                wanted = {
                    "job": record.job,
                    "root": join(scratch, uuid.uuid4().hex),
                    "checkpoint": checkpoint,
                    "allow_non_restored_state": record.allow_non_restored_state,
                    "report": str(report),
                }
                ended = run_check(record.new, json.dumps(wanted), log, _CHECK_SECONDS, self._environment)
                has_passed = report.exists()
        except OSError as error:
            raise _StepFailed(f"the new program cannot be run: {error}") from error
        finally:
            self._files.delete(scratch)
        if not has_passed:
            what = f"it ended with {ended}" if ended.returncode else "it ended before it had started its queries"
            raise _StepFailed(f"the new program does not fit {checkpoint}: {what}; its output: {log}")

    def _hold_newest(self, catalog: Catalog, held: contextlib.ExitStack) -> CheckpointEntry:
        for _ in range(_TRIES):
            with contextlib.suppress(CheckpointNotFound):
                return held.enter_context(catalog.hold(LATEST, "an upgrade compares a program with it"))
            self._take_checkpoint()
        raise _StepFailed("each checkpoint of the job was removed before it could be read")

    def _take_checkpoint(self) -> None:
        key = f"upgrade-{self._record.id}-check"
        try:
            self._client.wait(self._client.trigger_checkpoint(self._record.job, key=key))
        except (CommandFailed, JobNotRunning) as error:
            raise _StepFailed(f"the job has no checkpoint, and took none: {error}") from error

    def _stop(self) -> _Changes:
        job, name = self._record.job, f"upgrade-{self._record.id}"
        self._tell(f"stopping job {job} with savepoint {name}")
        before = newest_claim(self._files, join(self._folder, "generations"))
        try:
            command = self._client.stop_with_savepoint(job, label=name, key=f"{name}-stop")
            result = self._client.wait(command)
        except (CommandFailed, JobNotRunning) as error:
            raise _StepFailed(str(error)) from error
        assert isinstance(result, StopResult), "it is the result of this command"
        assert result.savepoint is not None, "it stops after one"
        token = None if before is None else before[0].holder.supervisor
        deadline = time.monotonic() + _END_SECONDS
        while token is not None and supervisor_of(token) is not None and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        return {"savepoint": result.savepoint.path, "stopped": self._client.command(command.id).generation}

    def _start_new(self) -> _Changes:
        record = self._record
        assert record.savepoint is not None, "it was taken before"
        options = ["--restore-from", record.savepoint]
        options += ["--allow-non-restored-state"] if record.allow_non_restored_state else []
        self._tell(f"starting {record.new.script} from {record.savepoint}; its log: {_log(self._new)}")
        generation = self._started(self._new, record.new, options)
        if not self._was_restored():
            raise _StepFailed(
                "the new program has restored something else than the savepoint of the upgrade: leave restore_from out "
                "of its Job"
            )
        return {"generation": generation}

    def _verify(self) -> _Changes:
        record = self._record
        assert record.generation is not None, "it has run"
        self._tell(f"watching generation {record.generation} for {record.verify_seconds:g} s")
        running, may_drop = self._look().queries, record.allow_non_restored_state
        before = {
            str(name): int(query.epoch)
            for name, query in self._metadata().queries.items()
            if str(name) in running or not may_drop
        }
        watch = Watch(record.generation, before, record.verify_seconds, accept_idle=record.accept_idle)
        while not watch.is_over:
            if (why := watch.saw(self._look())) is not None:
                raise _StepFailed(why)
            time.sleep(_LOOK_SECONDS)
        if (why := watch.verdict()) is not None:
            raise _StepFailed(why)
        return {}

    def _look(self) -> Look:
        is_supervised = self._launcher.is_alive(self._new)  # before the job: it may end in between
        job = self._client.job(self._record.job)
        queries = {
            query.name: QueryLook(query.epoch, query.restarts, query.backlog) for query in job.queries if query.state
        }
        return Look(time.monotonic(), job.generation, job.is_alive, is_supervised, queries)

    # The rollback.

    def _stop_new(self) -> _Changes:
        self._tell("stopping the new program")
        options = dict(zip(self._record.new.options[::2], self._record.new.options[1::2], strict=True))
        grace = float(options.get("--grace", "0s").removesuffix("s"))
        if not self._launcher.stop(self._new, grace + _END_SECONDS):
            raise _StepFailed(f"the new program does not end; its log: {_log(self._new)}")
        return {}

    def _set_back(self) -> _Changes:
        record = self._record
        assert record.savepoint is not None, "it was taken before"
        self._check_alone()
        key = f"upgrade-{record.id}-back"
        if find_restore(self._files, self._folder, key) is not None or self._stands_at_savepoint():
            return {}
        self._tell(f"setting the job and its sinks back to {record.savepoint}")
        try:
            self._restore(record.savepoint, key, roll_back_sinks=True)
        except RestoreRefused as refused:
            # A sink whose position is not known cannot be set back, and need not be if it has received nothing.
            try:
                self._restore(record.savepoint, key, roll_back_sinks=False)
            except RestoreRefused:
                raise _StepFailed(f"the job cannot be set back: {refused}") from refused
        return {}

    def _stands_at_savepoint(self) -> bool:
        """Return whether the new program has changed nothing: no query has run, and none was restored or added."""
        saved = self._metadata().queries
        is_same = set(queries_of(self._files, self._folder)) == saved.keys()
        return is_same and all(stands_at(self._files, self._folder, name, query) for name, query in saved.items())

    def _was_restored(self) -> bool:
        metadata, newest = self._metadata(), newest_restore(self._files, self._folder)
        assert self._record.savepoint is not None, "it was taken before"
        return newest is not None and newest.is_of(self._record.savepoint, metadata.checkpoint, metadata.completed_at)

    def _restore(self, savepoint: str, key: str, *, roll_back_sinks: bool) -> None:
        allow = self._record.allow_non_restored_state
        request = RestoreRequest(ref=savepoint, roll_back_sinks=roll_back_sinks, allow_non_restored_state=allow)
        known = Generation(self._client.job(self._record.job).generation)
        root, _, job = self._folder.rpartition("/")
        deadline = time.monotonic() + _END_SECONDS
        while True:
            try:
                restore_job(self._files, self._storage, request, root=root, job=job, key=key, above=known)
                return
            except JobRunning:  # the processes of a driver that was killed may take a moment to end
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_LOOK_SECONDS)

    def _start_old(self) -> _Changes:
        self._tell(f"starting {self._record.old.script} again; its log: {_log(self._old)}")
        self._started(self._old, self._record.old)
        return {}

    # Parts.

    def _started(self, slot: str, program: Program, options: Sequence[str] = ()) -> int:
        """Start a program and wait until its queries run; return the generation of its driver."""
        launcher, log = self._launcher, _log(slot)
        if not launcher.has_begun(slot):  # or it is alive, and launched only once for that
            self._check_alone()
            program = program.model_copy(update={"options": (*program.options, *options)})
            try:
                launcher.launch(slot, program, request=self._record.id, log_file=log)
            except LaunchFailed as error:
                raise _StepFailed(f"it cannot be started: {error.output or error.problem}") from error
        expected = set() if self._record.allow_non_restored_state else {str(name) for name in self._metadata().queries}
        deadline = time.monotonic() + self._start_seconds
        while True:
            is_late = time.monotonic() >= deadline
            is_last = is_late or not launcher.is_alive(slot)  # before the job: it may end in between
            job = self._client.job(self._record.job)
            if job.log_file == log and _is_running(job, expected):
                return job.generation
            if is_last:
                what = f"its queries do not run after {self._start_seconds:g} s" if is_late else "it has ended"
                raise _StepFailed(f"{what}; the end of its log ({log}):\n{launcher.tail(slot, _TAIL_LINES)}")
            time.sleep(_LOOK_SECONDS)

    def _check_alone(self) -> None:
        job, ours = self._client.job(self._record.job), {_log(self._new), _log(self._old)}
        if self._record.stopped is not None and job.generation > self._record.stopped and job.log_file not in ours:
            raise _Overtaken(
                f"generation {job.generation}, which something else has started, has run the job since the savepoint; "
                "to upgrade it, begin again"
            )

    def _metadata(self) -> CheckpointMetadata:
        assert self._record.savepoint is not None, "it was taken before"
        catalog = Catalog(self._files, self._folder, self._storage)
        return catalog.read(catalog.resolve(self._record.savepoint))


def _log(slot: str) -> str:
    return str(state_folder() / "logs" / f"{slot}.log")


def _is_running(job: JobRecord, expected: set[str]) -> bool:
    states = {query.name: query.state for query in job.queries if query.state}  # those that this driver has started
    are_running = bool(states) and all(state == _RUNNING for state in states.values())
    return job.is_alive and job.state is JobState.RUNNING and are_running and states.keys() >= expected
