"""Two jobs, their drivers and two clients, on a PostgreSQL that comes and goes, by a schedule of chance.

Drivers are killed, replaced while they live, and asked to start again; connections are cut, the server is stopped,
killed and started. In the end every command has one outcome, events took effect once and in order, and the history in
the database is what lies on the storage.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from pydantic import JsonValue

from coord_control.control.client.control_client import ControlClient
from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.errors import CoordControlError, DatabaseError
from coord_control.exit_codes import ExitCode
from coord_control.storage.database import Database
from coord_control.storage.records import CheckpointState, CommandRecord, CommandState
from tests.agent_kit import OPERATOR
from tests.kill import chaos_driver
from tests.kill.forked import Forked
from tests.patience import SECONDS
from tests.storage.server import Server

_JOBS: Final = ("first", "second")
_TROUBLE: Final = (
    "kill a driver",
    "start a second driver",
    "cut all connections",
    "stop the server",
    "kill the server",
)
_MADE: Final = ("trigger_checkpoint", "trigger_savepoint")


class Supervisor(threading.Thread):
    """Keeps the driver of a job alive, until it is told to leave it alone."""

    def __init__(self, root: str, url: str, job: str) -> None:
        super().__init__(name=f"supervisor-{job}")
        self._arguments = (root, url, job)
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._processes: list[Forked] = []
        self.codes: Counter[int | None] = Counter()

    def run(self) -> None:
        while not self._is_over.wait(0.05):
            with self._lock:
                for process in [process for process in self._processes if process.poll() is not None]:
                    self._processes.remove(process)
                    self.codes[process.wait()] += 1
                if not self._processes:
                    self._start()

    def usurp(self) -> None:
        """Start another driver beside the one that lives."""
        with self._lock:
            self._start()

    def kill(self) -> None:
        with self._lock:
            for process in self._processes:
                process.kill()

    def close(self) -> None:
        self._is_over.set()
        self.join()
        self.kill()
        for process in self._processes:
            process.wait()

    def _start(self) -> None:
        self._processes.append(Forked(chaos_driver.main, *self._arguments))


class Client(threading.Thread):
    """Asks for one thing after the other, some of them twice; what it has asked for, it knows by key."""

    def __init__(self, url: str, number: int, seed: int) -> None:
        super().__init__(name=f"client-{number}")
        self._control = ControlClient(url, actor=f"client-{number}")
        self._number, self._dice = number, random.Random(seed)
        self.is_over = threading.Event()
        self.commands: dict[str, str] = {}  # id by key
        self.errors: list[BaseException] = []
        self._values = 0

    def run(self) -> None:
        try:
            while not self.is_over.wait(self._dice.uniform(0, 0.15)):
                self._ask()
        except BaseException as error:
            self.errors.append(error)
        finally:
            self._control.close()

    def _ask(self) -> None:
        key = f"{self._number}-{len(self.commands)}-{self._dice.random()}"
        request = self._request(key)
        for _ in range(self._dice.choice((1, 1, 2))):
            try:
                command = request()
            except DatabaseError:
                continue  # it may have been written all the same: whoever repeats it learns that
            except CoordControlError:
                return  # refused: the job is between two drivers
            assert self.commands.setdefault(key, command.id) == command.id, "one key, two commands"
        if key in self.commands and self._dice.random() < 0.1:
            with contextlib.suppress(CoordControlError):
                self._control.cancel(self.commands[key])

    def _request(self, key: str) -> Callable[[], CommandRecord]:
        job, control = self._dice.choice(_JOBS), self._control
        match self._dice.randrange(40):
            case 0 | 1 | 2 | 3 | 4 | 5:
                return lambda: control.trigger_checkpoint(job, key=key)
            case 6 | 7 | 8 | 9:
                return lambda: control.trigger_savepoint(job, key=key)
            case 10 | 11:
                return lambda: control.dispose(job, "latest", key=key)
            case 12:
                return lambda: control.restart(job, key=key)
            case _:
                self._values += 1
                event: dict[str, JsonValue] = {"minutes": self._number * 1_000_000 + self._values}
                return lambda: control.send_event(job, OPERATOR, "Threshold", event, key=key)


@pytest.fixture
def server() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="coord-pg-"))  # short: the path of a socket has at most 107 characters
    server = Server(folder)
    server.start()
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.kill
@pytest.mark.parametrize("seconds", [5, pytest.param(180, marks=pytest.mark.slow)])
def test_every_command_has_one_outcome_and_the_history_is_what_happened(
    server: Server, tmp_path: Path, seconds: int
) -> None:
    url, root = server.url("postgres"), str(tmp_path)
    database = Database(url, application="test")
    database.upgrade()
    database.close()
    supervisors = {job: Supervisor(root, url, job) for job in _JOBS}
    clients = [Client(url, number, seed=number) for number in (1, 2)]
    with contextlib.ExitStack() as cleanup:
        for supervisor in supervisors.values():
            supervisor.start()
            cleanup.callback(supervisor.close)
        with ControlClient(url) as control:
            _eventually(lambda: all(_runs(control, job) for job in _JOBS))
            for client in clients:
                client.start()
            try:
                trouble = _make_trouble(server, supervisors, random.Random(7), seconds)
            finally:
                for client in clients:
                    client.is_over.set()
                    client.join()
            assert [error for client in clients for error in client.errors] == []
            ids = {command for client in clients for command in client.commands.values()}
            # Also those whose clients were answered with an error although they were written: restarts, for example.
            _eventually(lambda: all(command.is_finished for command in _all_commands(control)))
            _eventually(lambda: all(_runs(control, job) for job in _JOBS))
            for job in _JOBS:  # what was refused or has failed was so because of the trouble
                last = control.trigger_checkpoint(job), control.send_event(job, OPERATOR, "Threshold", {"minutes": 1})
                ended = [_ended(control, each) for each in last]
                assert [each.state for each in ended] == [CommandState.COMPLETED] * 2, ended
            commands = _all_commands(control)
            print(
                f"{len(commands)} commands: {dict(Counter(each.state.value for each in commands))}; trouble {trouble}; "
                f"ends {[dict(supervisor.codes) for supervisor in supervisors.values()]}"
            )
            assert ids <= {command.id for command in commands}
            _check_outcomes(control, commands)
            for job in _JOBS:
                mine = [command for command in commands if command.job == job]
                _check_checkpoints(control, job, f"{root}/{job}", mine)
                _check_events(Path(root, job, "coordinator.json"), mine)
    assert all(set(each.codes) <= {-9, ExitCode.RESTART, ExitCode.FENCED} for each in supervisors.values())


def _make_trouble(
    server: Server, supervisors: dict[str, Supervisor], dice: random.Random, seconds: int
) -> Counter[str]:
    """Each kind in turn, in an order of chance, as often as there is time; at least once."""
    done: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for what in dice.sample(_TROUBLE, len(_TROUBLE)):
            time.sleep(dice.uniform(0.2, 1.5))
            done[what] += 1
            _do(what, server, supervisors[dice.choice(_JOBS)], dice)
    return done


def _do(what: str, server: Server, supervisor: Supervisor, dice: random.Random) -> None:
    match what:
        case "kill a driver":
            supervisor.kill()
        case "start a second driver":
            supervisor.usurp()
        case "cut all connections":
            with contextlib.suppress(psycopg.Error):
                server.disconnect_all("postgres")
        case _:
            (server.stop if what == "stop the server" else server.kill)()
            time.sleep(dice.uniform(0.0, 1.0))
            server.start()


def _runs(control: ControlClient, job: str) -> bool:
    with contextlib.suppress(CoordControlError):
        record = control.job(job)
        return record.is_alive is True and record.state == "running"
    return False


def _ended(control: ControlClient, command: CommandRecord) -> CommandRecord:
    _eventually(lambda: control.command(command.id).is_finished)
    return control.command(command.id)


def _all_commands(control: ControlClient) -> list[CommandRecord]:
    found: list[CommandRecord] = []
    while page := control.commands(limit=500, before=found[-1].id if found else None):
        found += page
    return found


def _check_outcomes(control: ControlClient, commands: list[CommandRecord]) -> None:
    said = Counter(
        entry.subject
        for job in _JOBS
        for entry in control.audit(job, limit=100_000)
        if entry.outcome in {state.value for state in CommandState if state not in (CommandState.PENDING,)}
    )
    for command in commands:
        assert command.is_finished, command
        assert said[command.id] == 1, (command, said[command.id])


def _check_checkpoints(control: ControlClient, job: str, folder: str, commands: list[CommandRecord]) -> None:
    entries = [entry for entry in Catalog(LocalFiles(), folder).entries() if entry.is_completed]
    by_key = Counter(None if entry.trigger is None else entry.trigger.key for entry in entries)
    assert max(by_key.values(), default=1) == 1, by_key
    made = {f"command:{each.id}": each for each in commands if each.kind in _MADE and each.result is not None}
    assert set(by_key) <= set(made), "there is a checkpoint whose command did not complete"
    disposed = {each.result["checkpoint"] for each in commands if each.kind == "dispose" and each.result is not None}
    numbers = {int(entry.checkpoint) for entry in entries}
    assert numbers == {each.result["checkpoint"] for each in made.values() if each.result is not None} - disposed
    with contextlib.suppress(AssertionError):
        _eventually(lambda: _history(control, job) == numbers, seconds=60.0)
    assert _history(control, job) == numbers


def _history(control: ControlClient, job: str) -> set[int]:
    return {record.id for record in control.checkpoints(job, state=CheckpointState.COMPLETED, limit=100_000)}


def _check_events(state: Path, commands: list[CommandRecord]) -> None:
    sent: list[Any] = sorted(
        (each.number, each.payload["payload"]["minutes"])
        for each in commands
        if each.kind == "send_event" and each.state is CommandState.COMPLETED
    )
    applied = json.loads(state.read_text())["events"] if state.exists() else []
    assert applied == [value for _, value in sent]
    assert [number for number, _ in sent] == list(range(1, len(sent) + 1))


def _eventually(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "this did not happen in time"
        time.sleep(0.05)
