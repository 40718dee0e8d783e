"""A job whose root is on another scheme than the local disk's: Hadoop's `viewfs`, a view of folders under new names.

It needs no server and is no simulation: paths, renames and refusals take the way that they take on a cluster, through
both of Spark's file managers, and only at the bottom is there a local folder.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession

from coord_control.durable.files.filesystem import Files, join
from coord_control.errors import StoreUnavailable
from coord_control.protocol.status import QueryStatus
from coord_control.spark.hadoop_files import HadoopFiles
from tests.files_contract import FilesContract
from tests.spark.conftest import MakeStream
from tests.spark.jobs import (
    SCHEMA,
    Dialogue,
    MakeJob,
    Memory,
    Number,
    Once,
    Report,
    Trouble,
    apply,
    drain,
    query_status,
    rows,
)
from tests.spark_session import FILE_MANAGER

pytestmark = pytest.mark.spark

_BY_FILE_SYSTEM = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """What the view shows."""
    disk = tmp_path / "disk"
    disk.mkdir()
    return disk


@pytest.fixture
def view(default_session: SparkSession, disk: Path) -> str:
    """A mount table of its own, because Hadoop keeps a file system by scheme and authority for the life of the JVM."""
    table = uuid.uuid4().hex
    default_session.conf.set(f"fs.viewfs.mounttable.{table}.link./mounted", f"file://{disk}")
    return f"viewfs://{table}/mounted"


@pytest.fixture
def files(own_session: SparkSession, view: str) -> Files:
    """Made when the view is there: it takes Hadoop's configuration once."""
    return HadoopFiles(own_session)


@pytest.fixture
def root(view: str) -> str:
    return join(view, "a job")


class TestFileContext(FilesContract):
    """The manager that Spark takes where it can."""

    def test_a_path_outside_of_the_view_is_an_error_of_the_storage(self, files: Files, view: str) -> None:
        elsewhere = view.replace("mounted", "elsewhere")
        with pytest.raises(StoreUnavailable, match=r"cannot create .*/elsewhere/file: .*Exception"):
            files.create(join(elsewhere, "file"), b"x")


class TestFileSystem(FilesContract):
    """The manager that Spark takes for file systems that know no better; it cannot rename over a file."""

    @pytest.fixture
    def files(self, own_session: SparkSession, view: str) -> Files:
        own_session.conf.set(FILE_MANAGER, _BY_FILE_SYSTEM)
        return HadoopFiles(own_session)

    def test_replace_writes_a_new_file_and_over_an_old_one(self, files: Files, root: str) -> None:
        path = join(root, "folder", "status")
        files.replace(path, b"first")
        files.replace(path, b"first")
        with pytest.raises(StoreUnavailable, match=r"cannot replace .*/status: .*checkpointFileManagerClass"):
            files.replace(path, b"second")
        assert files.read(path) == b"first"
        assert files.list(join(root, "folder")) == ["status"]


class Farewell(BaseModel):
    """An event that the second driver's operator may send as well."""


def test_a_whole_job_lives_on_it_and_goes_on_there(
    own_session: SparkSession, make_job: MakeJob, file_stream: MakeStream, view: str, disk: Path, once: Once
) -> None:
    source = file_stream(SCHEMA, session=own_session)
    output = join(view, "output")

    def keep(frame: DataFrame, epoch: int) -> None:
        frame.write.mode("overwrite").parquet(join(output, f"epoch={epoch}"))
        if epoch == 1 and once():
            raise Trouble("after the output, before the commit")

    def live(coordinator: Dialogue, up: list[type[BaseModel]]) -> QueryStatus:
        with make_job(session=own_session, root=join(view, "jobs")) as job:
            assert isinstance(job._driver.place.files, HadoopFiles)
            operator = job.operator("op", coordinator, parallelism=2, state=Memory, down=[Number], up=up)
            drain(job, apply(operator, source.read()).writeStream.foreachBatch(keep))
            return query_status(job)

    for epoch in range(3):
        source.add(rows(epoch))
    first = live(Dialogue(), [Report])
    assert first.restarts == 1
    for epoch in range(3, 5):
        source.add(rows(epoch))
    coordinator = Dialogue()
    second = live(coordinator, [Report, Farewell])
    assert second.restarts == 0

    coordinator.check(range(40))
    assert sorted(row.value for row in own_session.read.parquet(output).collect()) == list(range(40))
    job = disk / "jobs" / "job"
    assert sorted(path.name for path in (job / "generations").glob("[0-9]*")) == [
        "1.json",
        "1.released",
        "2.json",
        "2.released",
    ]
    lineage = job / "queries" / "q" / "lineage-000001"
    assert "Farewell" in (lineage / "lineage.json").read_text()
    assert [path.name for path in (lineage / "epochs").iterdir()] == ["2"]
    assert {"0", "1", "2", "3", "4"} <= {path.name for path in (lineage / "spark" / "commits").iterdir()}
