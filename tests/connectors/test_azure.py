"""Azure's object store without a JVM, on Microsoft's emulator: the contract of files, and the commands on a savepoint.

A job there needs Hadoop's connector, which speaks another protocol than the emulator: the savepoint was taken on the
local disk, and copied.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import json
import os
import socket
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from coord_control.durable.files.filesystem import Files, LocalFiles, join
from coord_control.durable.files.objects import ObjectFiles
from scripts.azurite import azurite
from tests.files_contract import FilesContract, race
from tests.patience import SECONDS, eventually
from tests.spark.conftest import MakeStream
from tests.spark.jobs import SCHEMA, Dialogue, MakeJob, apply, drain, rows, talk

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_ACCOUNT: Final = "devstoreaccount1"
#: Azurite's account and key are the same everywhere: its documentation names them.
_KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_VERSION: Final = "2021-08-06"


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a container of a new server, which clients find by the environment."""
    folder, port = tmp_path_factory.mktemp("azurite"), _free_port()
    command = ["node", str(azurite()), "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    command += ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)
    eventually(lambda: _answers(port))
    address, name = f"http://127.0.0.1:{port}", f"jobs-{uuid.uuid4().hex}"
    _make_container(address, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
        patch.setenv("AZURITE_BLOB_STORAGE_URL", address)
        yield f"abfss://{name}@{_ACCOUNT}.dfs.core.windows.net"
    server.kill()
    server.wait(SECONDS)


def _make_container(address: str, name: str) -> None:
    date = email.utils.formatdate(usegmt=True)
    headers = f"x-ms-date:{date}\nx-ms-version:{_VERSION}\n"
    signed = "PUT" + "\n" * 12 + f"{headers}/{_ACCOUNT}/{_ACCOUNT}/{name}\nrestype:container"
    signature = base64.b64encode(hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()).decode()
    request = urllib.request.Request(
        f"{address}/{_ACCOUNT}/{name}?restype=container",
        method="PUT",
        data=b"",
        headers={
            "x-ms-date": date,
            "x-ms-version": _VERSION,
            "Authorization": f"SharedKey {_ACCOUNT}:{signature}",
            "Content-Type": "",
        },
    )
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 201


@pytest.mark.usefixtures("container")
class TestObjectsOnAzure(FilesContract):
    @pytest.fixture
    def files(self) -> Files:
        return ObjectFiles()

    @pytest.fixture
    def root(self, container: str, tmp_path: Path) -> str:
        return join(container, tmp_path.name, "a job")

    def test_of_many_writers_that_race_exactly_one_creates(self, files: Files, root: str) -> None:
        assert race(files, root, rounds=100, writers=8) == [1] * 100


def _read(batch: DataFrame, epoch: int) -> None:
    batch.collect()


def test_commands_work_on_a_savepoint(
    container: str, make_job: MakeJob, file_stream: MakeStream, tmp_path: Path
) -> None:
    source = file_stream(SCHEMA)
    source.add(rows(0))
    with make_job() as job:
        frame = apply(talk(job, Dialogue()), source.read()).groupBy("key").agg(F.sum("value").alias("sum"))
        drain(job, frame.writeStream.outputMode("update").foreachBatch(_read))
        taken = job.trigger_savepoint().wait(SECONDS).path
    place, local, remote = join(container, tmp_path.name), LocalFiles(), ObjectFiles()
    savepoint, root = join(place, "savepoint"), join(place, "jobs")
    for info in local.walk(taken):
        remote.write_chunks(join(savepoint, info.path), local.chunks(join(taken, info.path)))

    def coordctl(*arguments: str) -> Any:
        command = [sys.executable, "-m", "coord_control.cli", *arguments, "--json"]
        environment = {**os.environ, "JAVA_HOME": "/no/java", "PATH": "/no/java", "COORD_CONTROL": "none"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    coordctl("savepoint", "show", savepoint)
    coordctl("savepoint", "verify", savepoint)
    coordctl("savepoint", "export", savepoint, "q", join(place, "plain"))
    coordctl("savepoint", "export", savepoint, "q", str(tmp_path / "plain"))
    exported = [(info.path, info.size) for info in remote.walk(join(place, "plain"))]
    assert sorted(exported) == sorted((info.path, info.size) for info in local.walk(str(tmp_path / "plain")))
    coordctl("restore", "job", savepoint, "--root", root, "--as", "copy")
    made = coordctl("savepoint", "create", "copy", "--root", root)
    coordctl("savepoint", "verify", made["path"])
    assert made["path"] in [each["path"] for each in coordctl("savepoint", "list", "copy", "--root", root)]
    coordctl("savepoint", "dispose", "copy", str(made["checkpoint"]), "--root", root, "--yes")
    assert remote.list(made["path"]) == []
