"""``kill -9`` of an agent's process at each step of each command: one outcome, the right one, whoever gives it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.files.filesystem import LocalFiles, join
from coord_control.durable.job_folder.restore_log import newest_restore
from coord_control.exit_codes import ExitCode
from coord_control.storage.commands import CommandRequest
from coord_control.storage.records import CheckpointState, CommandKind, CommandRecord, CommandState
from coord_control.storage.store import ControlStore
from tests.agent_kit import JOB, OPERATOR, control_settings, open_store
from tests.kill import agent_process
from tests.kill.forked import Forked
from tests.patience import eventually

_KILLED: Final = -9

_COMMON: Final = ("after:claim", "before:finish", "after:finish")
_ENDING: Final = ("after:claim", "before:stop", "after:stop", "before:finish", "after:finish", "before:ended")

#: The steps at which the process dies, by what was asked for.
CASES: Final = [
    *((CommandKind.TRIGGER_CHECKPOINT, step) for step in (*_COMMON, "before:submit", "after:submit")),
    *((CommandKind.TRIGGER_SAVEPOINT, step) for step in (*_COMMON, "after:submit")),
    *((CommandKind.VERIFY, step) for step in _COMMON),
    *((CommandKind.DISPOSE, step) for step in (*_COMMON, "after:progress", "before:dispose", "after:dispose")),
    *(
        (CommandKind.SEND_EVENT, step)
        for step in (*_COMMON, "before:accept", "after:accept", "before:epoch", "after:epoch")
    ),
    *((CommandKind.STOP, step) for step in _ENDING),
    *((CommandKind.STOP_WITH_SAVEPOINT, step) for step in (*_ENDING, "after:submit")),
    *((CommandKind.RESTART, step) for step in ("after:claim", "before:stop", "after:stop", "before:ended")),
    *((CommandKind.RESTORE, step) for step in (*_ENDING, "after:progress", "before:restore", "after:restore")),
]

#: Steps of the first driver and of the second one: it dies while it takes the command over.
TAKING_OVER: Final = [
    (CommandKind.SEND_EVENT, "after:accept"),
    (CommandKind.DISPOSE, "after:progress"),
    (CommandKind.STOP_WITH_SAVEPOINT, "before:stop"),
    (CommandKind.RESTORE, "after:restore"),
]


class Site:
    """A storage, a database, and the processes on them."""

    def __init__(self, folder: Path, cleanup: contextlib.ExitStack) -> None:
        self.root, self.database = str(folder / "jobs"), str(folder / "control.db")
        self.store: ControlStore = open_store(control_settings(self.database))
        self._cleanup = cleanup
        cleanup.callback(self.store.close)

    def start(self, step: str | None = None, *, skew_seconds: float = 0.0, is_under_way: bool = False) -> Forked:
        """A driver, and the step at which it dies; see :mod:`tests.kill.agent_process`."""
        process = Forked(agent_process.main, self.root, self.database, step, skew_seconds, is_under_way)
        self._cleanup.callback(_end, process)
        return process

    def running(self, process: Forked, generation: int) -> None:
        """Wait until the driver is known, and takes commands."""

        def is_there() -> bool:
            assert process.poll() is None, "it ended before it was asked to"
            with contextlib.suppress(Exception):
                job = self.store.jobs.get(JOB)
                return job.generation == generation and job.is_alive and job.state == "running"
            return False

        eventually(is_there)

    def ask(self, kind: CommandKind, **payload: Any) -> str:
        request = CommandRequest(job=JOB, kind=kind, payload=payload, operator=payload.get("operator"))
        return self.store.commands.submit(request).id

    def outcome(self, command: str) -> CommandRecord:
        eventually(lambda: self.store.commands.get(command).is_finished)
        return self.store.commands.get(command)


def _end(process: Forked) -> None:
    process.kill()
    process.wait()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with contextlib.ExitStack() as cleanup:
        yield Site(tmp_path, cleanup)


@pytest.mark.kill
@pytest.mark.parametrize(("kind", "step"), CASES, ids=lambda value: str(value).replace(":", "-"))
def test_a_command_has_one_right_outcome_wherever_its_driver_dies(site: Site, kind: CommandKind, step: str) -> None:
    saved = _saved(site) if kind in (CommandKind.VERIFY, CommandKind.DISPOSE, CommandKind.RESTORE) else None
    generation = 2 if saved else 1
    victim = site.start(step)
    site.running(victim, generation)
    command = site.ask(kind, **_payload(kind, saved))
    assert victim.wait() == _KILLED
    last = _finish(site, command)
    _check(site, kind, _completed(site, command), last)


@pytest.mark.kill
@pytest.mark.parametrize("when", ["before:adopt", "after:adopt"])
@pytest.mark.parametrize(("kind", "step"), TAKING_OVER, ids=lambda value: str(value).replace(":", "-"))
def test_a_driver_that_dies_while_it_takes_a_command_over_leaves_it_to_the_next(
    site: Site, kind: CommandKind, step: str, when: str
) -> None:
    saved = _saved(site) if kind in (CommandKind.DISPOSE, CommandKind.RESTORE) else None
    first = site.start(step)
    site.running(first, 2 if saved else 1)
    command = site.ask(kind, **_payload(kind, saved))
    assert first.wait() == _KILLED
    assert site.start(when).wait() == _KILLED
    last = _finish(site, command)
    _check(site, kind, _completed(site, command), last)


@pytest.mark.kill
def test_a_restore_is_done_once_whatever_the_clocks_of_its_drivers_say(site: Site) -> None:
    """Other differences: tests/unit/control/test_command_takeover.py."""
    skew_seconds = -3600.0
    saved = _saved(site)
    first = site.start("after:restore", skew_seconds=skew_seconds)
    site.running(first, 2)
    command = site.ask(CommandKind.RESTORE, **_payload(CommandKind.RESTORE, saved))
    assert first.wait() == _KILLED
    assert site.start("after:adopt", skew_seconds=-skew_seconds).wait() == _KILLED
    last = _finish(site, command)
    _check(site, CommandKind.RESTORE, _completed(site, command), last)


@pytest.mark.kill
@pytest.mark.parametrize("step", _COMMON)
def test_an_abort_comes_true_wherever_the_driver_of_the_checkpoint_dies(site: Site, step: str) -> None:
    victim = site.start(step, is_under_way=True)
    site.running(victim, 1)
    eventually(lambda: [entry.id for entry in site.store.checkpoints.list(JOB)] == [1])
    command = site.ask(CommandKind.ABORT, checkpoint=1)
    assert victim.wait() == _KILLED
    _finish(site, command)
    assert _completed(site, command).result == {"checkpoint": 1}
    assert site.store.checkpoints.get(JOB, 1).state is CheckpointState.FAILED


@pytest.mark.kill
def test_an_abort_of_a_checkpoint_that_never_was_is_refused_after_its_driver_has_died(site: Site) -> None:
    victim = site.start("after:claim")
    site.running(victim, 1)
    command = site.ask(CommandKind.ABORT, checkpoint=17)
    assert victim.wait() == _KILLED
    _finish(site, command)
    assert site.outcome(command).state is CommandState.REFUSED


@pytest.mark.kill
@pytest.mark.parametrize("step", [*_COMMON, "after:accept", "before:epoch", "after:epoch"])
def test_an_event_that_is_refused_has_failed_wherever_its_driver_dies(site: Site, step: str) -> None:
    victim = site.start(step)
    site.running(victim, 1)
    event = {"event_type": "Threshold", "payload": {"minutes": -1}, "subtask": None}
    command = site.ask(CommandKind.SEND_EVENT, operator=OPERATOR, **event)
    assert victim.wait() == _KILLED
    _finish(site, command)
    done = site.outcome(command)
    assert (done.state, done.error and done.error.code) == (CommandState.FAILED, "COORDINATOR_FAILED")


def _completed(site: Site, command: str) -> CommandRecord:
    """It was done, and this was said once."""
    done = site.outcome(command)
    assert done.state is CommandState.COMPLETED, done
    said = [entry.outcome for entry in site.store.audit.list(JOB, subject=command)]
    assert said.count("completed") == 1, said
    return done


def _saved(site: Site) -> str:
    """A savepoint from before; its driver has stopped."""
    process = site.start()
    site.running(process, 1)
    done = site.outcome(site.ask(CommandKind.TRIGGER_SAVEPOINT, target=None, label="before"))
    site.outcome(site.ask(CommandKind.STOP, grace_seconds=1.0))
    assert process.wait() == ExitCode.FINISHED
    assert done.result is not None
    return str(done.result["path"])


def _payload(kind: CommandKind, saved: str | None) -> dict[str, Any]:
    match kind:
        case CommandKind.SEND_EVENT:
            event = {"event_type": "Threshold", "payload": {"minutes": 5}, "subtask": None}
            return {"operator": OPERATOR, **event}
        case CommandKind.VERIFY | CommandKind.DISPOSE:
            return {"ref": "before"}
        case CommandKind.RESTORE:
            return {"ref": "latest"}
        case _:
            return {}


def _finish(site: Site, command: str) -> Forked:
    """Be the supervisor until the command has its outcome; return the last driver."""
    process = site.start()

    def is_over() -> bool:
        nonlocal process
        code = process.poll()
        if code == ExitCode.RESTART:
            process = site.start()
            return False
        return code is not None or site.store.commands.get(command).is_finished

    eventually(is_over)
    return process


def _check(site: Site, kind: CommandKind, done: CommandRecord, last: Forked) -> None:
    """What was done was done once, and nothing else was."""
    files, folder = LocalFiles(), join(site.root, JOB)
    entries = Catalog(files, folder).entries()
    assert done.result is not None
    if kind in (CommandKind.TRIGGER_CHECKPOINT, CommandKind.TRIGGER_SAVEPOINT):
        assert [int(entry.checkpoint) for entry in entries if entry.is_completed] == [done.result["checkpoint"]]
    if kind is CommandKind.SEND_EVENT:
        recorded = Path(folder) / "coordinator.json"
        assert '"events": [5]' in recorded.read_text()
    if kind is CommandKind.DISPOSE:
        assert entries == []
    if kind is CommandKind.RESTORE:
        newest = newest_restore(files, folder)
        assert newest is not None
        assert (newest.number, newest.path) == (1, done.result["path"])
    if kind is CommandKind.STOP_WITH_SAVEPOINT:
        savepoints = [entry.path for entry in entries if entry.is_completed]
        assert savepoints == [done.result["savepoint"]["path"]]
    if kind is CommandKind.RESTART:
        assert done.result["generation"] > 1
        assert last.wait(0.5) is None, "it was to be started again once"
