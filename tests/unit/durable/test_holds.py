from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coord_control.durable.checkpoints.holds import HoldRecord, active_hold, hold
from coord_control.durable.files.filesystem import LocalFiles, join
from coord_control.durable.job_folder.holder import Holder
from coord_control.errors import DamagedRecord, StoreUnavailable
from tests.simulation.memory_files import MemoryFiles

PATH = "/savepoints/one"
NOW = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    files.create(join(PATH, "_metadata"), b"{}")
    return files


def test_it_holds_while_the_block_runs_and_leaves_nothing(files: MemoryFiles) -> None:
    before = files.paths()
    with hold(files, PATH, "it is being restored"):
        held = active_hold(files, PATH)
        assert held is not None
        assert str(os.getpid()) in str(held)
        assert str(held).startswith("it is being restored (process ")
    assert active_hold(files, PATH) is None
    assert files.paths() == before


def test_several_hold_independently(files: MemoryFiles) -> None:
    with hold(files, PATH):
        with hold(files, PATH):
            pass
        assert active_hold(files, PATH) is not None


def test_it_is_released_after_an_error(files: MemoryFiles) -> None:
    with pytest.raises(KeyError), hold(files, PATH):
        raise KeyError
    assert active_hold(files, PATH) is None


def test_it_expires(files: MemoryFiles) -> None:
    with hold(files, PATH, lease_seconds=10.0, clock=lambda: NOW):
        assert active_hold(files, PATH, lambda: NOW + datetime.timedelta(seconds=9)) is not None
        assert active_hold(files, PATH, lambda: NOW + datetime.timedelta(seconds=10)) is None


def test_one_of_a_process_that_has_died_does_not_count(files: MemoryFiles) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    record = HoldRecord(holder=Holder.of([process.pid]), purpose="p", expires_at=NOW + datetime.timedelta(days=1))
    files.create(join(PATH, "_holds/1"), record.model_dump_json().encode())
    assert active_hold(files, PATH, lambda: NOW) == record
    process.communicate(b"\n")
    assert active_hold(files, PATH, lambda: NOW) is None


def test_one_of_another_machine_counts_until_it_expires(files: MemoryFiles) -> None:
    holder = Holder(host="elsewhere", boot="b", namespace="n", processes=())
    record = HoldRecord(holder=holder, purpose="p", expires_at=NOW)
    files.create(join(PATH, "_holds/1"), record.model_dump_json().encode())
    assert active_hold(files, PATH, lambda: NOW - datetime.timedelta(seconds=1)) == record
    assert active_hold(files, PATH, lambda: NOW) is None


def test_one_that_cannot_be_read_counts_and_says_so(files: MemoryFiles) -> None:
    files.create(join(PATH, "_holds/1"), b"{")
    with pytest.raises(DamagedRecord, match="_holds/1"):
        active_hold(files, PATH)


def test_where_nothing_is_nothing_is_made(files: MemoryFiles) -> None:
    with hold(files, "/savepoints/absent"):
        pass
    assert not files.exists("/savepoints/absent")


def test_a_read_only_archive_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "_metadata").write_text("{}")

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "mkdir", refuse)
    with hold(LocalFiles(), str(tmp_path)):
        assert [path.name for path in tmp_path.iterdir()] == ["_metadata"]


def test_a_storage_that_fails_is_told(files: MemoryFiles) -> None:
    class Failing:
        def before_write(self, path: str) -> None:
            raise StoreUnavailable(path, "create", "no route to host")

        def after_write(self, path: str) -> None:
            pass

    with pytest.raises(StoreUnavailable), hold(files.seen_by(Failing()), PATH):
        raise AssertionError("nobody holds it")
