"""Many at once: a hundred clients of one job, and hundreds of jobs on one database."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from coord_control.control.client.control_client import ControlClient
from coord_control.control.settings import ControlSettings
from coord_control.ids import OperatorUid
from coord_control.storage.database import Database
from coord_control.storage.records import CommandKind, CommandState, Outcome
from coord_control.storage.store import ControlStore
from tests.agent_kit import JOB, OPERATOR, ScriptedDriver, make_agent
from tests.patience import SECONDS
from tests.records_kit import request
from tests.storage.kit import register

_CLIENTS: Final = 100
_WORKERS: Final = 8


def test_a_hundred_clients_are_all_served_once(url: str, tmp_path: Path) -> None:
    # A hundred clients in one process may keep the agent from its heartbeat for seconds; that is not the question here.
    settings = ControlSettings.load(url, heartbeat_seconds=0.5, lease_seconds=120.0, retry_seconds=60.0)
    driver = ScriptedDriver(tmp_path / "jobs")
    agent = make_agent(driver, settings, ControlStore(Database(url, application="driver")))
    agent.start()
    driver.open_feed()
    is_over = threading.Event()
    epochs = threading.Thread(target=_run_epochs, args=(driver, is_over))
    epochs.start()
    begin = threading.Barrier(_CLIENTS)

    def ask(number: int) -> tuple[int, int | None]:
        with ControlClient(settings=settings, actor=f"client-{number}") as client:
            begin.wait()
            event = client.send_event(JOB, OPERATOR, "Threshold", {"minutes": number}, key=f"event-{number}")
            checkpoint = client.trigger_checkpoint(JOB, key=f"checkpoint-{number % 10}")
            client.wait(event, timeout=SECONDS)
            client.wait(checkpoint, timeout=SECONDS)
            return number, client.command(checkpoint.id).checkpoint

    try:
        with ThreadPoolExecutor(_CLIENTS) as pool:
            served = list(pool.map(ask, range(_CLIENTS)))
    finally:
        is_over.set()
        epochs.join()
        agent.close()
    assert sorted(driver.recorded_events()) == list(range(_CLIENTS))
    made = Counter(checkpoint for _, checkpoint in served)
    assert sorted(made.values()) == [_CLIENTS // 10] * 10, "ten clients have one key, and so one checkpoint"


@pytest.mark.parametrize("jobs", [200, pytest.param(1_000, marks=pytest.mark.slow)])
def test_many_jobs_keep_their_commands_apart(store: ControlStore, url: str, jobs: int) -> None:
    names = [f"job-{number:04d}" for number in range(jobs)]
    dice = random.Random(1)
    asked = {name: dice.randrange(3) for name in names}
    stores = [ControlStore(Database(url, application=f"driver-{number}")) for number in range(_WORKERS)]

    def everywhere(work: Callable[[ControlStore, str], None]) -> None:
        def some(number: int) -> None:
            for name in names[number::_WORKERS]:
                work(stores[number], name)

        with ThreadPoolExecutor(_WORKERS) as pool:
            list(pool.map(some, range(_WORKERS)))

    def ask(mine: ControlStore, name: str) -> None:
        for number in range(asked[name]):
            mine.commands.submit(request(CommandKind.TRIGGER_CHECKPOINT, job=name, key=str(number)))

    def carry_out(mine: ControlStore, name: str) -> None:
        mine.jobs.heartbeat(name, 1)
        for command in mine.commands.claim(name, 1):
            assert command.job == name
            mine.commands.finish(command.id, 1, Outcome(state=CommandState.COMPLETED, result={"job": name}))

    everywhere(lambda mine, name: register(mine, name))
    everywhere(ask)
    everywhere(carry_out)
    for each in stores:
        each.close()
    assert [job.name for job in store.jobs.list(limit=2 * jobs) if job.is_alive] == names
    commands = store.commands.list(limit=10 * jobs)
    assert Counter(command.job for command in commands) == Counter({name: n for name, n in asked.items() if n})
    assert all(command.state is CommandState.COMPLETED for command in commands)
    assert all((command.result or {}).get("job") == command.job for command in commands)


def _run_epochs(driver: ScriptedDriver, is_over: threading.Event) -> None:
    while not is_over.wait(0.02):
        if driver.feed_status(OperatorUid(OPERATOR)).waiting:
            driver.run_epoch()
