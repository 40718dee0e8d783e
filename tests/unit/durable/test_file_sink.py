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
            set_back_file_sink(dying, OUT, dying, KEPT, entries)
        except Crash:
            pass
        else:
            break
        set_back_file_sink(files, OUT, files, KEPT, entries)
        assert _log(files) == wanted
    assert _log(files) == wanted
    assert point > 1 or LOGS[before] == wanted


def test_what_is_no_entry_stays() -> None:
    files = MemoryFiles()
    _put(files, LOG, {"9": b"9", "note.txt": b"mine"})
    set_back_file_sink(files, OUT, files, KEPT, [])
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
            set_back_file_sink(dying, OUT, dying, KEPT, entries)
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
    set_back_file_sink(out, str(tmp_path / "out"), kept, KEPT, entries)
    assert {path.name: path.read_bytes() for path in log.iterdir()} == WANTED
    assert newest_epoch(out, str(tmp_path / "out")) == 7


def test_a_log_that_was_not_kept_is_an_error() -> None:
    files = MemoryFiles()
    with pytest.raises(MissingRecord, match="/job/lineage/_sink/3"):
        set_back_file_sink(files, OUT, files, KEPT, [FileEntry("_sink/3", 1, "00000000")])


def test_a_folder_without_a_log_has_no_newest_epoch() -> None:
    files = MemoryFiles()
    assert newest_epoch(files, OUT) is None
    files.replace(f"{LOG}/12", b"")
    assert newest_epoch(files, OUT) == 12
    files.delete(f"{LOG}/12")
