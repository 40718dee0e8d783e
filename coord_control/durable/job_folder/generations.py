"""Claims of generations: which process is the job's driver, decided by the content of a file (protocol section 6).

``<folder>/<n>.json`` is the claim of generation n. A driver owns n when the file holds that driver's own claim, with
its random token. ``<n>.released`` says that nothing of the driver of generation n runs any more: it ended in good
order, or, if the file is not empty, because it was fenced off.

Three steps make that safe, also on a storage whose create-if-absent looks first and writes later, so that two drivers
may both succeed:

1. *Announce.* Before a driver creates ``<n>.json`` it writes ``<n>.<token>.wanted``, a name that no other driver uses.
2. *Supersede.* Having created ``<n>.json`` it marks every older claim as superseded: their content changes.
3. *Confirm.* It reads its claim back and lists the folder. It owns n if the claim is still its own, no newer one is
   there and no other driver has announced n. Otherwise it claims the next number.

Of two drivers that announce n, the one that lists last sees the other, so at most one owns it. A driver that announces
n after the owner has confirmed finds ``<n>.json`` when it looks, so it never writes it: a number has one owner, even if
a write is late.

An owner is current as long as its claim holds its own content. That is one read of a file that exists: no negative
cache can answer it, and opening a file is what NFS promises to check with its server.

A command that works on the storage of a stopped job claims in the same way, but leaves a driver alone: it looks at
each new claim before it takes the next number, and withdraws if that one's holder is alive. So of a driver and a
command that come at the same moment the driver stays.

Fencing rests on the claims alone, and is safe whatever the older driver does. Whether that one *may still live* is a
different question, see :mod:`.holder`.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import random
import re
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

import pydantic

from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.holder import Aliveness, Holder, Process, may_live
from coord_control.errors import AlreadyExists, CoordControlError, DamagedRecord, Fenced, UnsupportedFormat
from coord_control.ids import Generation

__all__ = [
    "LEASE_SECONDS",
    "UNSEEN_SECONDS",
    "WATCH_SECONDS",
    "Claim",
    "ClaimRecord",
    "claim",
    "previous_may_live",
]

FORMAT_VERSION: Final = 2

NO_GENERATION: Final = Generation(0)

#: How often a driver checks its claim, whatever else it does.
WATCH_SECONDS: Final = 0.5
#: How old a check may be on which an answer rests that needs no durable write. Two looks of the watch: one may be late.
LEASE_SECONDS: Final = 2 * WATCH_SECONDS
#: How long a successor waits for a driver that it cannot see: by then it has stopped answering, with some to spare.
UNSEEN_SECONDS: Final = 2 * LEASE_SECONDS

#: Claims older than this many generations are deleted; only the newest decide anything, some more tell a story.
_KEPT: Final = 10

#: Drivers that claim at the same moment try again at different moments.
_PAUSE_SECONDS: Final = 0.05
_MAX_PAUSE_SECONDS: Final = 2.0

_NUMBERED: Final = re.compile(r"([1-9]\d*)\.")
_CLAIM_NAME: Final = re.compile(r"([1-9]\d*)\.json")
#: In the file that releases a claim.
_FENCED: Final = b"fenced"
_WANTED_NAME: Final = re.compile(r"([1-9]\d*)\.([0-9a-f]+)\.wanted")


class ClaimRecord(pydantic.BaseModel):
    """The content of a claim."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    format_version: int = FORMAT_VERSION
    generation: Generation
    holder: Holder
    claimed_at: datetime.datetime
    token: str | None = None  #: tells this driver's claim from that of any other; None in format 1
    superseded_by: Generation | None = None  #: a newer driver has claimed this generation
    is_driver: bool = True  #: False: a command that works on the storage of a job without a driver

    def encode(self) -> bytes:
        """Return the file's content."""
        return self.model_dump_json(indent=2).encode()

    def __str__(self) -> str:
        """Describe the holder, for people; the first process is the driver's Python."""
        pid = f"process {self.holder.processes[0].pid}" if self.holder.processes else "a driver"
        return f"{pid} on {self.holder.host} (since {self.claimed_at.isoformat(timespec='seconds')})"


class Claim:
    """This driver's generation.

    Attributes:
        generation: its number.
        previous: the claim before it; None for the first.
        found: whether the driver before it still ran when this one came; kept by the caller that checked.
    """

    def __init__(
        self, files: Files, folder: str, record: ClaimRecord, previous: ClaimRecord | None, clock: Callable[[], float]
    ) -> None:
        self._files = files
        self._folder = folder
        self._content = record.encode()
        self._supervisor = record.holder.supervisor
        self._processes = record.holder.processes
        self.generation = record.generation
        self.previous = previous
        self.found = Aliveness.DEAD
        self._clock = clock
        self._checked_at = -math.inf  # when the newest check began that has found it current

    def is_current(self) -> bool:
        """Return whether the claim still holds this driver's content; reads one file.

        Raises:
            StoreUnavailable: the storage cannot say.
        """
        began = self._clock()
        if not _holds(self._files, _path(self._folder, self.generation), self._content):
            self._checked_at = -math.inf
            return False
        self._checked_at = max(self._checked_at, began)
        return True

    def verify(self, job: str) -> None:
        """Check that this driver still owns the job; reads one file.

        Raises:
            Fenced: it does not.
            StoreUnavailable: the storage cannot say.
        """
        if not self.is_current():
            raise self.fenced(job)

    def verify_recent(self, job: str) -> None:
        """Check that this driver still owned the job a moment ago (:meth:`is_fresh`); reads nothing if it knows.

        Raises:
            Fenced: it does not own it any more.
            StoreUnavailable: the storage cannot say.
        """
        if not self.is_fresh():
            self.verify(job)

    def is_fresh(self) -> bool:
        """Return whether the last check found it current and began at most :data:`LEASE_SECONDS` ago.

        Never blocks. A successor that cannot see this driver waits longer than that before it reads anything.
        """
        return self._clock() - self._checked_at <= LEASE_SECONDS

    def release(self, *, is_fenced: bool = False) -> None:
        """Say that nothing of this driver runs any more. May be called again.

        Args:
            is_fenced: it ended because of a newer driver, with what it was doing unfinished.
        """
        try:
            self._files.create(_released_path(self._folder, self.generation), _FENCED if is_fenced else b"")
        except AlreadyExists:
            return

    def is_released(self, generation: Generation) -> bool:
        """Return whether an earlier driver has recorded that nothing of it runs; False also for one long forgotten."""
        return self._files.exists(_released_path(self._folder, generation))

    def has_ended_cleanly(self, generation: Generation) -> bool:
        """Return whether an earlier driver has recorded that it ended in good order; False for one long forgotten."""
        try:
            return self._files.read(_released_path(self._folder, generation)) != _FENCED
        except FileNotFoundError:
            return False

    def has_same_supervisor(self, generation: Generation) -> bool:
        """Say whether the supervisor of this driver has started that of an earlier generation as well."""
        try:
            earlier = _read(self._files, self._folder, generation)
        except (FileNotFoundError, DamagedRecord):  # removed long ago, or unreadable
            return False
        return self._supervisor is not None and earlier.holder.supervisor == self._supervisor

    def fenced(self, job: str) -> Fenced:
        """Return the error for a driver that is no longer current, with the current one if the storage can name it."""
        newer = None
        with contextlib.suppress(CoordControlError):  # it is fenced all the same
            newer = newest_claim(self._files, self._folder)
        if newer is None or newer[0].generation <= self.generation:
            return Fenced(job, self.generation)
        return Fenced(job, self.generation, newer[0].generation, str(newer[0]))

    def previous_driver(self) -> ClaimRecord | None:
        """Return the claim of the last driver before this one, or None if there was none, or it was removed long ago.

        Raises:
            DamagedRecord, UnsupportedFormat: a claim cannot be read.
        """
        if self.previous is None or self.previous.is_driver:
            return self.previous
        for generation in sorted(_claimed(self._files, self._folder), reverse=True):
            if generation < self.previous.generation:
                record = _read(self._files, self._folder, generation)
                if record.is_driver:
                    return record
        return None

    def alive_before(self) -> tuple[Generation, list[int]] | None:
        """Find an earlier driver that was replaced, yet has not ended, on this machine.

        Returns:
            Its generation and the ids of its processes that run; None if there is none. A job that ran earlier in this
            very process is none: here its queries have been stopped.
        """
        for generation in sorted(_claimed(self._files, self._folder), reverse=True):
            if generation < self.generation and (found := _processes_of(self._files, self._folder, generation)):
                pids = [process.pid for process in found if process not in self._processes]
                if pids:
                    return Generation(generation), pids
        return None

    def is_previous_released(self) -> bool:
        """Say whether the driver before this one ended in good order."""
        previous = self.previous
        return previous is not None and self.is_released(previous.generation)


def claim(
    files: Files,
    folder: str,
    holder: Holder,
    *,
    above: Generation = NO_GENERATION,
    look_at: Callable[[ClaimRecord, bool], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] | None = None,
) -> Claim:
    """Claim the next generation: from now on every older driver is fenced.

    Args:
        files: the job's storage.
        folder: the job's ``generations`` folder.
        holder: this driver.
        above: claim one after the other until one is above this: what was restored from another job, or from another
            place, has seen the barrier ids of that generation (rule C9).
        look_at: for a command that works on the storage, and must leave a driver alone. Called with the newest claim of
            another process, and whether its holder recorded its end, before each attempt; it may raise to withdraw.
        sleep: waits between two attempts, when several drivers claim at the same moment.
        clock: seconds that only grow; for :meth:`Claim.is_fresh`.

    Raises:
        DamagedRecord, UnsupportedFormat: a claim that counts cannot be read.
        StoreUnavailable: the storage cannot be written.
    """
    token = secrets.token_hex(16)
    contests = 0
    before_us: ClaimRecord | None = None
    while True:
        newest = max(_claimed(files, folder), default=0)
        # Numbers that we tried to claim, including those that we did not get, are not those of a driver before us.
        if newest and (record := _read(files, folder, newest)).token != token:
            before_us = record
            if look_at is not None:
                look_at(record, files.exists(_released_path(folder, newest)))
        mine = ClaimRecord(
            generation=Generation(newest + 1),
            holder=holder,
            claimed_at=datetime.datetime.now(datetime.UTC),
            token=token,
            is_driver=look_at is None,
        )
        is_owner = _try_to_own(files, folder, mine)
        if is_owner and mine.generation > above:
            _forget_old(files, folder, mine.generation)
            return Claim(files, folder, mine, before_us, clock or _clock)
        if not is_owner:
            sleep(random.uniform(0.0, min(_PAUSE_SECONDS * contests, _MAX_PAUSE_SECONDS)))
            contests += 1


def newest_claim(files: Files, folder: str) -> tuple[ClaimRecord, bool] | None:
    """Return the newest claim, and whether its driver recorded its end; None if there is no claim.

    Raises:
        DamagedRecord, UnsupportedFormat: it cannot be read.
    """
    newest = max(_claimed(files, folder), default=0)
    if not newest:
        return None
    return _read(files, folder, newest), files.exists(_released_path(folder, newest))


def previous_may_live(claim: Claim) -> Aliveness:
    """Check whether the driver before this one may still run; DEAD if there was none."""
    if claim.previous is None:
        return Aliveness.DEAD
    return may_live(claim.previous.holder, is_released=claim.is_previous_released())


def _processes_of(files: Files, folder: str, generation: int) -> list[Process]:
    """Return the processes of a driver that run on this machine; none if it has said that it ended."""
    try:
        record = _read(files, folder, generation)
    except (FileNotFoundError, DamagedRecord, UnsupportedFormat):
        return []
    if not record.is_driver or files.exists(_released_path(folder, generation)):
        return []
    each = {process: record.holder.model_copy(update={"processes": (process,)}) for process in record.holder.processes}
    return [process for process, holder in each.items() if may_live(holder) is Aliveness.ALIVE]


def _claimed(files: Files, folder: str) -> list[int]:
    return [int(match[1]) for name in files.list(folder) if (match := _CLAIM_NAME.fullmatch(name))]


def _try_to_own(files: Files, folder: str, mine: ClaimRecord) -> bool:
    """Claim one generation. Return False if another driver owns it, or claims it too; then it may have no owner at
    all."""
    announcement = join(folder, f"{mine.generation}.{mine.token}.wanted")
    files.replace(announcement, b"")
    try:
        files.create(_path(folder, mine.generation), mine.encode())
    except AlreadyExists:
        is_owner = False
    else:
        _supersede(files, folder, mine.generation)
        is_owner = _is_confirmed(files, folder, mine)
    # Only now: from here on this driver writes nothing under that number.
    files.delete(announcement)
    return is_owner


def _supersede(files: Files, folder: str, newest: Generation) -> None:
    """Change the content of all older claims: their drivers find out by reading them."""
    for number in sorted(_claimed(files, folder), reverse=True):  # the one that may run first
        if number >= newest:
            continue
        # A claim that is gone or damaged does not hold its driver's content either.
        with contextlib.suppress(FileNotFoundError, DamagedRecord):
            older = _read(files, folder, number)
            if older.superseded_by is None:
                changes = {"format_version": FORMAT_VERSION, "superseded_by": newest}
                files.replace(_path(folder, number), older.model_copy(update=changes).encode())


def _is_confirmed(files: Files, folder: str, mine: ClaimRecord) -> bool:
    if not _holds(files, _path(folder, mine.generation), mine.encode()):
        return False
    # Listed after the claim was written: a rival that is not in this list will find the claim, and write nothing.
    names = files.list(folder)
    wanted = {
        match[2] for name in names if (match := _WANTED_NAME.fullmatch(name)) and int(match[1]) == mine.generation
    }
    newest = max(int(match[1]) for name in names if (match := _CLAIM_NAME.fullmatch(name)))
    return wanted == {mine.token} and newest == mine.generation


def _holds(files: Files, path: str, content: bytes) -> bool:
    try:
        return files.read(path) == content
    except FileNotFoundError:
        return False


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
    """Delete old claims, except those of drivers that hang on this machine: see :meth:`Claim.alive_before`."""
    names = files.list(folder)
    numbers = {int(match[1]) for name in names if (match := _NUMBERED.match(name))}
    old = {number for number in numbers if number <= newest - _KEPT}
    forgotten = {number for number in old if not _processes_of(files, folder, number)}
    for name in names:
        if (match := _NUMBERED.match(name)) and int(match[1]) in forgotten:
            files.delete(join(folder, name))


def _path(folder: str, generation: int) -> str:
    return join(folder, f"{generation}.json")


def _released_path(folder: str, generation: int) -> str:
    return join(folder, f"{generation}.released")


def _clock() -> float:
    # Also counts the time that the machine was asleep, where the system can tell.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
