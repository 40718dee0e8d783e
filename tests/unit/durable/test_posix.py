from __future__ import annotations

import errno
import os
import threading
import tracemalloc
from pathlib import Path

import pytest

from coord_control.durable.files import posix
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.files.posix import Linked
from coord_control.errors import StoreUnavailable


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "spark"
    for number in range(40):
        path = folder / "state" / str(number % 4) / f"{number}.delta"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * number)
    return folder


def names_of(folder: Path) -> list[str]:
    return sorted(found.path for found in posix.walk(str(folder)))


def same(names: list[str]) -> list[tuple[str, str]]:
    return [(name, name) for name in names]


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)


def test_a_link_is_the_same_file_and_takes_no_space(source: Path, tmp_path: Path) -> None:
    names = names_of(source)
    linked = posix.link_all(str(source), str(tmp_path / "pinned"), same(names))
    assert all(one.is_linked for one in linked)
    assert all((source / name).samefile(tmp_path / "pinned" / name) for name in names)


@pytest.mark.usefixtures("no_links")
def test_without_links_files_are_copied_and_synced(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    names = names_of(source)
    linked = posix.link_all(str(source), str(tmp_path / "pinned"), same(names))
    infos = {found.path: found for found in posix.walk(str(source))}
    checksums = [checksum for checksum in posix.checksum_all(str(source), names) if checksum is not None]
    assert linked == [
        Linked(infos[name].size, infos[name].modified, False, checksum.crc32)
        for name, checksum in zip(names, checksums, strict=True)
    ]
    assert len([path for path in synced if path.endswith(".tmp")]) == len(names)
    assert names_of(tmp_path / "pinned") == names
    assert all((tmp_path / "pinned" / name).read_bytes() == (source / name).read_bytes() for name in names)


@pytest.mark.usefixtures("no_links")
def test_the_checksum_of_a_copy_is_left_out_where_it_is_known(source: Path, tmp_path: Path) -> None:
    known, *others = names_of(source)
    linked = posix.link_all(str(source), str(tmp_path / "pinned"), same([known, *others]), {known})
    assert linked[0].crc32 is None
    assert linked[0].size == (source / known).stat().st_size
    assert all(one.crc32 for one in linked[1:])
    assert (tmp_path / "pinned" / known).read_bytes() == (source / known).read_bytes()


def test_every_folder_with_new_names_is_synced_after_them(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, int] = {}
    fsync = os.fsync

    def record(descriptor: int) -> None:
        folder = os.readlink(f"/proc/self/fd/{descriptor}")
        seen[folder] = len(os.listdir(folder))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    pinned = tmp_path / "pinned"
    posix.link_all(str(source), str(pinned), same(names_of(source)))
    leaves = {str(pinned / "state" / str(number)): 10 for number in range(4)}
    assert leaves.items() <= seen.items()
    assert seen[str(pinned / "state")] == 4


@pytest.mark.parametrize("count", [1, 40])
def test_a_full_disk_is_told_and_no_half_file_stays(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_links: None, count: int
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "pinned" / "state").mkdir(parents=True)
    for number in range(4):
        (tmp_path / "pinned" / "state" / str(number)).mkdir()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreUnavailable, match="No space left on device"):
        LocalFiles().link_all(str(source), str(tmp_path / "pinned"), same(names_of(source)[:count]))
    left = [name for _, _, files in os.walk(tmp_path / "pinned") for name in files]
    assert not left


def test_a_symbolic_link_is_followed(source: Path, tmp_path: Path) -> None:
    (source / "by-another-name").symlink_to(source / "state" / "1" / "1.delta")
    posix.link_all(str(source), str(tmp_path / "pinned"), [("by-another-name", "a")] * 2)
    assert not (tmp_path / "pinned" / "a").is_symlink()
    assert (tmp_path / "pinned" / "a").samefile(source / "state" / "1" / "1.delta")


def test_a_dangling_symbolic_link_is_not_listed(source: Path) -> None:
    before = names_of(source)
    (source / "dangling").symlink_to(source / "nowhere")
    assert names_of(source) == before


def test_deleting_removes_emptied_folders_but_not_the_root(source: Path) -> None:
    (source / "state" / "1" / "other").write_bytes(b"")
    posix.delete_all(str(source), [name for name in names_of(source) if not name.endswith("other")])
    assert [path.relative_to(source).as_posix() for path in sorted(source.rglob("*"))] == [
        "state",
        "state/1",
        "state/1/other",
    ]
    posix.delete_all(str(source), ["state/1/other"])
    assert source.is_dir()
    assert list(source.iterdir()) == []


def test_memory_does_not_grow_with_the_size_of_a_file(tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(64 << 20)
    tracemalloc.start()
    try:
        posix.checksum_all(str(tmp_path), ["large"])
        for _ in posix.chunks(str(tmp_path / "large")):
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * posix.CHUNK_BYTES


def test_no_thread_is_left(source: Path, tmp_path: Path) -> None:
    before = threading.active_count()
    posix.link_all(str(source), str(tmp_path / "pinned"), same(names_of(source)))
    with pytest.raises(FileNotFoundError):
        posix.link_all(str(source), str(tmp_path / "pinned"), [*same(names_of(source)), ("absent", "x")])
    assert threading.active_count() == before
