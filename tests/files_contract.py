"""The contract of `Files`, as one suite that the test class of each implementation inherits."""

from __future__ import annotations

import pytest

from coord_control.durable.files import Files, join
from coord_control.errors import AlreadyExists


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
