"""Where a driver runs, and whether it may still run.

Asked for politeness: a query that an older driver runs writes to the same Spark checkpoint until it notices that it was
replaced. And asked before sinks are set back, which no claim protects from a driver that hangs. The answer is a pure
decision from facts.

Threads: any.
"""

from __future__ import annotations

import enum
import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

import pydantic

__all__ = ["Aliveness", "Holder", "Process", "decide", "may_live"]


class Aliveness(enum.Enum):
    """Whether the driver of a generation may still run."""

    DEAD = "dead"  #: it ended, or its processes are gone
    ALIVE = "alive"  #: one of its processes runs
    UNKNOWN = "unknown"  #: it ran where we cannot look


class _Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class Process(_Model):
    """A process; its start time distinguishes it from a later one with the same id."""

    pid: int
    started: str | None  #: only to be compared; None where it cannot be found out


class Holder(_Model):
    """Where a driver runs: its machine, and the processes that all have to be gone before it is."""

    host: str
    boot: str | None  #: changes with each start of the machine
    namespace: str | None  #: process ids only mean something within it (containers)
    processes: tuple[Process, ...]
    supervisor: str | None = None  #: the ``coordctl run`` that started it, if any

    @classmethod
    def of(cls, pids: Iterable[int], supervisor: str | None = None) -> Holder:
        """Describe processes of this machine, usually this driver's Python and its JVM."""
        return cls(
            host=socket.gethostname(),
            boot=_read_text("/proc/sys/kernel/random/boot_id"),
            namespace=_read_link("/proc/self/ns/pid"),
            processes=tuple(Process(pid=pid, started=_started(pid)) for pid in pids),
            supervisor=supervisor,
        )


def may_live(holder: Holder, *, is_released: bool = False) -> Aliveness:
    """Check whether any of these processes may still run; ``is_released``: they recorded that they have ended."""
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
    # Only Linux provides these; elsewhere no process can be declared dead.
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
    """Return when a process started, in clock ticks since the boot."""
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
