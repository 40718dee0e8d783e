"""The contract of `Files` through Spark's own file systems, on the one scheme that every machine has."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coord_control.durable.epochs.epoch_store import EpochStore
from coord_control.durable.files.filesystem import Files, LocalFiles, join
from coord_control.errors import NoAtomicCreate, StoreUnavailable
from coord_control.exit_codes import ExitCode, exit_code_of
from coord_control.ids import Epoch, Generation, OperatorUid, SubtaskIndex
from coord_control.protocol.records import Ack, Record
from coord_control.spark.hadoop_files import HadoopFiles, files_for
from tests.files_contract import FilesContract

pytestmark = pytest.mark.spark


@pytest.fixture
def files(default_session: SparkSession) -> Files:
    return HadoopFiles(default_session)


@pytest.fixture
def root(tmp_path: Path) -> str:
    return f"file://{tmp_path}/a job"


class TestHadoopFiles(FilesContract):
    def test_files_of_one_implementation_are_files_of_the_other(self, files: Files, root: str) -> None:
        files.create(join(root, "a"), b"1")
        LocalFiles().create(join(root, "b"), b"2")
        assert LocalFiles().read(join(root, "a")) == b"1"
        assert files.read(join(root, "b")) == b"2"
        assert files.list(root) == LocalFiles().list(root) == ["a", "b"]

    def test_large_content_survives_the_way_through_the_jvm(self, files: Files, root: str) -> None:
        content = bytes(range(256)) * 4096
        files.create(join(root, "large"), content)
        assert files.read(join(root, "large")) == content

    def test_it_can_be_used_from_several_threads(self, files: Files, root: str) -> None:
        def write(number: int) -> None:
            for count in range(5):
                path = join(root, str(number), str(count))
                files.create(path, path.encode())
                assert files.read(path) == path.encode()

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [len(files.list(join(root, str(number)))) for number in range(4)] == [5] * 4

    def test_an_error_of_the_storage_names_the_path(self, files: Files, root: str, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(StoreUnavailable, match=r"cannot create .*/file/below: .*Not a directory"):
            files.create(f"file://{tmp_path}/file/below", b"x")

    def test_a_scheme_that_spark_does_not_know_is_an_error_of_the_storage(self, files: Files) -> None:
        with pytest.raises(StoreUnavailable, match=r"cannot read nosuch://host/a: .*nosuch"):
            files.read("nosuch://host/a")

    def test_a_file_system_that_excludes_no_other_writer_is_refused(self, files: HadoopFiles) -> None:
        path = "http://127.0.0.1:1/jobs/flights"
        why = r"http:// \(org.apache.hadoop.fs.http.HttpFileSystem\)"
        with pytest.raises(NoAtomicCreate, match=why) as caught:
            files.require_atomic_create(path)
        assert exit_code_of(caught.value) == ExitCode.CONFIG
        with pytest.raises(NoAtomicCreate, match=why):
            files.create(path, b"x")

    def test_the_epoch_store_works_on_it(self, files: Files, root: str) -> None:
        records: list[Record] = [Ack(OperatorUid("a"), SubtaskIndex(0), Epoch(n), n, b"s") for n in range(8)]
        first = EpochStore(files, root, Generation(1), 100, max_segments=3)
        first.open()
        for record in records:
            first.append([record])
        second = EpochStore(files, root, Generation(2), 100)
        assert second.open() == second.read() == records
        assert files.list(root) == ["2"]


class TestFilesFor:
    @pytest.mark.parametrize("root", ["/data/jobs", "file:/data/jobs", "file:///data/jobs"])
    def test_the_local_disk_is_used_directly(self, spark: SparkSession, root: str) -> None:
        assert isinstance(files_for(root, spark), LocalFiles)

    @pytest.mark.parametrize("root", ["hdfs://host/jobs", "s3a://bucket/jobs", "jobs"])
    def test_everything_else_goes_through_spark(self, spark: SparkSession, root: str) -> None:
        assert isinstance(files_for(root, spark), HadoopFiles)

    def test_a_path_is_not_local_when_the_default_file_system_is_not(self, own_session: SparkSession) -> None:
        own_session.conf.set("fs.defaultFS", "hdfs://host:8020")
        assert isinstance(files_for("/data/jobs", own_session), HadoopFiles)
