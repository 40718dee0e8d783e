"""A restore that an earlier attempt has made is found again, whether the job runs by now or not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from coord_control.airflow.attempts import Attempts
from coord_control.airflow.earlier_restore import earlier_restore, storage_key
from coord_control.control.client.control_client import ControlClient
from coord_control.control.commands import Restore
from coord_control.durable.files.filesystem import Files, LocalFiles
from coord_control.durable.job_folder.lineage import open_lineage
from coord_control.durable.job_folder.restore_log import RestoreRecord
from coord_control.durable.offline.offline_restore import restore_job
from coord_control.durable.offline.offline_savepoint import save
from coord_control.durable.restore.request import RestoreRequest
from coord_control.errors import StoreUnavailable
from coord_control.storage.records import CommandRecord
from tests import control_kit as kit
from tests.unit.airflow.test_attempts import Store, attempt
from tests.unit.durable.restore_kit import QUERIES, run_spark


class Place:
    """A stopped job with a savepoint, on a storage that a worker reaches."""

    def __init__(self, root: Path, client: ControlClient) -> None:
        self.root, self.client, self.store = root, client, Store()
        lineage = open_lineage(LocalFiles(), f"{root}/{kit.JOB}/queries/delays", QUERIES[0], {})
        run_spark(LocalFiles(), lineage.checkpoint, 3)
        self.savepoint = save(LocalFiles(), f"{root}/{kit.JOB}").path

    def attempt(self) -> Attempts:
        return attempt(self.store, task_id="restore")

    def restore(self) -> None:
        attempts = self.attempt()
        attempts.go_to_storage()
        request, key = RestoreRequest(ref=self.savepoint), storage_key(attempts)
        restore_job(LocalFiles(), lambda path: LocalFiles(), request, root=str(self.root), job=kit.JOB, key=key)

    def earlier(self) -> CommandRecord | RestoreRecord | None:
        job = dataclasses.replace(self.client.job(kit.JOB), root=str(self.root))
        return earlier_restore(self.attempt(), self.client, job, kit.JOB, self.storage)

    def storage(self) -> Files:
        return LocalFiles()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with kit.opened(tmp_path) as store:
        kit.put_job(store)  # it runs
    with ControlClient(settings=kit.settings(tmp_path)) as client:
        yield Place(tmp_path / "jobs", client)


def test_a_restore_on_the_storage_is_found_although_the_job_was_started_since(place: Place) -> None:
    assert place.earlier() is None
    place.restore()
    found = place.earlier()
    assert isinstance(found, RestoreRecord)
    assert found.path == place.savepoint


def test_one_that_was_reported_is_not_found_again(place: Place) -> None:
    place.restore()
    found = place.earlier()
    assert isinstance(found, RestoreRecord)
    assert found.key is not None
    place.attempt().report(found.key)
    assert place.earlier() is None
    place.restore()
    again = place.earlier()
    assert isinstance(again, RestoreRecord)
    assert again.number == 2


def test_the_storage_is_not_needed_if_no_attempt_has_restored_there(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(self: Place) -> Files:
        raise StoreUnavailable("the folder", "read", "simulated")

    monkeypatch.setattr(Place, "storage", unreachable)
    assert place.earlier() is None
    place.attempt().go_to_storage()
    with pytest.raises(StoreUnavailable):
        place.earlier()


def test_a_request_to_the_driver_is_found_until_it_is_reported(place: Place) -> None:
    attempts = place.attempt()
    asked = place.client.submit(kit.JOB, Restore(ref=place.savepoint), key=f"{attempts.key()}#1")
    found = place.earlier()
    assert isinstance(found, CommandRecord)
    assert found.id == asked.id
    attempts.report(asked.id)
    assert place.earlier() is None
