"""HDFS of a real cluster: the contract of `Files`, two drivers that start at once, and commands on a job's folder."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coord_control.durable.files.filesystem import join
from coord_control.environment import Status, check_storage
from coord_control.spark.hadoop_files import HadoopFiles
from tests.cli_kit import run_json
from tests.connectors.claiming import check_owners
from tests.connectors.test_remote_jobs import Place, check_commands
from tests.files_contract import FilesContract
from tests.hdfs_kit import HdfsCluster
from tests.spark.conftest import MakeStream
from tests.spark.jobs import SCHEMA, MakeJob

pytestmark = pytest.mark.spark


@pytest.fixture
def files(default_session: SparkSession) -> HadoopFiles:
    return HadoopFiles(default_session)


@pytest.fixture
def root(hdfs: HdfsCluster, tmp_path: Path) -> str:
    return f"{hdfs.address}/{tmp_path.name}/a job"


class TestHdfs(FilesContract):
    @pytest.mark.parametrize("rounds", [5, pytest.param(25, marks=pytest.mark.slow)])
    def test_of_two_drivers_that_start_at_once_one_owns_the_job(
        self, files: HadoopFiles, root: str, rounds: int
    ) -> None:
        check_owners(files, root, rounds)

    def test_of_two_writers_that_replace_a_file_at_once_none_fails(self, files: HadoopFiles, root: str) -> None:
        path = join(root, "status")
        files.replace(path, b"old")
        with ThreadPoolExecutor(2) as writers:
            for count in range(50):
                contents = (b"%d of one" % count, b"%d of the other" % count)
                for done in [writers.submit(files.replace, path, content) for content in contents]:
                    done.result()
                assert files.read(path) in contents

    def test_the_doctor_approves_of_it(self, files: HadoopFiles, root: str) -> None:
        files.require_atomic_create(root)
        check = check_storage(root, files)
        assert check.status is Status.OK, check.found


def test_commands_work_on_hdfs_through_spark(
    make_job: MakeJob,
    hdfs: HdfsCluster,
    default_session: SparkSession,
    file_stream: MakeStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A command would start another session, which writes files as this one does.
    monkeypatch.setattr("coord_control.spark.session.storage_session", lambda: default_session)
    root = f"{hdfs.address}/{tmp_path.name}"
    place = Place(join(root, "jobs"), join(root, "exports"), default_session, HadoopFiles(default_session))
    run_json(tmp_path, "db", "upgrade")

    made = check_commands(
        functools.partial(run_json, tmp_path), make_job, place, file_stream(SCHEMA, session=default_session)
    )
    run_json(tmp_path, "savepoint", "import", made)
    assert [each["path"] for each in run_json(tmp_path, "savepoint", "list")] == [made]
