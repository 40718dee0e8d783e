"""What tasks and triggers do with a client, without Airflow: look for a young checkpoint, and cancel a command."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from coord_control.airflow.cancelling import cancel
from coord_control.airflow.freshness import fresh_checkpoint
from coord_control.airflow.provider import CONNECTION_TYPE, get_provider_info
from coord_control.control.client.control_client import ControlClient
from coord_control.errors import JobNotFound
from coord_control.storage.records import CheckpointKind
from tests import control_kit as kit
from tests.places import CHECKOUT


@pytest.fixture
def client(tmp_path: Path) -> Iterator[ControlClient]:
    with kit.opened(tmp_path) as store:
        kit.put_job(store)
    with ControlClient(settings=kit.settings(tmp_path)) as client:
        yield client


def put(folder: Path, number: int, age_seconds: float, kind: str) -> None:
    finished = datetime.now(UTC) - timedelta(seconds=age_seconds)
    with kit.opened(folder) as store:
        kit.put_checkpoint(store, number, finished_at=finished, kind=CheckpointKind(kind))


def test_the_newest_checkpoint_of_the_wanted_kind_counts(client: ControlClient, tmp_path: Path) -> None:
    lines: list[str] = []
    assert fresh_checkpoint(client, kit.JOB, None, 60, lines.append) is None

    put(tmp_path, 1, 3600, "savepoint")
    put(tmp_path, 2, 5, "checkpoint")

    for kind, most, found in [(None, 60, 2), ("savepoint", 60, None), ("savepoint", 7200, 1), ("checkpoint", 1, None)]:
        newest = fresh_checkpoint(client, kit.JOB, kind, most, lines.append)
        assert (None if newest is None else newest.id) == found
    assert lines[0] == f"job {kit.JOB} has no completed checkpoint yet"
    assert lines[2].startswith("savepoint 1 was completed")


def test_an_unknown_job_is_an_error(client: ControlClient) -> None:
    with pytest.raises(JobNotFound):
        fresh_checkpoint(client, "fligths", None, 60, print)


def test_cancelling_says_what_became_of_it_and_never_raises(client: ControlClient, tmp_path: Path) -> None:
    lines: list[str] = []
    waiting = client.trigger_savepoint(kit.JOB)
    begun = client.stop(kit.JOB)
    with kit.opened(tmp_path) as store:
        kit.put_job(store)

    cancel(client, waiting.id, lines.append)
    with kit.opened(tmp_path) as store:
        assert [each.id for each in store.commands.claim(kit.JOB, 1)] == [begun.id]
    cancel(client, begun.id, lines.append)
    cancel(client, "no-such-command", lines.append)

    assert waiting.id in lines[0]
    assert lines[1] == f"Command {begun.id} can no longer be aborted; it continues"
    assert lines[2].startswith("Command no-such-command was not aborted, and continues: ")


def test_the_provider_names_modules_that_exist() -> None:
    info = get_provider_info()
    kinds = ("operators", "sensors", "hooks", "triggers")
    modules = [module for kind in kinds for each in info[kind] for module in each["python-modules"]]

    assert modules
    assert [each for each in modules if not (CHECKOUT / f"{each.replace('.', '/')}.py").is_file()] == []
    assert [each["connection-type"] for each in info["connection-types"]] == [CONNECTION_TYPE]
