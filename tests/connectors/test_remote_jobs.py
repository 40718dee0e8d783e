"""The life of a job whose root is on S3 or HDFS: savepoint, restore and fork; then commands without a JVM, on S3."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from coord_control.durable.checkpoints.checkpoint_folder import read_metadata
from coord_control.durable.checkpoints.verification import verify_files
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.files.objects import ObjectFiles
from coord_control.durable.offline.offline_restore import restore_job
from coord_control.durable.restore.request import RestoreRequest
from coord_control.spark.hadoop_files import HadoopFiles
from tests.files_contract import FilesContract, race
from tests.patience import SECONDS
from tests.s3_kit import S3Server
from tests.spark.conftest import MakeStream
from tests.spark.jobs import SCHEMA, Dialogue, MakeJob, apply, drain, rows, talk
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark

Results = dict[int, list[tuple[Any, ...]]]


class Place(NamedTuple):
    """Where the jobs of a test are."""

    root: str
    exports: str  #: on S3 in another bucket
    session: SparkSession
    files: Files


# On HDFS test_hdfs.py goes back and forth in every run, with commands; how files are forked is the same there.
@pytest.fixture(params=["s3a", pytest.param("hdfs", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "s3a":
        s3, session = request.getfixturevalue("s3"), request.getfixturevalue("s3_session")
        root, exports = f"s3a://{s3.bucket}/{tmp_path.name}", f"s3a://{s3.other_bucket}/{tmp_path.name}"
    else:
        session = request.getfixturevalue("default_session")
        root = exports = f"{request.getfixturevalue('hdfs').address}/{tmp_path.name}"
    return Place(join(root, "jobs"), join(exports, "exports"), session, HadoopFiles(session))


@pytest.fixture
def source(file_stream: MakeStream, place: Place) -> FileStream:
    return file_stream(SCHEMA, session=place.session)


def run(make_job: MakeJob, place: Place, source: FileStream, *savepoints: str | None, **options: Any) -> Results:
    """Run an operator and an aggregation over all that is there, take savepoints, and end the job."""
    results: Results = {}

    def collect(batch: DataFrame, epoch: int) -> None:
        results[epoch] = sorted(tuple(row) for row in batch.collect())

    coordinator = Dialogue()
    with make_job(session=place.session, root=place.root, **options) as job:
        frame = apply(talk(job, coordinator), source.read()).groupBy("key").agg(F.sum("value").alias("sum"))
        drain(job, frame.writeStream.outputMode("update").foreachBatch(collect))
        for target in savepoints:
            job.trigger_savepoint(target=target).wait(SECONDS)
    return results


def test_savepoints_are_restored_and_forked(make_job: MakeJob, place: Place, source: FileStream) -> None:
    target = join(place.exports, "first")
    source.add(rows(0))
    assert sorted(run(make_job, place, source, target, None)) == [0]
    source.add(rows(1))
    on = run(make_job, place, source)
    assert sorted(on) == [1]

    assert run(make_job, place, source, restore_from=target) == on
    metadata = read_metadata(place.files, target)
    assert metadata is not None
    assert not list(verify_files(place.files, target, metadata))

    fork = RestoreRequest(ref=target, as_name="copy")
    restore_job(place.files, lambda path: place.files, fork, root=place.root, job="job")
    assert run(make_job, place, source, name="copy") == on


class TestObjectsOnS3(FilesContract):
    """Without a JVM, on the same server."""

    @pytest.fixture
    def files(self, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Files:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        return ObjectFiles()

    @pytest.fixture
    def root(self, s3: S3Server, tmp_path: Path) -> str:
        return f"s3a://{s3.bucket}/{tmp_path.name}/a job"

    def test_of_many_writers_that_race_exactly_one_creates(self, files: Files, root: str) -> None:
        assert race(files, root, rounds=30, writers=8) == [1] * 30

    def test_files_of_one_implementation_are_files_of_the_other(
        self, files: Files, root: str, s3_session: SparkSession
    ) -> None:
        hadoop = HadoopFiles(s3_session)
        hadoop.make_dirs(join(root, "empty/folder"))
        hadoop.create(join(root, "a/.hidden"), b"x")
        for number in range(5):
            hadoop.create(join(root, f"a/{number}"), b"x" * number)
            files.create(join(root, f"b/{number}"), b"x" * number)
        for one, other in ((files, hadoop), (hadoop, files)):
            assert one.list(root) == other.list(root)
            assert one.list(join(root, "a")) == other.list(join(root, "a")) == ["0", "1", "2", "3", "4"]
            assert sorted(one.walk(root)) == sorted(other.walk(root))
            assert one.exists(join(root, "empty")) == other.exists(join(root, "empty"))

    def test_files_are_copied_within_the_store(self, files: Files, root: str, s3: S3Server) -> None:
        names = [(f"{number}", f"{number}") for number in range(20)]
        for name, _ in names:
            files.create(join(root, "spark", name), b"x" * 10_000)
        earlier = len(s3.requests())
        files.link_all(join(root, "spark"), join(root, "pinned"), names)
        assert s3.counted_since(earlier) == {"COPY": 20, "LIST": 1}

    def test_more_than_a_thousand_objects_are_listed_in_two_requests(
        self, files: Files, root: str, s3: S3Server
    ) -> None:
        files.create(join(root, "0"), b"x")
        files.link_all(root, root, [("0", f"{number % 7}/{number}") for number in range(1, 1001)])
        earlier = len(s3.requests())
        assert len(files.walk(root)) == 1001
        assert s3.counted_since(earlier) == {"LIST": 2}


@pytest.mark.slow
def test_a_hundred_thousand_objects_are_listed_without_a_request_for_each(
    s3: S3Server, s3_session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    root, without_jvm = f"s3a://{s3.bucket}/{tmp_path.name}", ObjectFiles()
    without_jvm.create(join(root, "0"), b"x")
    without_jvm.link_all(root, root, [("0", f"{number % 100}/{number}") for number in range(1, 100_000)])
    for files in (without_jvm, HadoopFiles(s3_session)):
        earlier = len(s3.requests())
        assert len(files.listing(root).names) == 100_000
        counted = s3.counted_since(earlier)
        assert counted.keys() == {"LIST"}
        assert counted["LIST"] <= 100 + 2


def test_commands_work_without_a_jvm(
    make_job: MakeJob, s3_session: SparkSession, s3: S3Server, file_stream: MakeStream, tmp_path: Path
) -> None:
    exports = f"s3a://{s3.other_bucket}/{tmp_path.name}"
    place = Place(f"s3a://{s3.bucket}/{tmp_path.name}", exports, s3_session, HadoopFiles(s3_session))

    def coordctl(*arguments: str) -> Any:
        # Spark would fail at once.
        environment = {**s3.environment, "JAVA_HOME": "/no/java", "PATH": "/no/java", "HOME": str(tmp_path)}
        command = [sys.executable, "-m", "coord_control.cli", *arguments, "--json"]
        done = subprocess.run(
            command, env={**environment, "COORD_CONTROL": "none"}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    check_commands(coordctl, make_job, place, file_stream(SCHEMA, session=s3_session))


def check_commands(coordctl: Callable[..., Any], make_job: MakeJob, place: Place, source: FileStream) -> str:
    """List, show, verify, take, export, restore and dispose savepoints of a job; returns the path of one that stays."""
    source.add(rows(0))
    run(make_job, place, source, None)
    at = ("--root", place.root)
    [taken] = [each for each in coordctl("savepoint", "list", "job", *at) if each["kind"] == "savepoint"]
    coordctl("savepoint", "show", taken["path"])
    coordctl("savepoint", "verify", "job", str(taken["checkpoint"]), *at)
    made = coordctl("savepoint", "create", "job", *at, "--target", join(place.exports, "offline"))
    coordctl("savepoint", "verify", made["path"])
    coordctl("savepoint", "export", made["path"], "q", join(place.exports, "plain"))
    coordctl("restore", "job", made["path"], *at)
    coordctl("savepoint", "dispose", "job", str(taken["checkpoint"]), *at, "--yes")
    assert place.files.list(taken["path"]) == []

    source.add(rows(1))
    assert sorted(run(make_job, place, source)) == [1]
    return str(made["path"])
