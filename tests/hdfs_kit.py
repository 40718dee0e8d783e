"""A cluster of HDFS of the test's own: a name node and a data node in one process."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Final

import pyspark

from scripts.connectors import jars
from tests.patience import SECONDS, eventually

__all__ = ["HdfsCluster"]

_JAVA_OPTIONS: Final = ("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true")
_STARTS: Final = 3


class HdfsCluster:
    """One cluster; running when it is made."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        for attempt in range(_STARTS):
            with contextlib.suppress(ChildProcessError):
                self._start()
                return
            assert attempt < _STARTS - 1, self.log()

    @property
    def address(self) -> str:
        """The address of the name node."""
        return f"hdfs://127.0.0.1:{self._port}"

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait(SECONDS)

    def log(self) -> str:
        """What it has said."""
        return (self._folder / "log").read_text(errors="replace")

    def _start(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        # Hadoop's own classes are those of PySpark.
        spark = Path(pyspark.__file__).parent / "jars"
        class_path = [*jars("hdfs"), *spark.glob("*.jar")]
        java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
        manager = ["org.apache.hadoop.test.MiniDFSClusterManager", "-format", "-nnport", str(self._port)]
        manager += ["-datanodes", "1", "-D", f"hdfs.minidfs.basedir={self._folder / 'data'}"]
        manager += ["-writeDetails", str(self._folder / "ready")]
        command = [shutil.which(java) or java, *_JAVA_OPTIONS, "-cp", os.pathsep.join(map(str, class_path)), *manager]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder
            )
        eventually(self._is_ready, self.log)

    def _is_ready(self) -> bool:
        if self._process.poll() is not None:
            raise ChildProcessError(self.log())
        return (self._folder / "ready").exists()
