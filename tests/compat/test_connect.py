"""Spark Connect is refused with its own error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from coord_control.exit_codes import ExitCode
from tests.patience import SECONDS
from tests.places import CHECKOUT

_CONNECT: Final = """
from pyspark.sql.connect.session import SparkSession
import coord_control as cc

cc.Job("remote", SparkSession("sc://127.0.0.1:1"), root="jobs")
"""


def test_a_session_of_spark_connect_is_refused(tmp_path: Path) -> None:
    """The client does not need its server for that."""
    (tmp_path / "job.py").write_text(_CONNECT)
    paths = [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "coord_control.spark.process.bootstrap", "job.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=SECONDS)
    assert done.returncode == ExitCode.CONFIG, done.stderr
    assert "SparkConnectUnsupported: this is a session of Spark Connect" in done.stderr
    assert not (tmp_path / "jobs").exists()
