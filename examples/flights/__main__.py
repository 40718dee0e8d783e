"""The command line of the demo."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from rich.console import Console

from coord_control.errors import CoordControlError
from coord_control.exit_codes import ExitCode, exit_code_of
from examples.flights.commands import control_address
from examples.flights.data import DAYS
from examples.flights.demo import Demo, Options
from examples.flights.interrupts import Interrupts
from examples.flights.progress import Progress
from examples.flights.report import as_json, is_ok, print_summary
from examples.flights.server import REPORTS_VARIABLE, DagsterServer, NoDagster
from examples.flights.session import spark_session
from examples.flights.visit import Visit

_DESCRIPTION = """\
Replays the 336,776 flights that left New York City in 2013, day by day, through a streaming job with two queries:
`alerts`, whose operator and coordinator exchange control events exactly once, and `airports`, a plain aggregation.

The demo also starts Dagster, on this machine only, takes a savepoint of the running job with it, and prints where to
click.

It ends after the last day and that savepoint, or after the current epochs if it is interrupted (Ctrl-C). In a terminal
it replays the days slowly, and the job then idles until Ctrl-C, so that you can explore it. At the end all output is
checked against the input. Exit code: 0 if no flight is lost or counted twice, 1 if the check fails.
"""
_EPILOG = """\
Each run starts from scratch in its own folder. With --work DIR, a run resumes where the last one with the same DIR
ended, even if that one was killed (kill -9); its summary then covers all of them.
"""

#: Days per second in a terminal, slow enough to explore the running job.
_LEISURE: Final = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    work = _work_folder(parsed.work)
    logging.basicConfig(filename=work / "demo.log", level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    console = _console(sys.stderr if parsed.json else sys.stdout)
    stays, stop = _stays(parsed, console), threading.Event()
    try:
        with Progress(console, control_address(work)) as progress:
            progress.say(f"work folder: {work}\nSpark is starting")
            interrupts = Interrupts(stop, progress)
            with _dagster(parsed, work, progress.say, stop, stays=stays) as visit:
                options = _options(parsed, work, visit, stays=stays)
                demo = Demo(options, progress.show, stop, visit)
                with spark_session(work, attempts_per_task=3 if parsed.chaos else 1) as spark:
                    interrupts.spark_runs(spark)
                    outcome = demo.run(spark)
                    if visit is not None:
                        visit.leave()
    except KeyboardInterrupt:
        _say(console, "interrupted before the job was started")
        return ExitCode.INTERRUPTED
    except CoordControlError as error:
        # Spark adds its plan and its stack trace to the message; all of it is in the log.
        reason = str(error).partition("\n")[0]
        _say(console, f"{type(error).__name__}: {reason}", f"more in {work / 'demo.log'} and {work / 'spark.log'}")
        logging.error("the demo has failed", exc_info=error)
        return exit_code_of(error)
    except (Py4JError, PySparkException, OSError) as error:
        _say(console, f"Spark's JVM does not answer any more; more in {work / 'spark.log'}", "--work resumes from here")
        logging.error("the demo has failed", exc_info=error)
        return ExitCode.FAILED
    if parsed.json:
        print(json.dumps(as_json(outcome, work, visit), indent=2))
    else:
        print_summary(console, outcome, work, visit)
    return ExitCode.FINISHED if is_ok(outcome, visit) else ExitCode.FAILED


def _options(parsed: argparse.Namespace, work: Path, visit: Visit | None, *, stays: bool) -> Options:
    speed = _LEISURE if visit is not None and stays else 0.0
    return Options(
        work=work,
        days=parsed.days,
        days_per_epoch=parsed.days_per_epoch,
        days_per_second=speed if parsed.speed is None else parsed.speed,
        budget=parsed.budget,
        shift_seconds=parsed.shift,
        chaos=parsed.chaos,
        control=control_address(work),
    )


def _console(stream: TextIO) -> Console:
    # On a copy: while Spark's JVM starts, standard output and error, which it inherits, are redirected to its log.
    copy = os.fdopen(os.dup(stream.fileno()), "w", encoding=stream.encoding, errors=stream.errors)
    return Console(file=copy)


def _stays(parsed: argparse.Namespace, console: Console) -> bool:
    # Whether it is a terminal, not whether colours are wanted: in a pipeline there is no Ctrl-C.
    return not parsed.headless and console.file.isatty()


@contextmanager
def _dagster(
    parsed: argparse.Namespace, work: Path, say: Callable[[str], None], stop: threading.Event, *, stays: bool
) -> Iterator[Visit | None]:
    """Run Dagster and its visitor in the block, if it is wanted and available."""
    if not parsed.dagster:
        yield None
        return
    environment = {"COORD_CONTROL": control_address(work), REPORTS_VARIABLE: str(work / "reports")}
    try:
        server = DagsterServer(work, environment, parsed.dagster_port)
    except NoDagster as reason:
        say(f"Dagster: {reason}; the demo continues without it")
        yield None
        return
    with server:
        visit = Visit(server, control_address(work), say, stop, stays=stays)
        say("Dagster is starting")
        visit.start()
        try:
            yield visit
        finally:
            visit.leave()


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.flights",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--days", type=_integer(1, DAYS), default=DAYS, metavar="N", help="replay the first N days (default: all)")
    add("--days-per-epoch", type=_integer(1, DAYS), default=5, metavar="N", help="at most (default: 5)")
    add(
        "--speed",
        type=_number,
        metavar="N",
        help="days per second, 0: as fast as possible (default: 1 in a terminal with Dagster, 0 elsewhere)",
    )
    add("--budget", type=_number, default=25.0, metavar="N", help="alerts per day to aim at (default: 25)")
    add(
        "--shift",
        type=_number,
        default=4.0,
        metavar="SECONDS",
        help="how often the desk changes the budget, by 40%% up and down; 0: never (default: 4)",
    )
    add(
        "--chaos",
        type=_probability,
        nargs="?",
        const=0.2,
        default=0.0,
        metavar="P",
        help="let attempts of subtasks fail with this probability (default: 0.2); three in a row fail the batch",
    )
    add("--work", type=Path, metavar="DIR", help="keep everything in DIR, and resume a run that is there")
    add(
        "--headless",
        action="store_true",
        help="end after the last day even in a terminal (without a terminal it always does)",
    )
    add("--no-dagster", dest="dagster", action="store_false", help="without Dagster, and without its savepoint")
    add(
        "--dagster-port",
        type=_integer(0, 65535),
        default=0,
        metavar="PORT",
        help="port of Dagster's web pages, on the loopback address (default: any free port)",
    )
    add("--json", action="store_true", help="print one JSON document at the end; progress goes to standard error")
    return parser


def _work_folder(given: Path | None) -> Path:
    if given is None:
        return Path(tempfile.mkdtemp(prefix="flights-"))
    given.mkdir(parents=True, exist_ok=True)
    return given.resolve()


def _integer(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value} is not in {low}..{high}")
        return value

    return parse


def _number(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number of at least 0")
    return value


def _probability(text: str) -> float:
    value = _number(text)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"{text} must be below 1, or the job would never make progress")
    return value


if __name__ == "__main__":
    sys.exit(main())
