"""The flights as a service: the driver that the files in deploy/ run, under ``coordctl run``, on any Spark master.

It is the job of the demo without Dagster. Everything that depends on the deployment is configured outside: the master
by ``coordctl run --master``, Spark's settings in ``spark-defaults.conf``, the control database by ``COORD_CONTROL``.
The folder must be shared by the driver and all executors. After the last day the job idles, so that you can explore it,
until ``coordctl stop flights`` or SIGTERM ends it.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from examples.flights.data import DAYS
from examples.flights.demo import Demo, Moment, Options

__all__ = ["PORT", "main", "options_of"]

#: Where subtasks reach the driver; firewalls and Kubernetes need to know it beforehand.
PORT: Final = 7070

_log = logging.getLogger("examples.flights")


class _Onlooker:
    """Keeps the job running until it is stopped, and logs its progress."""

    wants_job: Final = True

    def __init__(self) -> None:
        self._days = 0

    def job_runs(self) -> None:
        """Do nothing."""

    def show(self, moment: Moment) -> None:
        if moment.airports_day != self._days:
            self._days = moment.airports_day
            _log.info("day %d of %d: %d flights", self._days, moment.days, moment.airports_flights)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job until it is stopped.

    Raises:
        CoordControlError: it failed; the exit code of the driver tells whether a restart can help.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    options = options_of(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    onlooker = _Onlooker()
    with SparkSession.builder.appName("flights").getOrCreate() as spark:
        Demo(options, onlooker.show, threading.Event(), onlooker).run(spark)


def options_of(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights.service", description=main.__doc__)
    add = parser.add_argument
    add("--work", type=Path, required=True, metavar="DIR", help="input, output and the job's state; resumes from there")
    add("--days", type=int, choices=range(1, DAYS + 1), default=DAYS, metavar="N", help="of the year (default: all)")
    add("--speed", type=float, default=1.0, metavar="N", help="days per second, 0: as fast as possible (default: 1)")
    add("--port", type=int, default=PORT, help=f"where subtasks reach the driver (default: {PORT})")
    add("--checkpoint-seconds", type=float, default=60.0, metavar="N", help="between checkpoints (default: 60)")
    parsed = parser.parse_args(arguments)
    return Options(
        work=parsed.work.resolve(),
        days=parsed.days,
        days_per_epoch=5,
        days_per_second=parsed.speed,
        budget=25.0,
        shift_seconds=4.0,
        chaos=0.0,
        control=None,
        port=parsed.port,
        checkpoint_seconds=parsed.checkpoint_seconds,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
