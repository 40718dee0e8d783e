from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from coord_control.durable.files.filesystem import Files, LocalFiles, join
from coord_control.errors import AlreadyExists, StoreUnavailable
from tests.files_contract import FilesContract
from tests.simulation.memory_files import MemoryFiles


def winners_of_a_race(files: Files, path: str, racers: int) -> list[int]:
    barrier = threading.Barrier(racers)
    won: list[int] = []

    def race(number: int) -> None:
        barrier.wait()
        try:
            files.create(path, str(number).encode() * 1000)
        except AlreadyExists:
            return
        won.append(number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won


class RacingFilesContract(FilesContract):
    def test_of_several_creators_one_wins_and_its_content_stays(self, files: Files, root: str) -> None:
        for round_ in range(20):
            path = join(root, f"claim-{round_}")
            [winner] = winners_of_a_race(files, path, 4)
            assert files.read(path) == str(winner).encode() * 1000


class TestMemoryFiles(RacingFilesContract):
    @pytest.fixture
    def files(self) -> Files:
        return MemoryFiles()

    @pytest.fixture
    def root(self) -> str:
        return "/storage/job"


class TestLocalFiles(RacingFilesContract):
    @pytest.fixture
    def files(self) -> Files:
        return LocalFiles()

    @pytest.fixture(params=["{}", "file:{}", "file://{}"], ids=["path", "file:/", "file:///"])
    def root(self, request: pytest.FixtureRequest, tmp_path: Path) -> str:
        return str(request.param).format(tmp_path / "a job")


class TestLocalDurability:
    """What must be on the disk when a write returns, told by the system calls that were made."""

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        calls: list[str] = []

        def record(name: str, describe: Callable[..., str]) -> None:
            real = getattr(os, name)

            def recorded(*args: object, **kwargs: object) -> object:
                calls.append(f"{name} {describe(*args)}")
                return real(*args, **kwargs)

            monkeypatch.setattr(os, name, recorded)

        def kind(path: str) -> str:
            name = Path(path).name
            return "temporary" if name.endswith(".tmp") else name

        record("fsync", lambda descriptor: kind(os.readlink(f"/proc/self/fd/{descriptor}")))
        record("mkdir", kind)
        record("link", lambda source, target: f"{kind(source)} -> {kind(target)}")
        record("replace", lambda source, target: f"{kind(source)} -> {kind(target)}")
        return calls

    def test_create_syncs_the_content_before_the_name_and_the_name_after(
        self, tmp_path: Path, calls: list[str]
    ) -> None:
        LocalFiles().create(str(tmp_path / "file"), b"x")
        assert calls == ["fsync temporary", "link temporary -> file", f"fsync {tmp_path.name}"]

    def test_replace_syncs_the_content_before_the_name_and_the_name_after(
        self, tmp_path: Path, calls: list[str]
    ) -> None:
        LocalFiles().replace(str(tmp_path / "file"), b"x")
        assert calls == ["fsync temporary", "replace temporary -> file", f"fsync {tmp_path.name}"]

    def test_every_new_folder_is_synced_in_the_one_above_it(self, tmp_path: Path, calls: list[str]) -> None:
        LocalFiles().make_dirs(str(tmp_path / "a" / "b"))
        assert [call for call in calls if call.startswith("fsync")] == [f"fsync {tmp_path.name}", "fsync a"]

    def test_delete_is_durable(self, tmp_path: Path, calls: list[str]) -> None:
        (tmp_path / "file").write_text("x")
        LocalFiles().delete(str(tmp_path / "file"))
        assert calls == [f"fsync {tmp_path.name}"]


class TestLocalLeftovers:
    def test_temporary_files_are_never_listed(self, tmp_path: Path) -> None:
        (tmp_path / ".7.log.0123.tmp").write_bytes(b"half")
        assert LocalFiles().list(str(tmp_path)) == []

    def test_old_ones_are_removed_by_the_next_write_and_fresh_ones_stay(self, tmp_path: Path) -> None:
        old, fresh, foreign = tmp_path / ".a.1.tmp", tmp_path / ".b.2.tmp", tmp_path / ".profile"
        for path in (old, fresh, foreign):
            path.write_bytes(b"half")
        for path in (old, foreign):
            os.utime(path, (1, 1))
        LocalFiles().create(str(tmp_path / "file"), b"x")
        assert sorted(path.name for path in tmp_path.iterdir()) == [".b.2.tmp", ".profile", "file"]

    def test_a_refused_create_leaves_nothing(self, tmp_path: Path) -> None:
        files = LocalFiles()
        files.create(str(tmp_path / "file"), b"x")
        with pytest.raises(AlreadyExists):
            files.create(str(tmp_path / "file"), b"y")
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    def test_a_full_disk_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StoreUnavailable, match="No space left on device"):
            LocalFiles().create(str(tmp_path / "file"), b"x")
        assert list(tmp_path.iterdir()) == []

    def test_a_failed_replace_leaves_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "target" / "child").mkdir(parents=True)
        with pytest.raises(StoreUnavailable, match="cannot replace"):
            LocalFiles().replace(str(tmp_path / "target"), b"x")
        assert [path.name for path in tmp_path.iterdir()] == ["target"]


class TestLocalErrors:
    def test_an_error_of_the_disk_names_the_path_and_can_be_retried(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        path = str(tmp_path / "file" / "below")
        with pytest.raises(StoreUnavailable, match=r"cannot create .*file/below") as caught:
            LocalFiles().create(path, b"x")
        assert caught.value.retry
        assert caught.value.path == path

    def test_a_folder_cannot_be_read(self, tmp_path: Path) -> None:
        with pytest.raises(StoreUnavailable, match="cannot read"):
            LocalFiles().read(str(tmp_path))

    def test_nothing_exists_below_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        assert not LocalFiles().exists(str(tmp_path / "file" / "below"))

    @pytest.mark.parametrize("path", ["hdfs://host/a", "file://host/a", "file:a"])
    def test_paths_of_other_machines_are_refused(self, path: str) -> None:
        with pytest.raises(ValueError, match="not a path of this machine"):
            LocalFiles().exists(path)


@pytest.mark.parametrize(
    ("folder", "names", "expected"),
    [("/a/", ("b",), "/a/b"), ("/", ("b", "c"), "/b/c"), ("s3a://x/y", ("1.log",), "s3a://x/y/1.log")],
)
def test_join(folder: str, names: tuple[str, ...], expected: str) -> None:
    assert join(folder, *names) == expected
