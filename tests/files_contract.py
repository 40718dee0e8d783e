"""The contract of `Files`, as one suite that the test class of each implementation inherits."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from coord_control.durable.files.filesystem import Checksum, Files, join
from coord_control.errors import AlreadyExists
from tests.patience import SECONDS


def race(files: Files, root: str, *, rounds: int, writers: int) -> list[int]:
    """Let several writers create each file at the same moment, and return how many succeeded in each round.

    The file holds the content of one that succeeded.
    """
    found = []
    with ThreadPoolExecutor(writers) as threads:
        for number in range(rounds):
            path, start = join(root, f"race-{number}"), threading.Barrier(writers)
            attempts = [threads.submit(_creates, files, path, bytes([each]), start) for each in range(writers)]
            won = [bytes([each]) for each in range(writers) if attempts[each].result()]
            assert files.read(path) in won
            found.append(len(won))
    return found


def _creates(files: Files, path: str, content: bytes, start: threading.Barrier) -> bool:
    start.wait(SECONDS)
    try:
        files.create(path, content)
    except AlreadyExists:
        return False
    return True


class FilesContract:
    """Needs the fixtures `files` and `root`: a folder of the storage that does not exist yet."""

    def test_a_created_file_can_be_read(self, files: Files, root: str) -> None:
        path = join(root, "a", "b", "c.log")
        content = bytes(range(256)) * 5
        files.create(path, content)
        assert files.read(path) == content
        assert files.exists(path)

    def test_an_empty_file_is_a_file(self, files: Files, root: str) -> None:
        files.create(join(root, "empty"), b"")
        assert files.read(join(root, "empty")) == b""

    def test_create_refuses_an_existing_file_and_leaves_it_alone(self, files: Files, root: str) -> None:
        path = join(root, "claim")
        files.create(path, b"first")
        with pytest.raises(AlreadyExists) as caught:
            files.create(path, b"second")
        assert caught.value.path == path
        assert files.read(path) == b"first"
        assert files.list(root) == ["claim"]

    def test_of_several_writers_at_once_exactly_one_creates(self, files: Files, root: str) -> None:
        assert race(files, root, rounds=10, writers=4) == [1] * 10

    def test_a_missing_file_cannot_be_read(self, files: Files, root: str) -> None:
        with pytest.raises(FileNotFoundError, match="absent"):
            files.read(join(root, "absent"))
        assert not files.exists(join(root, "absent"))

    def test_replace_writes_a_new_file_and_over_an_old_one(self, files: Files, root: str) -> None:
        path = join(root, "folder", "status")
        files.replace(path, b"long first content")
        assert files.read(path) == b"long first content"
        files.replace(path, b"second")
        assert files.read(path) == b"second"
        assert files.list(join(root, "folder")) == ["status"]

    def test_list_gives_files_and_folders_in_order(self, files: Files, root: str) -> None:
        for name in ("b", "a/deep/file", "c", "10", "9"):
            files.create(join(root, name), b"x")
        assert files.list(root) == ["10", "9", "a", "b", "c"]
        assert files.list(join(root, "a")) == ["deep"]

    def test_a_missing_folder_lists_nothing(self, files: Files, root: str) -> None:
        assert files.list(join(root, "absent")) == []

    def test_made_folders_exist_and_are_empty(self, files: Files, root: str) -> None:
        path = join(root, "x", "y")
        files.make_dirs(path)
        files.make_dirs(path)
        assert files.exists(path)
        assert files.list(path) == []
        assert files.list(root) == ["x"]

    def test_delete_removes_a_file_or_a_whole_folder_and_forgives_absence(self, files: Files, root: str) -> None:
        for name in ("keep", "folder/one", "folder/below/two", "folder-like"):
            files.create(join(root, name), b"x")
        files.delete(join(root, "folder"))
        files.delete(join(root, "keep"))
        files.delete(join(root, "keep"))
        files.delete(join(root, "never"))
        assert files.list(root) == ["folder-like"]
        assert not files.exists(join(root, "folder"))
        assert files.list(join(root, "folder")) == []

    def test_a_deleted_name_can_be_created_again(self, files: Files, root: str) -> None:
        files.create(join(root, "again"), b"1")
        files.delete(join(root, "again"))
        files.create(join(root, "again"), b"2")
        assert files.read(join(root, "again")) == b"2"

    def test_a_walk_finds_all_files_below_with_sizes_and_skips_hidden_ones(self, files: Files, root: str) -> None:
        for name in ("a", "b/one", "b/deep/two.log", "b/deep/.hidden", ".git/x"):
            files.create(join(root, name), b"12345")
        files.make_dirs(join(root, "empty"))
        assert sorted((found.path, found.size) for found in files.walk(root)) == [
            ("a", 5),
            ("b/deep/two.log", 5),
            ("b/one", 5),
        ]
        assert sorted(found.path for found in files.walk(join(root, "b"))) == ["deep/two.log", "one"]

    def test_a_listing_tells_names_and_then_what_is_asked_for_in_its_order(self, files: Files, root: str) -> None:
        for name, data in (("a", b"1"), ("b/c", b"22"), ("b/.hidden", b"x"), ("d", b"333")):
            files.create(join(root, name), data)
        listing = files.listing(root)
        assert sorted(listing.names) == ["a", "b/c", "d"]
        assert [(found.path, found.size) for found in listing.infos(["d", "b/c"])] == [("d", 3), ("b/c", 2)]
        assert sorted(listing.infos(["a", "b/c", "d"])) == sorted(files.walk(root))

    def test_a_file_that_has_gone_since_it_was_listed_is_missing_or_known_as_it_was(
        self, files: Files, root: str
    ) -> None:
        files.create(join(root, "a"), b"1")
        files.create(join(root, "b/c"), b"22")
        listing = files.listing(root)
        files.delete(join(root, "b/c"))
        try:
            told: object = [found.size for found in listing.infos(["a", "b/c"])]
        except FileNotFoundError as error:
            told = error.filename
        assert told in ([1, 2], join(root, "b/c"))

    def test_a_walk_of_a_missing_folder_finds_nothing(self, files: Files, root: str) -> None:
        assert list(files.walk(join(root, "absent"))) == []

    def test_a_file_that_was_left_alone_keeps_its_modification_tag(self, files: Files, root: str) -> None:
        files.create(join(root, "a"), b"1")
        before = files.walk(root)
        files.create(join(root, "other/b"), b"1")
        assert before == [found for found in files.walk(root) if found.path == "a"]

    def test_a_file_is_written_and_read_in_pieces(self, files: Files, root: str) -> None:
        pieces = [bytes([number]) * 700_000 for number in range(4)]
        path = join(root, "folder", "large")
        files.write_chunks(path, iter(pieces))
        assert b"".join(files.chunks(path)) == files.read(path) == b"".join(pieces)
        files.write_chunks(path, iter([b"replaced"]))
        assert list(files.chunks(path)) == [b"replaced"]
        assert files.list(join(root, "folder")) == ["large"]

    def test_an_error_of_the_pieces_passes_and_leaves_nothing(self, files: Files, root: str) -> None:
        def pieces() -> Iterator[bytes]:
            yield b"first"
            raise FileNotFoundError("the source of the pieces")

        files.create(join(root, "other"), b"")
        with pytest.raises(FileNotFoundError, match="the source of the pieces"):
            files.write_chunks(join(root, "large"), pieces())
        assert files.list(root) == ["other"]

    def test_a_missing_file_has_no_pieces(self, files: Files, root: str) -> None:
        with pytest.raises(FileNotFoundError, match="absent"):
            list(files.chunks(join(root, "absent")))

    def test_a_linked_file_survives_its_source(self, files: Files, root: str) -> None:
        files.create(join(root, "spark/a"), b"content")
        files.link(join(root, "spark/a"), join(root, "pinned/deep/a"))
        files.delete(join(root, "spark/a"))
        assert files.read(join(root, "pinned/deep/a")) == b"content"
        assert not files.exists(join(root, "spark/a"))

    def test_a_linked_file_keeps_its_content_when_the_source_is_replaced(self, files: Files, root: str) -> None:
        files.create(join(root, "spark/a"), b"content")
        files.link(join(root, "spark/a"), join(root, "pinned/a"))
        files.delete(join(root, "spark/a"))
        files.create(join(root, "spark/a"), b"another")
        assert files.read(join(root, "pinned/a")) == b"content"

    def test_linking_again_replaces_what_is_there(self, files: Files, root: str) -> None:
        files.create(join(root, "spark/a"), b"new")
        files.create(join(root, "pinned/a"), b"left by an earlier attempt")
        for _ in range(2):
            files.link(join(root, "spark/a"), join(root, "pinned/a"))
            assert files.read(join(root, "pinned/a")) == b"new"
        assert files.read(join(root, "spark/a")) == b"new"
        assert files.list(join(root, "pinned")) == ["a"]

    def test_many_files_are_linked_under_names_of_their_own(self, files: Files, root: str) -> None:
        names = [(f"state/0/{number % 3}/{number}.delta", f"{number % 2}/x{number}") for number in range(20)]
        for number, (name, _) in enumerate(names):
            files.create(join(root, "spark", name), b"x" * number)
        infos = {found.path: found for found in files.walk(join(root, "spark"))}
        linked = files.link_all(join(root, "spark"), join(root, "pinned"), names)
        assert [(one.size, one.modified) for one in linked] == [
            (infos[name].size, infos[name].modified) for name, _ in names
        ]
        assert {found.path: found.size for found in files.walk(join(root, "pinned"))} == {
            name: number for number, (_, name) in enumerate(names)
        }

    def test_linking_nothing_is_fine(self, files: Files, root: str) -> None:
        assert list(files.link_all(join(root, "absent"), join(root, "pinned"), [])) == []

    @pytest.mark.parametrize("missing", ["spark/0/absent", "spark/absent/0"])
    def test_a_missing_source_is_named(self, files: Files, root: str, missing: str) -> None:
        for name in ("0/a", "0/b"):
            files.create(join(root, "spark", name), b"x")
        names = [(name, name) for name in ("0/a", missing.removeprefix("spark/"), "0/b")]
        with pytest.raises(FileNotFoundError) as caught:
            files.link_all(join(root, "spark"), join(root, "pinned"), names)
        assert caught.value.filename == join(root, missing)

    def test_checksums_of_many_files_come_in_order(self, files: Files, root: str) -> None:
        large = bytes(range(256)) * 10_000
        contents = {"a/1": b"one", "a/2": b"", "large": large, "exact": bytes(1 << 20)}
        for name, content in contents.items():
            files.create(join(root, name), content)
        expected = [Checksum(len(content), f"{zlib.crc32(content):08x}") for content in contents.values()]
        assert files.checksum_all(root, [*contents, "a/absent", "absent/x"]) == [*expected, None, None]

    def test_many_files_are_deleted_and_the_others_stay(self, files: Files, root: str) -> None:
        names = [f"{number % 4}/deep/{number}" for number in range(20)]
        for name in (*names, "0/keep", "top"):
            files.create(join(root, name), b"x")
        files.delete_all(root, [*names, "top", "0/absent", "absent/x"])
        assert [found.path for found in files.walk(root)] == ["0/keep"]
        files.create(join(root, names[0]), b"again")
        assert files.read(join(root, names[0])) == b"again"

    def test_deleting_many_never_removes_a_folder_with_something_in_it(self, files: Files, root: str) -> None:
        files.create(join(root, "folder/_claim"), b"x")
        files.create(join(root, "folder/.hidden"), b"of somebody")
        files.delete_all(root, ["folder/_claim"])
        assert files.read(join(root, "folder/.hidden")) == b"of somebody"
