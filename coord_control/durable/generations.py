"""Claims of generations: who is the job's driver, decided by who creates a file first (protocol section 6).

``<folder>/<n>.json`` is the claim of generation n, made by create-if-absent before anything else; of two drivers that
start together one gets n and the other n+1, and then the first one is fenced. ``<n>.released`` says that the driver
of generation n ended in good order.

Fencing rests on the claims alone, and is safe whatever the older driver does. Whether that one *may still live* is a
different question, asked for politeness: a query that it runs writes to the same Spark checkpoint until it notices. The
answer is a pure decision from facts.

Threads: any.
"""

from __future__ import annotations

import contextlib
import datetime
import enum
import json
import os
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pydantic

from coord_control.durable.files import Files, join
from coord_control.errors import AlreadyExists, CoordControlError, DamagedRecord, Fenced, UnsupportedFormat
from coord_control.ids import Generation

__all__ = ["Aliveness", "Claim", "ClaimRecord", "Holder", "Process", "claim", "decide", "may_live", "previous_may_live"]

FORMAT_VERSION: Final = 1

NO_GENERATION: Final = Generation(0)

#: Claims older than this many generations are deleted; only the newest decide anything, some more tell a story.
_KEPT: Final = 10

_CLAIM_NAME: Final = re.compile(r"([1-9]\d*)\.json")


class Aliveness(enum.Enum):
    """Whether the driver of a generation may still run."""

    DEAD = "dead"  #: it ended, or its processes are gone
    ALIVE = "alive"  #: one of its processes runs
    UNKNOWN = "unknown"  #: it ran where we cannot look


class _Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class Process(_Model):
    """A process, told apart from a later one with the same id by when it started."""

    pid: int
    started: str | None  #: only to be compared; None where it cannot be found out


class Holder(_Model):
    """Where a driver runs: its machine, and the processes that all have to be gone before it is."""

    host: str
    boot: str | None  #: changes with each start of the machine
    namespace: str | None  #: process ids only mean something within it (containers)
    processes: tuple[Process, ...]

    @classmethod
    def of(cls, pids: Iterable[int]) -> Holder:
        """Describe processes of this machine, usually this driver's Python and its JVM."""
        return cls(
            host=socket.gethostname(),
            boot=_read_text("/proc/sys/kernel/random/boot_id"),
            namespace=_read_link("/proc/self/ns/pid"),
            processes=tuple(Process(pid=pid, started=_started(pid)) for pid in pids),
        )


class ClaimRecord(_Model):
    """The content of a claim."""

    format_version: int = FORMAT_VERSION
    generation: Generation
    holder: Holder
    claimed_at: datetime.datetime

    def __str__(self) -> str:
        """Who it is, for people; the first process is the driver's Python."""
        pid = f"process {self.holder.processes[0].pid}" if self.holder.processes else "a driver"
        return f"{pid} on {self.holder.host} (since {self.claimed_at.isoformat(timespec='seconds')})"


class Claim:
    """This driver's generation.

    Attributes:
        generation: its number.
        previous: the claim before it; None for the first.
        found: whether the driver before it still ran when this one came; kept by whoever has looked.
    """

    def __init__(self, files: Files, folder: str, generation: Generation, previous: ClaimRecord | None) -> None:
        self._files = files
        self._folder = folder
        self.generation = generation
        self.previous = previous
        self.found = Aliveness.DEAD

    def is_current(self) -> bool:
        """Say whether no newer driver has claimed; at most two look-ups on the storage."""
        # Old claims are deleted in rising order. So, in this order of looking: when ours is still there, the next one
        # cannot have come and gone.
        if self._files.exists(_path(self._folder, self.generation + 1)):
            return False
        return self._files.exists(_path(self._folder, self.generation))

    def release(self) -> None:
        """Say that this driver has ended in good order. May be called again."""
        try:
            self._files.create(_released_path(self._folder, self.generation), b"")
        except AlreadyExists:
            return

    def is_released(self, generation: Generation) -> bool:
        """Say whether the driver of an earlier generation ended in good order; False also for one long forgotten."""
        return self._files.exists(_released_path(self._folder, generation))

    def fenced(self, job: str) -> Fenced:
        """What to tell a driver that is not current any more: who is, as far as the storage can say that now."""
        newer = None
        with contextlib.suppress(CoordControlError):  # it is fenced all the same
            newer = newest_claim(self._files, self._folder)
        if newer is None or newer[0].generation <= self.generation:
            return Fenced(job, self.generation)
        return Fenced(job, self.generation, newer[0].generation, str(newer[0]))

    def is_previous_released(self) -> bool:
        """Say whether the driver before this one ended in good order."""
        previous = self.previous
        return previous is not None and self.is_released(previous.generation)


def claim(files: Files, folder: str, holder: Holder, *, above: Generation = NO_GENERATION) -> Claim:
    """Claim the next generation: from now on every older driver is fenced.

    Args:
        files: the job's storage.
        folder: the job's ``generations`` folder.
        holder: this driver.
        above: claim one after the other until one is above this: what was restored from another job, or from another
            place, has seen the barrier ids of that generation (rule C9).

    Raises:
        DamagedRecord, UnsupportedFormat: the newest claim cannot be read; nothing was claimed.
    """
    ours: set[int] = set()
    before_us: ClaimRecord | None = None
    while True:
        newest = max(_claimed(files, folder), default=0)
        if newest not in ours:
            before_us = _read(files, folder, newest) if newest else None
        mine = ClaimRecord(
            generation=Generation(newest + 1), holder=holder, claimed_at=datetime.datetime.now(datetime.UTC)
        )
        try:
            files.create(_path(folder, mine.generation), mine.model_dump_json(indent=2).encode())
        except AlreadyExists:
            continue
        ours.add(mine.generation)
        if mine.generation > above:  # numbers are never left out, a fenced driver looks for the next one
            _forget_old(files, folder, mine.generation)
            return Claim(files, folder, mine.generation, before_us)


def newest_claim(files: Files, folder: str) -> tuple[ClaimRecord, bool] | None:
    """The newest claim, and whether its driver said that it has ended; None: nobody has ever claimed.

    Raises:
        DamagedRecord, UnsupportedFormat: it cannot be read.
    """
    newest = max(_claimed(files, folder), default=0)
    if not newest:
        return None
    return _read(files, folder, newest), files.exists(_released_path(folder, newest))


def previous_may_live(claim: Claim) -> Aliveness:
    """Look whether the driver before this one may still run; DEAD when there was none."""
    if claim.previous is None:
        return Aliveness.DEAD
    return may_live(claim.previous.holder, is_released=claim.is_previous_released())


def may_live(holder: Holder, *, is_released: bool = False) -> Aliveness:
    """Look whether any of these processes may still run; ``is_released``: they said that they have ended."""
    here = Holder.of(process.pid for process in holder.processes if _exists(process.pid))
    return decide(holder, is_released=is_released, here=here)


def decide(previous: Holder, *, is_released: bool, here: Holder) -> Aliveness:
    """Decide whether a driver may still run.

    Args:
        previous: the driver in question.
        is_released: it said that it has ended.
        here: this machine, with those of the driver's process ids that exist now.
    """
    if is_released:
        return Aliveness.DEAD
    # Only Linux tells these; elsewhere nobody can be declared dead.
    if None in (previous.boot, previous.namespace):
        return Aliveness.UNKNOWN
    if (previous.host, previous.boot, previous.namespace) != (here.host, here.boot, here.namespace):
        return Aliveness.UNKNOWN
    now = {process.pid: process.started for process in here.processes}
    if any(_is_same(process, now) for process in previous.processes):
        return Aliveness.ALIVE
    return Aliveness.DEAD


def _is_same(process: Process, now: Mapping[int, str | None]) -> bool:
    if process.pid not in now:
        return False
    started = now[process.pid]
    # Without a start time, taking a stranger for the driver is the error that does no harm.
    return started is None or process.started is None or started == process.started


def _claimed(files: Files, folder: str) -> list[int]:
    return [int(match[1]) for name in files.list(folder) if (match := _CLAIM_NAME.fullmatch(name))]


def _read(files: Files, folder: str, generation: int) -> ClaimRecord:
    path = _path(folder, generation)
    data = files.read(path)
    try:
        content: Any = json.loads(data)
        version = int(content["format_version"])
    except (ValueError, KeyError, TypeError) as exc:
        raise DamagedRecord(path, f"it is not a claim: {exc}") from exc
    if version > FORMAT_VERSION:
        raise UnsupportedFormat(path, version, FORMAT_VERSION)
    try:
        record = ClaimRecord.model_validate_json(data)
    except pydantic.ValidationError as exc:
        raise DamagedRecord(path, f"it is not a claim: {exc}") from exc
    if record.generation != generation:
        raise DamagedRecord(path, f"it is the claim of generation {record.generation}")
    return record


def _forget_old(files: Files, folder: str, newest: Generation) -> None:
    for number in sorted(_claimed(files, folder)):
        if number <= newest - _KEPT:
            files.delete(_released_path(folder, number))
            files.delete(_path(folder, number))


def _path(folder: str, generation: int) -> str:
    return join(folder, f"{generation}.json")


def _released_path(folder: str, generation: int) -> str:
    return join(folder, f"{generation}.released")


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # A process that has ended keeps its id until its parent takes note; without an init that can be never.
    fields = _stat(pid)
    return fields is None or fields[0] not in ("Z", "X")


def _started(pid: int) -> str | None:
    """When a process started, in clock ticks since the boot."""
    fields = _stat(pid)
    return None if fields is None else fields[19]


def _stat(pid: int) -> list[str] | None:
    text = _read_text(f"/proc/{pid}/stat")
    # The second field is the program's name in brackets, with any characters in it; what we want follows it.
    return None if text is None else text.rpartition(")")[2].split()


def _read_text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _read_link(path: str) -> str | None:
    try:
        return str(Path(path).readlink())
    except OSError:
        return None
