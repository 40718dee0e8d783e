"""Dagster for the demo: ``dagster dev`` on the loopback address, which writes only to the work folder.

Threads: closed by the thread that has created it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from examples.flights.graphql import DagsterApi

__all__ = ["EVENT_JOB", "REPORTS_VARIABLE", "DagsterServer", "NoDagster"]

#: Names the folder for the pages about savepoints.
REPORTS_VARIABLE: Final = "FLIGHTS_REPORTS"
#: The Dagster job that sends an event of the flights.
EVENT_JOB: Final = "send_thresholds"

HOST: Final = "127.0.0.1"
_CHECKOUT: Final = Path(__file__).resolve().parents[2]
#: Also disables the community pop-up, which would cover the first page.
_SETTINGS: Final = "telemetry:\n  enabled: false\nnux:\n  enabled: false\n"
#: Short, because its home is removed with the work folder: there is nothing to finish.
_GRACE_SECONDS: Final = 5.0


class NoDagster(Exception):
    """Dagster cannot be started; the message names the cause and the next step."""


class DagsterServer:
    """``dagster dev`` as a context manager that ends all its processes.

    Args:
        work: the folder for ``dagster`` (its home) and ``dagster.log``.
        environment: variables to add for its code location.
        port: the port of its web pages, or 0 for any free port.

    Raises:
        NoDagster: it is not installed, or the port is taken.
    """

    def __init__(self, work: Path, environment: dict[str, str], port: int) -> None:
        for package in ("dagster", "dagster_webserver"):
            if importlib.util.find_spec(package) is None:
                raise NoDagster(f"{package} is not installed: pip install 'coord-control[demo]'")
        self.port = _free_port(port)
        self.url = f"http://{HOST}:{self.port}"
        self.log = work / "dagster.log"
        self.api = DagsterApi(self.url)
        home = work / "dagster"
        home.mkdir(exist_ok=True)
        (home / "dagster.yaml").write_text(_SETTINGS, encoding="utf-8")
        command = [sys.executable, "-m", "dagster", "dev", "-m", "examples.flights.definitions"]
        keeper = [sys.executable, "-m", "examples.flights.keeper", str(_GRACE_SECONDS)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*keeper, *command, "-h", HOST, "-p", str(self.port)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=_CHECKOUT,
                env={**os.environ, **environment, "DAGSTER_HOME": str(home), "PYTHONPATH": _python_path()},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self._process.wait()

    @property
    def has_ended(self) -> bool:
        """Whether Dagster has ended, or is about to."""
        return self._process.poll() is not None

    def end(self) -> None:
        """Let Dagster end; returns immediately."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()


def _free_port(wanted: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except OSError as error:
            raise NoDagster(f"port {wanted} cannot be used ({error.strerror}); --dagster-port names another") from error
        port: int = probe.getsockname()[1]
        return port


def _python_path() -> str:
    return os.pathsep.join(filter(None, [str(_CHECKOUT), os.environ.get("PYTHONPATH")]))
