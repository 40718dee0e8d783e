"""``coordctl run``: keeps the driver of a script alive, by the rules of ``coord_control.supervisor``.

Threads: the supervisor runs on the command's thread; signal handlers only post to its inbox.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from coord_control.cli.detach import default_log_file, detach
from coord_control.cli.duration_parser import DURATION, parse_seconds
from coord_control.cli.options import AcceptSkippedEpochs, AllowMissingInput, RollBackSinks
from coord_control.cli.output import reported, warn
from coord_control.cli.storage import reference
from coord_control.driver_process import (
    ACCEPT_SKIPPED_VARIABLE,
    ALLOW_MISSING_INPUT_VARIABLE,
    ALLOW_VARIABLE,
    LOG_FILE_VARIABLE,
    RESTORE_VARIABLE,
    ROLL_BACK_VARIABLE,
    SUPERVISED_VARIABLE,
    DriverProcess,
    QueueInbox,
    driver_environment,
)
from coord_control.durable.job_folder.upgrade_record import Program
from coord_control.environment import require_java, require_spark
from coord_control.launch.job_reports import JobReports
from coord_control.launch.supervisors import OwnSupervisor, SupervisorRecord
from coord_control.signal_wakeup import signals_wake_main_thread
from coord_control.supervisor import Policy, StopRequested, supervise

__all__ = ["run"]


def run(
    context: typer.Context,
    script: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="The Python script of the driver.")
    ],
    args: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
    master: Annotated[
        str | None,
        typer.Option(
            envvar="COORD_MASTER",
            metavar="URL",
            help="Spark master, unless the script itself sets one (builder.master).",
        ),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            parser=parse_seconds,
            metavar=DURATION,
            envvar="COORD_GRACE",
            help="Time from a stop request (SIGTERM, SIGINT) to SIGKILL. A second request kills at once.",
        ),
    ] = 30.0,
    max_restarts: Annotated[
        int | None,
        typer.Option(
            min=0, envvar="COORD_MAX_RESTARTS", help="Maximum restarts since the last stable run; default: no limit."
        ),
    ] = None,
    backoff_initial: Annotated[
        float,
        typer.Option(
            parser=parse_seconds,
            metavar=DURATION,
            envvar="COORD_BACKOFF_INITIAL",
            help="Delay before the first restart; doubled for each further one.",
        ),
    ] = 1.0,
    backoff_max: Annotated[
        float,
        typer.Option(
            parser=parse_seconds, metavar=DURATION, envvar="COORD_BACKOFF_MAX", help="Maximum delay before a restart."
        ),
    ] = 60.0,
    stable_after: Annotated[
        float,
        typer.Option(
            parser=parse_seconds,
            metavar=DURATION,
            envvar="COORD_STABLE_AFTER",
            help="Reset the delay and the count of restarts after this much uptime.",
        ),
    ] = 60.0,
    restore_from: Annotated[
        str | None,
        typer.Option(
            envvar=RESTORE_VARIABLE,
            metavar="REF",
            help="Restore the script's job from this checkpoint or savepoint: an id, a label, latest, or a path.",
        ),
    ] = None,
    allow_non_restored_state: Annotated[
        bool,
        typer.Option(
            "--allow-non-restored-state",
            envvar=ALLOW_VARIABLE,
            help="Allow queries and operators of the checkpoint to be left behind, and new ones to begin empty.",
        ),
    ] = False,
    allow_missing_input: AllowMissingInput = False,
    roll_back_sinks: RollBackSinks = False,
    accept_skipped_epochs: AcceptSkippedEpochs = False,
    detached: Annotated[
        bool,
        typer.Option("--detach", envvar="COORD_DETACH", help="Run in the background, with a log file."),
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            "--wait-for-job",
            parser=parse_seconds,
            metavar=DURATION,
            envvar="COORD_WAIT_FOR_JOB",
            help="With --detach: how long to wait until the job runs, or has failed; 0s: do not wait.",
        ),
    ] = 90.0,
    log_file: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            envvar=LOG_FILE_VARIABLE,
            metavar="PATH",
            help="The log of --detach; new lines are appended. Default: a new one in the user's state folder.",
        ),
    ] = None,
) -> None:
    """Run SCRIPT as a Spark driver, and restart it when it fails.

    A driver that exits with 0 has finished its job; with 76 it requests a restart. Exit codes 2, 65, 77 and 78 mean
    that a restart would not help (command line, damaged records, fenced off by another driver, invalid declaration, no
    such module, no Java); coordctl exits with the same code. After all other codes the driver is restarted. If coordctl
    is asked to stop, it exits with 143 (SIGTERM) or 130 (SIGINT), or with 137 if it had to kill the driver.

    A restore is applied once: a driver that is restarted, or run again with the same REF, resumes where the job stands,
    also if a label means another savepoint by then. To go back to the same checkpoint again, use coordctl restore.

    With --detach coordctl runs in the background, in its own session, prints how to watch and stop the job, and waits
    until the job runs. If the driver fails for good meanwhile, it shows the end of the log and exits with that code.
    The log file is not rotated.

    Python workers use the driver's interpreter on a local master, unless PYSPARK_PYTHON is set.
    """
    with reported(as_json=False):
        require_spark("coordctl run")
        if not os.environ.get("SPARK_REMOTE", "").startswith("sc://"):  # Spark Connect: Java is on another machine
            require_java(os.environ)
    _warn_of_misplaced(context, args or [])
    log = (log_file or default_log_file(script)).resolve() if detached else None
    token = secrets.token_hex(8)
    options = _options(master, grace, max_restarts, backoff_initial, backoff_max, stable_after)
    program = Program(script=str(script.resolve()), args=tuple(args or ()), folder=os.getcwd(), options=options)
    own = OwnSupervisor(
        SupervisorRecord(token=token, pid=os.getpid(), program=program, log_file=None if log is None else str(log))
    )
    if log is not None:
        detach(log, wait)
        own.moved()
    _log_to_stderr()
    policy = Policy(grace, max_restarts, backoff_initial, backoff_max, stable_after)
    inbox = QueueInbox()
    command = [sys.executable, "-m", "coord_control.spark.process.bootstrap", str(script), *(args or [])]
    environment = driver_environment(os.environ, master=master, grace=grace, is_logged=log is not None)
    environment[SUPERVISED_VARIABLE] = token
    if log is None:
        environment.pop(LOG_FILE_VARIABLE, None)  # the driver must not name a file that is not written
    else:
        environment[LOG_FILE_VARIABLE] = str(log)
    if restore_from is not None:
        # For every driver; a job applies it once (see Job's restore_from).
        environment[RESTORE_VARIABLE] = reference(restore_from)
        environment[ALLOW_VARIABLE] = "1" if allow_non_restored_state else "0"
        environment[ALLOW_MISSING_INPUT_VARIABLE] = "1" if allow_missing_input else "0"
        environment[ROLL_BACK_VARIABLE] = "1" if roll_back_sinks else "0"
        environment[ACCEPT_SKIPPED_VARIABLE] = "1" if accept_skipped_epochs else "0"
    driver = DriverProcess(command, environment, inbox)

    def request_stop(signum: int, frame: FrameType | None) -> None:
        inbox.put(StopRequested(signum))

    signal.signal(signal.SIGTERM, request_stop)
    signal.signal(signal.SIGINT, request_stop)
    try:
        with signals_wake_main_thread():
            raise typer.Exit(supervise(policy, driver, inbox, time.monotonic, JobReports()))
    finally:
        own.close()


def _options(
    master: str | None,
    grace: float,
    max_restarts: int | None,
    backoff_initial: float,
    backoff_max: float,
    stable_after: float,
) -> tuple[str, ...]:
    """Return the options that start another script in the same way."""
    times = {
        "--grace": grace,
        "--backoff-initial": backoff_initial,
        "--backoff-max": backoff_max,
        "--stable-after": stable_after,
    }
    found = [text for name, seconds in times.items() for text in (name, f"{seconds:f}s")]
    found += [] if master is None else ["--master", master]
    return (*found, *(() if max_restarts is None else ("--max-restarts", str(max_restarts))))


def _warn_of_misplaced(context: typer.Context, args: Sequence[str]) -> None:
    ours = {name for option in context.command.params for name in (*option.opts, *option.secondary_opts)}
    names = [each.partition("=")[0] for each in itertools.takewhile(lambda each: each != "--", args)]
    if misplaced := [name for name in dict.fromkeys(names) if name.startswith("--") and name in ours]:
        warn(f"{', '.join(misplaced)}: passed to the script, because they follow it; put options of coordctl run first")


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s coordctl: %(message)s"))
    logger = logging.getLogger("coord_control.supervisor")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
