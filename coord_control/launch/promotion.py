"""Promotions: a fork that runs next to its parent takes its place (``coordctl promote``).

The fork stays as it is, and its parent stops with a savepoint, from which it can be started again. Nothing is stored
for it: the stop is a command with a key, so the same call finds it again, whatever has become of the first caller.

    no stop with a key of this promotion, or it has failed     the fork is checked, and the stop requested
    a stop in progress                                         it is followed, without another check
    a completed one, and the parent does not run               promoted already
    a completed one, and the parent was started again          another promotion, with another key

This starts no process and needs no machine in particular. It reads the storage of both jobs for the fork's restores,
which name its parent, and for upgrades, and writes nothing there.

Threads: the caller's.
"""

from __future__ import annotations

import enum
import re
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from coord_control.control.client.control_client import ControlClient
from coord_control.control.client.progress_lines import ProgressLines
from coord_control.control.commands import CheckpointResult, StopResult
from coord_control.durable.checkpoints.checkpoint_folder import Storage
from coord_control.durable.files.filesystem import join
from coord_control.durable.job_folder.generations import newest_claim
from coord_control.durable.job_folder.restore_log import RestoreRecord, newest_restore, standing_restores
from coord_control.durable.job_folder.upgrade_record import Program, read_upgrade
from coord_control.errors import CommandFailed, JobNotFound, JobNotRunning, NotPromotable
from coord_control.ids import MAX_LABEL
from coord_control.launch.promotion_check import Readiness, is_expected, readiness_of
from coord_control.launch.supervisors import supervisor_of
from coord_control.launch.upgrade_steps import ENDS
from coord_control.storage.records import CheckpointState, CommandKind, CommandRecord, CommandState, JobRecord

__all__ = ["MAX_BACKLOG", "READY_SECONDS", "Promotion", "PromotionState", "promote_fork"]

#: How many records may wait for a query of a fork; as in Dagster's check of the backlog.
MAX_BACKLOG: Final = 10_000
#: How long a fork may take to become ready.
READY_SECONDS: Final = 300.0

_LOOK_SECONDS: Final = 0.5
#: Between two lines about a fork that is not ready.
_LINE_SECONDS: Final = 5.0
#: How long a driver may take to report its end after the outcome of its last command.
_END_SECONDS: Final = 15.0
#: How many stops of the parent are looked through for one of this promotion.
_COMMANDS: Final = 200


class PromotionState(enum.StrEnum):
    """Where a promotion stands when a call returns."""

    READY = "ready"  #: checked only: the fork could be promoted
    NOT_READY = "not_ready"  #: checked only: it could not
    STOPPING = "stopping"  #: checked only: the parent is being stopped for it
    PROMOTED = "promoted"  #: the parent has stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """A promotion, or the check of one.

    Attributes:
        is_repeated: an earlier call had promoted the fork.
        command: the stop of the parent.
        savepoint: where the parent has stopped.
        problems: of the fork: why it is not ready, or what is wrong with it after its parent has stopped.
        unknown: what could not be judged.
        way_back: the commands that put the parent in the place of the fork again.
    """

    fork: str
    parent: str
    state: PromotionState
    is_repeated: bool = False
    command: str | None = None
    savepoint: CheckpointResult | None = None
    problems: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    way_back: tuple[str, ...] = ()

    def text(self) -> str:
        """Return it as text for people."""
        lines = [self._headline(), *(f"job {self.fork}: {each}" for each in self.problems)]
        lines += [f"not known: {each}" for each in self.unknown]
        lines += ["to go back:", *(f"  {each}" for each in self.way_back)] if self.way_back else []
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values for JSON."""
        return {
            "fork": self.fork,
            "parent": self.parent,
            "state": self.state.value,
            "is_repeated": self.is_repeated,
            "command": self.command,
            "savepoint": None if self.savepoint is None else self.savepoint.model_dump(mode="json"),
            "problems": list(self.problems),
            "unknown": list(self.unknown),
            "way_back": list(self.way_back),
        }

    def _headline(self) -> str:
        match self.state:
            case PromotionState.READY:
                return f"job {self.fork} can take the place of job {self.parent}; nothing was changed"
            case PromotionState.NOT_READY:
                return f"job {self.fork} cannot take the place of job {self.parent} yet; nothing was changed"
            case PromotionState.STOPPING:
                return f"job {self.parent} is being stopped for job {self.fork}: coordctl command show {self.command}"
        assert self.savepoint is not None, "it is promoted after one"
        has = "had already taken" if self.is_repeated else "has taken"
        label = "" if self.savepoint.label is None else f", {self.savepoint.label}"
        return (
            f"job {self.fork} {has} the place of job {self.parent}, which has stopped after savepoint "
            f"{self.savepoint.checkpoint}{label}: {self.savepoint.path}"
        )


def promote_fork(
    client: ControlClient,
    fork: str,
    *,
    storage: Storage,
    parent: str | None = None,
    ready_seconds: float = READY_SECONDS,
    max_backlog: int = MAX_BACKLOG,
    check_only: bool = False,
    tell: Callable[[str], None],
) -> Promotion:
    """Let a fork take the place of its parent; return once the parent has stopped with a savepoint.

    If the caller is killed meanwhile, the same call continues.

    Args:
        storage: gives the storage of a path.
        parent: the name of the parent in the control database, if the fork's restore does not tell.
        ready_seconds: how long to wait for the fork to be ready.
        max_backlog: how many records may wait for a query that the parent has too.
        check_only: look at the fork once, and change nothing.
        tell: receives what is waited for, and what is done.

    Raises:
        JobNotFound: the control database does not know the fork.
        NotPromotable: it is not a fork, it or its parent does not run or is being upgraded, it was not ready in time,
            or the savepoint failed; in each case the parent was not stopped by this.
        DatabaseError, StoreUnavailable: for now; the same call continues.
    """
    found = client.job(fork)
    place = _Place(client, storage, fork, _parent_of(client, found, storage, parent), max_backlog)
    asked, number = place.asked()
    if asked is None or not asked.stands or (asked.state is CommandState.COMPLETED and place.runs_again(asked)):
        if check_only:
            ready = place.look()
            state = PromotionState.NOT_READY if ready.problems else PromotionState.READY
            problems, unknown = ready.problems, ready.unknown
            return Promotion(fork=fork, parent=place.parent, state=state, problems=problems, unknown=unknown)
        place.wait(ready_seconds, tell)
        tell(f"job {fork} is ready: stopping job {place.parent} with a savepoint")
        program = place.program()
        return place.stopped(place.stop(number + 1), tell, program)
    is_repeated = asked.is_finished
    if check_only and not is_repeated:
        return Promotion(fork=fork, parent=place.parent, state=PromotionState.STOPPING, command=asked.id)
    if not is_repeated:
        tell(f"following command {asked.id}, which stops job {place.parent}")
    return place.stopped(asked, tell, place.program(), is_repeated=is_repeated)


class _Place:
    """A fork and its parent, in the control database and on their storages."""

    def __init__(self, client: ControlClient, storage: Storage, fork: str, parent: str, max_backlog: int) -> None:
        self._client, self._storage, self._max_backlog = client, storage, max_backlog
        self.fork, self.parent = fork, parent

    def asked(self) -> tuple[CommandRecord | None, int]:
        """Return the newest stop of the parent for this fork, and its number; 0 if there is none."""
        of_fork = re.compile(rf"promote-{re.escape(self.fork)}-(\d+)")
        stops = self._client.commands(self.parent, kind=CommandKind.STOP_WITH_SAVEPOINT, limit=_COMMANDS)
        return next(((each, int(match[1])) for each in stops if (match := of_fork.fullmatch(each.key))), (None, 0))

    def runs_again(self, asked: CommandRecord) -> bool:
        """Return whether the parent runs, although a command has stopped it."""
        job = self._client.job(self.parent)
        if is_expected(job) and job.generation == asked.generation:
            job = self._ended()
        return is_expected(job)

    def look(self) -> Readiness:
        """Judge the fork as it is now.

        Raises:
            NotPromotable: waiting does not change it.
        """
        fork, parent = self._client.job(self.fork), self._client.job(self.parent)
        for job in (fork, parent):
            if not is_expected(job):
                problem = f"job {job.name} has not been running since {job.heartbeat_at.isoformat(timespec='seconds')}"
                raise NotPromotable(self.fork, problem, "start it with: coordctl run --detach <its script>", retry=True)
            upgrade = read_upgrade(self._storage(job.folder), job.folder)
            if upgrade is not None and upgrade.step not in ENDS:
                problem = f"an upgrade of job {job.name} is at step {upgrade.step}"
                raise NotPromotable(self.fork, problem, "continue it, or end it with coordctl upgrade --abandon")
        return self._judged(fork, parent)

    def wait(self, seconds: float, tell: Callable[[str], None]) -> None:
        """Wait until the fork is ready.

        Raises:
            NotPromotable: it is not, in this time.
        """
        before, begun, quiet_until = self._client.job(self.fork), time.monotonic(), 0.0
        while True:
            problems, now = self.look().problems, time.monotonic()
            # A driver that has just died counts as alive until its lease is over: another heartbeat is needed.
            is_heard = self._client.job(self.fork).heartbeat_at > before.heartbeat_at
            if is_heard and not problems:
                return
            if now >= begun + (seconds if problems else max(seconds, before.lease_seconds)):
                text = "; ".join(problems or ["its driver sends no heartbeats"])
                after = f" after {seconds:g} s" if seconds else ""
                way_out = f"job {self.parent} runs on, nothing was changed; repeat this later, or give it more time"
                raise NotPromotable(self.fork, f"it is not ready{after}: {text}", way_out, retry=True)
            if problems and now >= quiet_until:
                tell(f"job {self.fork} is not ready: {'; '.join(problems)}")
                quiet_until = now + _LINE_SECONDS
            time.sleep(_LOOK_SECONDS)

    def program(self) -> Program | None:
        """Return what runs the parent, or None if that is another machine's, or not under ``coordctl run``."""
        folder = self._client.job(self.parent).folder
        claim = newest_claim(self._storage(folder), join(folder, "generations"))
        token = None if claim is None else claim[0].holder.supervisor
        supervisor = None if token is None else supervisor_of(token)
        return None if supervisor is None else supervisor.program

    def stop(self, number: int) -> CommandRecord:
        """Request the stop of the parent; the same number finds the same command.

        Raises:
            NotPromotable: the parent does not run any more.
        """
        taken = {each.label for each in self._client.savepoints(self.parent)}
        label, again = f"promoted-{self.fork}"[:MAX_LABEL], 2
        while label in taken:  # the savepoint of an earlier promotion, which was taken back
            suffix = f"-{again}"
            label, again = f"promoted-{self.fork}"[: MAX_LABEL - len(suffix)] + suffix, again + 1
        try:
            return self._client.stop_with_savepoint(self.parent, label=label, key=f"promote-{self.fork}-{number}")
        except JobNotRunning as failed:
            raise self._not_stopped(failed) from failed

    def stopped(
        self, command: CommandRecord, tell: Callable[[str], None], program: Program | None, *, is_repeated: bool = False
    ) -> Promotion:
        """Follow the stop of the parent to its end.

        Raises:
            NotPromotable: it has failed.
        """
        try:
            result = self._client.wait(command, on_progress=ProgressLines(tell))
        except (CommandFailed, JobNotRunning) as failed:
            raise self._not_stopped(failed) from failed
        assert isinstance(result, StopResult), "it is the result of this command"
        assert result.savepoint is not None, "it stops after one"
        now = self._judged(self._client.job(self.fork), self._ended())
        return Promotion(
            fork=self.fork,
            parent=self.parent,
            state=PromotionState.PROMOTED,
            is_repeated=is_repeated,
            command=command.id,
            savepoint=result.savepoint,
            problems=now.problems,
            unknown=now.unknown,
            way_back=(f"coordctl stop {self.fork} --savepoint", _start_again(program, result.savepoint.path)),
        )

    def _not_stopped(self, failed: Exception) -> NotPromotable:
        runs = "runs on" if is_expected(self._client.job(self.parent)) else "does not run any more"
        problem = f"its parent {self.parent} was not stopped with a savepoint: {failed}"
        return NotPromotable(self.fork, problem, f"job {self.parent} {runs}; repeat this", retry=True)

    def _ended(self) -> JobRecord:
        """Return the parent once its driver has reported its end, or after some time."""
        deadline = time.monotonic() + _END_SECONDS
        while is_expected(job := self._client.job(self.parent)) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        return job

    def _judged(self, fork: JobRecord, parent: JobRecord) -> Readiness:
        restored = newest_restore(self._storage(fork.folder), fork.folder)
        newest = next(iter(self._client.checkpoints(self.fork, state=CheckpointState.COMPLETED, limit=1)), None)
        # By generations, because clocks differ. A restore has a separate one, or that of a driver that began with it.
        is_saved = newest is not None and (restored is None or (newest.generation or 0) >= restored.generation)
        return readiness_of(fork, parent, is_saved=is_saved, max_backlog=self._max_backlog)


def _parent_of(client: ControlClient, fork: JobRecord, storage: Storage, named: str | None) -> str:
    """Return the name of the job that another one was forked from."""
    restores = standing_restores(storage(fork.folder), fork.folder)
    begun = next((each for each in restores if each.is_fork), None)  # it may have been restored itself since
    if begun is None:
        way_out = "fork a job with: coordctl restore JOB REF --as NAME, and run a program under that name"
        raise NotPromotable(fork.name, "it is not a fork", way_out)
    recorded = _known_parent(client, begun)
    if named == fork.name:
        raise NotPromotable(fork.name, "no job is its own parent", "name the job that is to stop with --parent")
    if recorded is None and named is None:
        problem = f"the control database does not know {begun.path} as one of job {begun.job!r}"
        raise NotPromotable(fork.name, problem, "name the job that is to stop with --parent")
    if recorded is not None and named not in (None, recorded):
        raise NotPromotable(fork.name, f"its parent is job {recorded!r}, not {named!r}", "leave --parent out")
    found = recorded or named
    assert found is not None, "one of them is"
    return client.job(found).name


def _known_parent(client: ControlClient, restore: RestoreRecord) -> str | None:
    """Return the job of the restored checkpoint; None if the job of that name may be another one."""
    try:
        job = client.job(restore.job)
    except JobNotFound:
        return None
    is_below = restore.path.startswith(f"{job.folder.rstrip('/')}/")
    is_known = is_below or any(each.path == restore.path for each in client.savepoints(job.name))
    return job.name if is_known else None


def _start_again(program: Program | None, savepoint: str) -> str:
    start = ["coordctl", "run", "--detach"]
    if program is None:
        return f"{shlex.join([*start, '--restore-from', savepoint])} <its script>"
    command = [*start, *program.options, "--restore-from", savepoint, program.script, *program.args]
    return f"cd {shlex.quote(program.folder)} && {shlex.join(command)}"
