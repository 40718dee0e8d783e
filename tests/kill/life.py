"""One trial: input that keeps coming, drivers that are started one after the other, and moments at which to kill them.

Threads: the feeder has one of its own; all else is the test's.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from coord_control.durable.epochs.records_codec import decode_segment
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder.lineage import current_lineage
from coord_control.ids import QueryName
from coord_control.protocol.records import Ack, Begin
from tests.kill.books import story_folder
from tests.kill.pausing import PAUSE_VARIABLE, Step, paused_mark
from tests.patience import SECONDS

__all__ = ["CHECKOUT", "Feeder", "Moment", "Trial", "Victim"]

CHECKOUT: Final = Path(__file__).resolve().parents[2]
#: A driver that neither dies nor gets on within this time fails its test.
_MARK: Final = "COORD_KILL_TRIAL"  # in the environment of everything that a trial starts
_POLL_SECONDS: Final = 0.05
_CLOSE_SECONDS: Final = 0.001
_KEYS: Final = 24
_BACKLOG: Final = 6  # files that the feeder is ahead of the slower query


class Moment(enum.Enum):
    """When to kill, in the life of an epoch of the query with the operator."""

    CLAIMED = "a generation has been claimed"
    RECOVERED = "the records of the generation before have been taken over"
    PLANNED = "Spark has fixed the rows of an epoch"
    BEGUN = "a begin record is durable"
    ACKED = "an acknowledgement is durable"
    WRITTEN = "the sink has the epoch, Spark has not committed it"
    COMMITTED = "Spark has committed an epoch"
    ANY = "a random time"


class Victim(enum.Enum):
    """Whom to kill."""

    PYTHON = "python"  #: the JVM notices and lives on for moments
    JVM = "jvm"  #: Python notices and has to end by itself
    GROUP = "group"  #: the whole process group at once


class Feeder:
    """Writes numbered rows, a file per epoch, a few files ahead of the job; remembers what it wrote."""

    def __init__(self, folder: Path, seed: int, progress: Callable[[], int]) -> None:
        self.keys: list[int] = []  #: by row number
        self.files = 0
        self._folder = folder
        self._random = random.Random(f"{seed} feeder")
        self._progress = progress
        self._first_mtime = time.time() - 86_400
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._folder.mkdir()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(0.05):
            if self.files - self._progress() < _BACKLOG:
                self._add()

    def _add(self) -> None:
        # Few keys now and then: then some subtasks have no rows.
        keys = self._random.sample(range(_KEYS), self._random.choice([1, 2, 8, _KEYS]))
        added = [self._random.choice(keys) for _ in range(self._random.randint(1, 40))]
        rows = [{"n": len(self.keys) + index, "key": key} for index, key in enumerate(added)]
        self.keys += added
        self.write(rows)
        self.files += 1

    def write(self, rows: Sequence[Mapping[str, int]]) -> None:
        """Make the rows of one file visible to the job, all at once."""
        hidden = self._folder / f".{self.files:05}"
        hidden.write_text("\n".join(map(json.dumps, rows)))
        # Spark orders files by modification time.
        os.utime(hidden, (self._first_mtime + self.files, self._first_mtime + self.files))
        hidden.rename(self._folder / f"{self.files:05}.json")


class Trial:
    """The folder of one job, and the drivers that it has had."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self.random = random.Random(seed)
        self.mark = uuid.uuid4().hex
        self.job = folder / "jobs" / "killed"
        self.lives = 0
        self.late_commits = 0  #: epochs that a JVM committed when its Python was dead already
        self.longest_afterlife = 0.0  #: seconds that a JVM outlived its Python
        self._watchers: list[threading.Thread] = []
        self._started: list[subprocess.Popen[bytes]] = []
        self.script = Path(__file__).with_name("driver.py")
        self.environment: dict[str, str] = {}  #: of the drivers from now on, on top of the test's
        self.restore: str | None = None  #: what the job is restored from by each driver from now on
        self.new_story()
        self.feeder = Feeder(folder / "in", seed, self._slowest)

    @property
    def story(self) -> Path:
        """Where the job writes."""
        return story_folder(self.folder, self.restore)

    def new_story(self, restore: str | None = None) -> None:
        """From now on the job is one that was restored."""
        self.restore = restore
        for name in ("served", "failed", "slow", "counts"):
            (self.story / name).mkdir(parents=True)

    def rows(self, story: Path) -> list[dict[str, Any]]:
        """What the job has written in one of its stories, as the last driver has read it back."""
        rows: list[dict[str, Any]] = json.loads((story / "result.json").read_text())["rows"]
        return rows

    def query(self, name: str) -> Path:
        """The lineage of a query."""
        lineage = current_lineage(LocalFiles(), str(self.job / "queries" / name), QueryName(name))
        return Path(lineage.folder) if lineage is not None else self.job / "queries" / name / "lineage-000001"

    def generations(self) -> list[int]:
        return sorted(int(path.stem) for path in (self.job / "generations").glob("*.json"))

    def start(self, *args: str, command: Sequence[str] = (), pause: Step | None = None) -> subprocess.Popen[bytes]:
        """Start a driver, or ``command`` with the driver's script, in a process group of its own.

        Args:
            pause: where it stops and waits to be killed.
        """
        self.lives += 1
        script = [str(self.script), *self._arguments(), *args]
        environment = {**os.environ, **self.marked(), "SPARK_LOCAL_IP": "127.0.0.1", **self.environment}
        if pause is not None:
            environment[PAUSE_VARIABLE] = pause.name
            paused_mark(self.folder).unlink(missing_ok=True)
        with self.log(self.lives).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *command, *script],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def marked(self) -> dict[str, str]:
        """The environment by which :meth:`leftovers` finds a process; Python finds this checkout by it."""
        return {"PYTHONPATH": str(CHECKOUT), _MARK: self.mark}

    def log(self, life: int) -> Path:
        return self.folder / f"driver-{life}.log"

    def processes(self, life: int) -> tuple[int, int]:
        """Wait for the claim of the ``life``-th generation; the ids of its Python and its JVM."""
        path = self.job / "generations" / f"{life}.json"
        self.wait_for(path.exists, f"the claim of generation {life}")
        python, jvm = json.loads(path.read_text())["holder"]["processes"]
        return int(python["pid"]), int(jvm["pid"])

    def wait_for(self, condition: Callable[[], bool], what: str, *, closely: bool = False) -> None:
        """Poll, if need be ``closely`` enough to act while it is still true, which takes most of a core."""
        until = time.monotonic() + SECONDS
        while not condition():
            if time.monotonic() > until:
                raise TimeoutError(f"waited {SECONDS} s for {what}; see {self.log(self.lives)}")
            if notes := self.violations():
                raise AssertionError("\n".join(notes))
            time.sleep(_CLOSE_SECONDS if closely else _POLL_SECONDS)

    def watch_recovery(self, generation: int, committed: int) -> None:
        """Wait until ``generation`` has taken over; ``committed`` is where its predecessor stood when Python died."""
        self.wait_for_moment(Moment.RECOVERED, generation)
        self.late_commits += _newest(self.query("ledger") / "spark" / "commits") - committed

    def wait_for_epochs(self, count: int) -> None:
        """Let the driver live until the query with the operator has committed ``count`` more epochs."""
        commits = self.query("ledger") / "spark" / "commits"
        goal = _newest(commits) + count
        self.wait_for(lambda: _newest(commits) >= goal, f"epoch {goal}")

    def wait_for_moment(self, moment: Moment, generation: int) -> None:
        """Wait until ``moment`` comes for the first time from now on, in the life of ``generation``."""
        ledger = self.query("ledger")
        own = ledger / "epochs" / str(generation)
        match moment:
            case Moment.CLAIMED:
                return
            case Moment.RECOVERED:
                self.wait_for(lambda: next(own.glob("*.base"), None) is not None, moment.value, closely=True)
            case Moment.PLANNED:
                self._wait_for_next(ledger / "spark" / "offsets")
            case Moment.WRITTEN:
                self._wait_for_next(self.story / "out" / "_spark_metadata")
            case Moment.COMMITTED:
                self._wait_for_next(ledger / "spark" / "commits")
            case Moment.BEGUN:
                self._wait_for_record(own, Begin)
            case Moment.ACKED:
                self._wait_for_record(own, Ack)
            case Moment.ANY:
                time.sleep(self.random.uniform(0.0, 12.0))

    def kill(self, victim: Victim, process: subprocess.Popen[bytes], python: int, jvm: int) -> float:
        """Kill, and wait until Python has ended. Returns the seconds that took."""
        began = time.monotonic()
        match victim:
            case Victim.PYTHON:
                os.kill(python, signal.SIGKILL)
            case Victim.JVM:
                os.kill(jvm, signal.SIGKILL)
            case Victim.GROUP:
                os.killpg(process.pid, signal.SIGKILL)
        process.wait(SECONDS)
        died = time.monotonic()
        watcher = threading.Thread(target=self._watch_afterlife, args=(jvm, died), daemon=True)
        watcher.start()
        self._watchers.append(watcher)
        return died - began

    def await_afterlives(self) -> None:
        """Wait until every JVM of a driver that was killed is gone."""
        for watcher in self._watchers:
            watcher.join(SECONDS)
            assert not watcher.is_alive(), "a JVM outlives its Python for ever"

    def violations(self) -> list[str]:
        folders = {self.folder, self.story}
        return [path.read_text() for folder in folders for path in folder.glob("violations/*.txt")]

    def leftovers(self) -> list[psutil.Process]:
        """Everything that the trial has started and that still runs."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def clean_up(self) -> None:
        """End what a failed test leaves behind."""
        for process in self.leftovers():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for started in self._started:
            started.wait(SECONDS)

    def _watch_afterlife(self, jvm: int, since: float) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(jvm)
            while self._is_ours(process):
                time.sleep(_POLL_SECONDS)
        self.longest_afterlife = max(self.longest_afterlife, time.monotonic() - since)

    def _arguments(self) -> list[str]:
        restore = [] if self.restore is None else ["--restore", self.restore]
        return [str(self.folder), str(self.seed), *restore]

    def _slowest(self) -> int:
        return min(_newest(self.query(name) / "spark" / "commits") for name in ("ledger", "counts")) + 1

    def _wait_for_next(self, folder: Path) -> None:
        before = _newest(folder)
        self.wait_for(lambda: _newest(folder) > before, f"a file after {before} in {folder}", closely=True)

    def _wait_for_record(self, folder: Path, kind: type[Begin] | type[Ack]) -> None:
        seen = _segments(folder)

        def has_come() -> bool:
            new = _segments(folder) - seen
            seen.update(new)
            return any(_holds(folder / name, kind) for name in new)

        self.wait_for(has_come, f"a record of the kind {kind.__name__} in {folder}", closely=True)

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return bool(process.environ().get(_MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False


def _newest(folder: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return max((int(name.removesuffix(".compact")) for name in os.listdir(folder) if name[0].isdigit()), default=-1)
    return -1


def _segments(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.log")}


def _holds(path: Path, kind: type[Begin] | type[Ack]) -> bool:
    with contextlib.suppress(FileNotFoundError):  # compacted meanwhile
        return any(isinstance(record, kind) for record in decode_segment(str(path), path.read_bytes()).records)
    return False
