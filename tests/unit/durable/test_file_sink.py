"""Setting back the log of a file sink: exactly what the checkpoint holds, whenever the driver dies."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from coord_control.durable.checkpoints.metadata_file import FileEntry
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.restore.file_sink import newest_epoch, set_back_file_sink
from coord_control.errors import MissingRecord
from tests.simulation.memory_files import Crash, CrashAt, MemoryFiles

OUT = "/out"
LOG = f"{OUT}/_spark_metadata"
KEPT = "/job/lineage"

#: What a checkpoint holds, and logs that are to become that.
WANTED = {"2.compact": b"0 1 2", "5.compact": b"0 1 2 3 4 5", "6": b"6", "7": b"7"}
LOGS: dict[str, dict[str, bytes]] = {
    "it is there": WANTED,
    "it went on": {**WANTED, "8.compact": b"0 to 8", "9": b"9", "10": b"10"},
    "what it needs is gone": {"8.compact": b"0 to 8", "9": b"9", "11.compact": b"0 to 11"},
    "it was set back before": {"2.compact": b"0 1 2", "3": b"3", "4": b"4"},
    "it has another history": {**WANTED, "6": b"other", "7": b"7!", "8.compact": b"other 8", "3": b"3"},
    "it is empty": {},
}


def _put(files: MemoryFiles, folder: str, contents: dict[str, bytes]) -> list[FileEntry]:
    for name, data in contents.items():
        files.replace(f"{folder}/{name}", data)
    return [FileEntry(f"_sink/{name}", len(data), f"{zlib.crc32(data):08x}") for name, data in contents.items()]


def owned() -> None:
    """No newer driver owns the job."""


def _log(files: MemoryFiles) -> dict[str, bytes]:
    return {name: files.read(f"{LOG}/{name}") for name in files.list(LOG)}


@pytest.mark.parametrize("wanted", [WANTED, {}], ids=["some epochs", "no epoch"])
@pytest.mark.parametrize("before", LOGS)
def test_a_log_is_set_back_whenever_the_driver_dies(before: str, wanted: dict[str, bytes]) -> None:
    point = 0
    while True:
        point += 1
        files = MemoryFiles()
        _put(files, LOG, LOGS[before])
        entries = _put(files, f"{KEPT}/_sink", wanted)
        dying = files.seen_by(CrashAt(point))
        try:
            set_back_file_sink(dying, OUT, dying, KEPT, entries, owned)
        except Crash:
            pass
        else:
            break
        set_back_file_sink(files, OUT, files, KEPT, entries, owned)
        assert _log(files) == wanted
    assert _log(files) == wanted
    assert point > 1 or LOGS[before] == wanted


def test_what_is_no_entry_stays() -> None:
    files = MemoryFiles()
    _put(files, LOG, {"9": b"9", "note.txt": b"mine"})
    set_back_file_sink(files, OUT, files, KEPT, [], owned)
    assert _log(files) == {"note.txt": b"mine"}


def test_readers_meet_a_log_that_is_whole_as_long_as_spark_has_removed_nothing() -> None:
    """Each state on the way has, behind its newest compacted entry, all entries up to the newest one."""
    point = 0
    done = False
    while not done:
        point += 1
        files = MemoryFiles()
        later = {**WANTED, "8.compact": b"0 to 8", "9": b"9", "10": b"10"}
        _put(files, LOG, later)
        entries = _put(files, f"{KEPT}/_sink", WANTED)
        dying = files.seen_by(CrashAt(point))
        try:
            set_back_file_sink(dying, OUT, dying, KEPT, entries, owned)
            done = True
        except Crash:
            pass
        found = sorted(int(name.partition(".")[0]) for name in files.list(LOG))
        compacted = max(int(name.partition(".")[0]) for name in files.list(LOG) if name.endswith(".compact"))
        assert found[found.index(compacted) :] == list(range(compacted, found[-1] + 1))


def test_a_sink_on_another_storage_gets_copies_and_no_stale_checksum(tmp_path: Path) -> None:
    kept, out = MemoryFiles(), LocalFiles()
    entries = _put(kept, f"{KEPT}/_sink", WANTED)
    log = tmp_path / "out" / "_spark_metadata"
    log.mkdir(parents=True)
    for name in ("7", ".7.crc", "8.compact", ".8.compact.crc"):
        (log / name).write_bytes(b"old")
    set_back_file_sink(out, str(tmp_path / "out"), kept, KEPT, entries, owned)
    assert {path.name: path.read_bytes() for path in log.iterdir()} == WANTED
    assert newest_epoch(out, str(tmp_path / "out")) == 7


class _Dying(LocalFiles):
    """Dies when it has removed a file."""

    def delete(self, path: str) -> None:
        was_there = self.exists(path)
        super().delete(path)
        if was_there:
            raise Crash(path)


def test_no_checksum_outlives_its_entry_whenever_the_driver_dies(tmp_path: Path) -> None:
    """Fault: the checksum of an entry that was removed stayed, and Spark could not read its next entry of that name."""
    kept = MemoryFiles()
    entries = _put(kept, f"{KEPT}/_sink", WANTED)
    log = tmp_path / "out" / "_spark_metadata"
    log.mkdir(parents=True)
    for name in (*WANTED, "8.compact", ".8.compact.crc", "9", ".9.crc"):
        (log / name).write_bytes(WANTED.get(name, b"old"))
    deaths = 0
    while True:
        try:
            set_back_file_sink(_Dying(), str(tmp_path / "out"), kept, KEPT, entries, owned)
            break
        except Crash:
            deaths += 1
    assert {path.name: path.read_bytes() for path in log.iterdir()} == WANTED
    assert deaths == 4


class _Asked:
    """Notices a change before which the claim was not verified."""

    def __init__(self) -> None:
        self.is_fresh = False
        self.changes = 0

    def verify(self) -> None:
        self.is_fresh = True

    def before_write(self, path: str) -> None:
        assert self.is_fresh, path
        self.is_fresh = False
        self.changes += 1

    def after_write(self, path: str) -> None: ...


@pytest.mark.parametrize("before", [name for name, log in LOGS.items() if log != WANTED])
def test_the_claim_is_verified_before_each_change(before: str) -> None:
    """Fault: a driver that was fenced removed entries of its successor, by the names that it had listed."""
    files, asked = MemoryFiles(), _Asked()
    _put(files, LOG, LOGS[before])
    entries = _put(files, f"{KEPT}/_sink", WANTED)
    watched = files.seen_by(asked)
    set_back_file_sink(watched, OUT, watched, KEPT, entries, asked.verify)
    assert _log(files) == WANTED
    assert asked.changes


def test_a_log_that_was_not_kept_is_an_error() -> None:
    files = MemoryFiles()
    with pytest.raises(MissingRecord, match="/job/lineage/_sink/3"):
        set_back_file_sink(files, OUT, files, KEPT, [FileEntry("_sink/3", 1, "00000000")], owned)


def test_a_folder_without_a_log_has_no_newest_epoch() -> None:
    files = MemoryFiles()
    assert newest_epoch(files, OUT) is None
    files.replace(f"{LOG}/12", b"")
    assert newest_epoch(files, OUT) == 12
    files.delete(f"{LOG}/12")
