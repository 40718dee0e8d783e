"""``coordctl exporter``: metrics of the whole control database for Prometheus.

Threads: the command's thread waits; the server has its own threads.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Collection
from types import FrameType
from typing import Annotated, Final

import typer

from coord_control.cli.completion import complete_job
from coord_control.cli.duration_parser import DURATION, parse_seconds
from coord_control.cli.options import Control
from coord_control.cli.output import reported, say, warn
from coord_control.control.client.control_client import ControlClient
from coord_control.control.settings import ControlSettings
from coord_control.errors import CoordControlError
from coord_control.metrics.address import EXPORTER_PORT, Address
from coord_control.signal_wakeup import signals_wake_main_thread

__all__ = ["exporter"]

# Prometheus aborts a scrape after ten seconds; an unreachable database must be reported earlier.
_RETRY_SECONDS: Final = 1.0


def exporter(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB",
            envvar="COORD_EXPORTER_JOBS",
            help="Only these jobs. Default: all.",
            autocompletion=complete_job,
            show_default=False,
        ),
    ] = None,
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            envvar="COORD_EXPORTER_LISTEN",
            metavar="HOST:PORT",
            help="Address to listen on. Unauthenticated: protect any address but loopback.",
        ),
    ] = f"127.0.0.1:{EXPORTER_PORT}",
    cache: Annotated[
        float,
        typer.Option(
            parser=parse_seconds,
            metavar=DURATION,
            envvar="COORD_EXPORTER_CACHE",
            help="Cache what was read from the database for this long.",
        ),
    ] = 5.0,
    control: Control = None,
) -> None:
    """Serve metrics of these jobs, or of all in the control database, for Prometheus, until Ctrl-C or SIGTERM.

    An unreachable database is not an error but a metric: coord_control_database_up 0.
    """
    # Imported here because other commands do not need the client library.
    from coord_control.metrics.database_collector import DatabaseCollector
    from coord_control.metrics.http_server import MetricsServer

    with reported(as_json=False):
        address = Address.parse(listen)
        settings = ControlSettings.load(control, retry_seconds=_RETRY_SECONDS)
        with ControlClient(settings=settings) as client:
            collector = DatabaseCollector(client, jobs or None, cache_seconds=cache)
            server = MetricsServer(collector.page, address, targets=collector.targets)
            server.start()
            try:
                say(f"metrics of {client.url} at http://{server.address}/metrics")
                if not server.is_loopback:
                    warn(
                        "anyone who can reach this address can read the metrics, and nothing is encrypted: protect it "
                        "with a firewall"
                    )
                _warn_of_unknown(client, jobs or ())
                _wait_for_end()
            finally:
                server.close()


def _warn_of_unknown(client: ControlClient, jobs: Collection[str]) -> None:
    if not jobs:
        return
    with contextlib.suppress(CoordControlError):  # the database is unreachable, which each scrape reports
        known = {each.job.name for each in client.fleet(jobs).jobs}
        for name in dict.fromkeys(jobs):
            if name not in known:
                warn(f"there is no job {name!r} yet, so it has no metrics; coordctl jobs lists all jobs")


def _wait_for_end() -> None:
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with signals_wake_main_thread():
            ended.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
