"""The contract of `Files` on object stores, in obstore's own store in memory; tests/connectors has the real server."""

from __future__ import annotations

import functools
from unittest.mock import Mock

import pytest
from obstore.exceptions import GenericError
from obstore.store import MemoryStore, ObjectStore

from coord_control.durable.files import objects
from coord_control.durable.files.by_scheme import without_spark
from coord_control.durable.files.filesystem import Files, LocalFiles, join
from coord_control.durable.files.objects import ObjectFiles
from coord_control.errors import StoreUnavailable
from tests.files_contract import FilesContract


@functools.cache
def bucket(address: str) -> ObjectStore:
    return MemoryStore()


@pytest.fixture
def files() -> Files:
    bucket.cache_clear()
    return ObjectFiles(bucket)


@pytest.fixture
def root() -> str:
    return "s3a://bucket/jobs/a job"


class TestObjectFiles(FilesContract):
    def test_pieces_may_come_from_the_same_store(self, files: Files, root: str) -> None:
        files.create(join(root, "a"), b"content")
        files.write_chunks(join(root, "b"), files.chunks(join(root, "a")))
        assert files.read(join(root, "b")) == b"content"

    def test_files_are_copied_between_buckets(self, files: Files, root: str) -> None:
        other = "s3a://another/exports/one"
        for number in range(5):
            files.create(join(root, str(number)), bytes([number]) * number)
        linked = files.link_all(root, other, [(str(number), f"x/{number}") for number in range(5)])
        assert [(one.size, one.is_linked) for one in linked] == [(number, False) for number in range(5)]
        assert [files.read(join(other, "x", str(number))) for number in range(5)] == [
            bytes([number]) * number for number in range(5)
        ]

    @pytest.mark.parametrize(
        ("error", "reported"), [(FileNotFoundError(), FileNotFoundError), (GenericError("away"), StoreUnavailable)]
    )
    def test_an_error_in_a_copy_between_buckets_names_the_file(
        self, files: Files, root: str, error: Exception, reported: type[Exception], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Bug: errors of the store came as they were, which nothing tries again, and without the name of the file."""
        files.create(join(root, "a"), b"content")
        monkeypatch.setattr(objects, "_pieces", Mock(side_effect=error))
        with pytest.raises(reported, match=join(root, "a")):
            files.link(join(root, "a"), "s3a://another/exports/a")

    def test_an_address_that_no_store_has_is_an_error_of_the_storage(self) -> None:
        with pytest.raises(StoreUnavailable, match="cannot read nosuch://bucket/a"):
            ObjectFiles().read("nosuch://bucket/a")

    def test_a_path_of_one_machine_is_an_error_of_the_storage(self, files: Files) -> None:
        with pytest.raises(StoreUnavailable, match="this is a local path"):
            files.list("/data/jobs")


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AZURE_STORAGE_ENDPOINT", "GOOGLE_BASE_URL"])
def test_a_server_without_a_certificate_may_be_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for endpoint, is_allowed in (("http://127.0.0.1:1", True), ("https://127.0.0.1:1", False)):
        monkeypatch.setenv(name, endpoint)
        options: dict[str, object] = {}
        monkeypatch.setattr(
            objects, "from_url", lambda bucket, client_options, found=options: found.update(client_options)
        )
        ObjectFiles()._at("gs://bucket/a")
        assert options == {"allow_http": is_allowed}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/jobs", LocalFiles),
        ("file:///data/jobs", LocalFiles),
        ("s3://bucket/jobs", ObjectFiles),
        ("s3a://bucket/jobs", ObjectFiles),
        ("abfss://jobs@account.dfs.core.windows.net/a", ObjectFiles),
        ("gs://bucket/jobs", ObjectFiles),
        ("hdfs://name/jobs", type(None)),
    ],
)
def test_what_can_be_reached_without_spark(path: str, kind: type) -> None:
    assert type(without_spark(path)) is kind
    assert without_spark(path) is without_spark(path)
