"""Forks and exports on S3 that are killed half-way, and repeated; without a JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from coord_control.durable.checkpoints.checkpoint_folder import read_metadata
from coord_control.durable.files.filesystem import Files, join
from coord_control.exit_codes import ExitCode
from coord_control.ids import QueryName
from coord_control.spark.hadoop_files import HadoopFiles
from tests.connectors.test_remote_jobs import Place, run
from tests.kill.pausing import paused_mark
from tests.patience import SECONDS, eventually
from tests.s3_kit import S3Server
from tests.spark.conftest import MakeStream
from tests.spark.jobs import SCHEMA, MakeJob, rows
from tests.spark_session import CHECKOUT

pytestmark = [pytest.mark.spark, pytest.mark.kill]

_SCRIPT: Final = Path(__file__).with_name("paused_command.py")


class Terminal:
    """Commands without a JVM, some of which are killed."""

    def __init__(self, folder: Path, s3: S3Server) -> None:
        self._folder = folder
        # Spark would fail at once.
        machine = {"JAVA_HOME": "/no/java", "PATH": "/no/java", "HOME": str(folder), "COORD_CONTROL": "none"}
        self._environment = {**os.environ, **s3.environment, **machine, "PYTHONPATH": str(CHECKOUT)}

    def type(self, *arguments: str, code: int = 0) -> Any:
        """Run a command to its end."""
        command = [sys.executable, "-m", "coord_control.cli", *arguments, "--json"]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout) if code == 0 else done.stdout + done.stderr

    def kill(self, step: str, *arguments: str) -> None:
        """Run a command, and kill it at a step."""
        paused_mark(self._folder).unlink(missing_ok=True)
        log = self._folder / "log"
        command = [sys.executable, str(_SCRIPT), str(self._folder), step, *arguments]
        with log.open("wb") as output:
            process = subprocess.Popen(command, env=self._environment, stdout=output, stderr=output)

        def waits() -> bool:
            assert process.poll() is None, log.read_text()
            return paused_mark(self._folder).exists()

        try:
            eventually(waits, log.read_text, pause=0.05)
        finally:
            process.kill()
            process.wait(SECONDS)


@pytest.mark.slow
def test_a_fork_and_an_export_that_were_killed_half_way_can_be_repeated(
    make_job: MakeJob, s3_session: SparkSession, s3: S3Server, file_stream: MakeStream, tmp_path: Path
) -> None:
    place = Place(f"s3a://{s3.bucket}/{tmp_path.name}", "", s3_session, HadoopFiles(s3_session))
    files, source, terminal = place.files, file_stream(SCHEMA, session=s3_session), Terminal(tmp_path, s3)
    source.add(rows(0))
    run(make_job, place, source, None)
    source.add(rows(1))
    on = run(make_job, place, source)
    [savepoint] = terminal.type("savepoint", "list", "job", "--root", place.root)

    fork = ("restore", "job", savepoint["path"], "--root", place.root, "--as", "copy")
    for step in ("0", "3", r"/lineage\.json$", r"/restores/\d+\.json$"):
        terminal.kill(step, *fork)
        assert [entry["path"] for entry in terminal.type("savepoint", "list", "job", "--root", place.root)] == [
            savepoint["path"]
        ]
    terminal.type(*fork)
    assert run(make_job, place, source, name="copy") == on
    assert run(make_job, place, source) == {}, "the first job stands where it stood"

    target = f"s3a://{s3.other_bucket}/{tmp_path.name}/plain"
    export = ("savepoint", "export", savepoint["path"], "q", target)
    for step in ("0", "3"):
        terminal.kill(step, *export)
    # What there is of it does not pass for a checkpoint of Spark, and is not mixed with another one.
    assert not files.exists(join(target, "metadata"))
    assert "there is something in it" in terminal.type(*export, code=ExitCode.CONFIG)
    files.delete(target)
    terminal.type(*export)
    _check_exported(files, savepoint["path"], target)


def _check_exported(files: Files, savepoint: str, target: str) -> None:
    metadata = read_metadata(files, savepoint)
    assert metadata is not None
    wanted = {entry.path: entry.size for entry in metadata.queries[QueryName("q")].spark_files}
    found = {info.path: info.size for info in files.walk(target)}
    assert found.pop("metadata")
    # Descriptions name their schemas by absolute paths.
    assert {path: size for path, size in found.items() if "/_metadata/" not in path} == {
        path: size for path, size in wanted.items() if "/_metadata/" not in path
    }
    assert found.keys() <= wanted.keys()
