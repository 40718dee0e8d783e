"""S3A against a real S3 server: the contract of `Files`, creates that race, and what is done within the store."""

from __future__ import annotations

import urllib.parse
import urllib.request
import zlib
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coord_control.durable.files.filesystem import Checksum, Files, join
from coord_control.durable.files.objects import ObjectFiles
from coord_control.environment import Status, check_storage
from coord_control.errors import AlreadyExists, NoAtomicCreate
from coord_control.spark.hadoop_files import HadoopFiles, files_for
from tests.connectors.claiming import check_owners
from tests.files_contract import FilesContract, race
from tests.s3_kit import CuttingProxy, LossyProxy, S3Server

pytestmark = pytest.mark.spark


@pytest.fixture
def files(s3_session: SparkSession) -> HadoopFiles:
    return HadoopFiles(s3_session)


@pytest.fixture
def root(s3: S3Server, tmp_path: Path) -> str:
    return f"s3a://{s3.bucket}/{tmp_path.name}/a job"


class TestS3A(FilesContract):
    def test_a_create_sends_one_request(self, files: Files, root: str, s3: S3Server) -> None:
        files.create(join(root, "first"), b"x")
        earlier = len(s3.requests())
        files.create(join(root, "folder/second"), b"x")
        assert s3.counted_since(earlier) == {"PUT": 1}

    def test_a_replace_sends_one_request(self, files: Files, root: str, s3: S3Server) -> None:
        files.replace(join(root, "status"), b"x")
        earlier = len(s3.requests())
        files.replace(join(root, "status"), b"y")
        assert s3.counted_since(earlier) == {"PUT": 1}

    def test_a_file_is_read_as_it_is_now_in_one_request(self, files: Files, root: str, s3: S3Server) -> None:
        path = join(root, "claim")
        files.create(path, b"0")
        for number in range(1, 10):
            assert files.read(path) == str(number - 1).encode()
            # By another process, as it were.
            urllib.request.urlopen(
                urllib.request.Request(
                    f"{s3.endpoint}/{urllib.parse.quote(path.removeprefix('s3a://'))}",
                    str(number).encode(),
                    method="PUT",
                )
            ).close()
        earlier = len(s3.requests())
        assert files.read(path) == b"9"
        assert s3.counted_since(earlier) == {"GET": 1}

    def test_files_are_copied_within_the_store(self, files: Files, root: str, s3: S3Server) -> None:
        names = [f"{number % 3}/{number}" for number in range(30)]
        for name in names:
            files.create(join(root, "spark", name), b"x" * 10_000)
        earlier = len(s3.requests())
        files.link_all(join(root, "spark"), join(root, "pinned"), [(name, name) for name in names])
        counted = s3.counted_since(earlier)
        assert counted["COPY"] == 30
        assert counted.total() <= 30 + 10
        assert sum(request.received + request.sent for request in s3.requests()[earlier:]) < 30_000
        assert {(info.path, info.size) for info in files.walk(join(root, "pinned"))} == {
            (name, 10_000) for name in names
        }

    def test_what_was_listed_is_copied_without_another_list_if_it_is_the_same(
        self, files: Files, root: str, s3: S3Server
    ) -> None:
        for number in range(20):
            files.create(join(root, "spark", str(number)), b"x")
        infos = files.walk(join(root, "spark"))
        names = [(info.path, info.path) for info in infos]
        earlier = len(s3.requests())
        files.link_all(join(root, "spark"), join(root, "pinned"), names, (), infos)
        assert s3.counted_since(earlier) == {"COPY": 20}
        # Of the same size, and in the same second perhaps.
        files.replace(join(root, "spark/7"), b"y")
        with pytest.raises(FileNotFoundError) as caught:
            files.link_all(join(root, "spark"), join(root, "pinned"), names, (), infos)
        assert caught.value.filename == join(root, "spark/7")
        assert files.read(join(root, "pinned/7")) == b"x"

    def test_a_file_is_read_for_its_checksum_in_one_request(self, files: Files, root: str, s3: S3Server) -> None:
        for number in range(3):
            files.create(join(root, str(number)), b"x" * 100_000 * number)
        earlier = len(s3.requests())
        assert len(files.checksum_all(root, ["0", "1", "2"])) == 3
        assert s3.counted_since(earlier) == {"GET": 3}

    def test_checksums_that_the_store_keeps_come_with_the_copies(self, files: Files, s3: S3Server) -> None:
        root, contents = f"s3a://{s3.other_bucket}/summed", {"a": b"one", "b": b"", "c": b"x" * 100_000}
        for name, content in contents.items():
            files.create(join(root, "spark", name), content)
        linked = files.link_all(join(root, "spark"), join(root, "pinned"), [(name, name) for name in contents])
        assert [one.crc32 for one in linked] == [f"{zlib.crc32(content):08x}" for content in contents.values()]

    def test_many_files_are_listed_and_deleted_without_a_request_for_each(
        self, files: Files, root: str, s3: S3Server
    ) -> None:
        names = [f"{number % 7}/deep/{number}" for number in range(300)]
        for name in names:
            files.create(join(root, name), b"x")
        earlier = len(s3.requests())
        assert len(files.walk(root)) == 300
        assert s3.counted_since(earlier).total() <= 3
        earlier = len(s3.requests())
        files.delete_all(root, names)
        assert s3.counted_since(earlier).total() <= 4
        assert not files.walk(root)

    def test_files_go_to_another_bucket(self, files: Files, root: str, s3: S3Server) -> None:
        files.create(join(root, "a"), b"content")
        files.link(join(root, "a"), f"s3a://{s3.other_bucket}/a")
        assert files.read(f"s3a://{s3.other_bucket}/a") == b"content"


def test_of_writers_that_race_exactly_one_creates(files: Files, root: str) -> None:
    assert race(files, root, rounds=20, writers=4) == [1] * 20


@pytest.mark.parametrize("rounds", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_of_two_drivers_that_start_at_once_exactly_one_owns_the_job(files: Files, root: str, rounds: int) -> None:
    check_owners(files, root, rounds)


def test_the_doctor_approves_of_it(files: Files, root: str) -> None:
    check = check_storage(root, files)
    assert check.status is Status.OK, check.found
    assert files.list(root) == []


def test_a_bucket_without_conditional_writes_is_refused(s3_session: SparkSession) -> None:
    session = s3_session.newSession()
    session.conf.set("fs.s3a.create.conditional.enabled", "false")
    files = files_for("s3a://plain-bucket/jobs", session)
    assert isinstance(files, HadoopFiles)
    with pytest.raises(NoAtomicCreate, match=r"fs\.s3a\.create\.conditional\.enabled"):
        files.require_atomic_create("s3a://plain-bucket/jobs/flights")


def test_a_create_whose_answer_was_lost_has_succeeded(
    default_session: SparkSession, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = LossyProxy(s3)
    # No other test uses this bucket, so Hadoop has not connected to it yet.
    for name, value in s3.settings.items():
        default_session.conf.set(name, proxy.endpoint if name.endswith(f"{s3.third_bucket}.endpoint") else value)
    for name, value in {**s3.environment, "AWS_ENDPOINT_URL": proxy.endpoint}.items():
        monkeypatch.setenv(name, value)
    both: tuple[Files, Files] = (HadoopFiles(default_session), ObjectFiles())
    for number, files in enumerate(both):
        path = f"s3a://{s3.third_bucket}/{tmp_path.name}/{number}"
        files.create(path, b"content")
        assert len(proxy.lost) == number + 1
        with pytest.raises(AlreadyExists):
            files.create(path, b"content")
        assert files.read(path) == b"content"
    proxy.close()


def test_a_checksum_is_of_the_whole_content_when_the_connection_breaks(
    default_session: SparkSession, s3: S3Server, tmp_path: Path
) -> None:
    proxy = CuttingProxy(s3)
    # No other test uses this bucket, so Hadoop has not connected to it yet.
    for name, value in s3.settings.items():
        default_session.conf.set(name, proxy.endpoint if name.endswith(f"{s3.fourth_bucket}.endpoint") else value)
    files, root = HadoopFiles(default_session), f"s3a://{s3.fourth_bucket}/{tmp_path.name}"
    content = bytes(range(256)) * 20_000
    files.create(join(root, "large"), content)
    assert files.checksum_all(root, ["large"]) == [Checksum(len(content), f"{zlib.crc32(content):08x}")]
    assert len(proxy.lost) == 1
    proxy.close()
