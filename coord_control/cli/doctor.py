"""``coordctl doctor``: checks whether this machine can run a driver, and names the next step if not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.markup import escape

from coord_control import environment
from coord_control.cli.duration_parser import DURATION, parse_seconds
from coord_control.cli.options import Json
from coord_control.cli.output import console, plain_table
from coord_control.driver_process import driver_environment
from coord_control.environment import EnvironmentCheck, Status

__all__ = ["doctor"]

_COLOURS: Final = {Status.OK: "green", Status.WARNING: "yellow", Status.FAILED: "red"}
_SPARK_EXPECTED: Final = "Spark starts and runs an Arrow function"


def doctor(
    root: Annotated[
        str | None,
        typer.Option(
            envvar="COORD_ROOT",
            metavar="PATH",
            help="Also check this storage root: a path or a URI that Spark can write.",
        ),
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", envvar="COORD_SPARK", help="Start Spark and run a tiny job.")
    ] = True,
    spark_timeout: Annotated[
        float,
        typer.Option(
            parser=parse_seconds,
            metavar=DURATION,
            envvar="COORD_SPARK_TIMEOUT",
            help="Time limit for Spark.",
        ),
    ] = 120.0,
    as_json: Json = False,
) -> None:
    """Check Python, Java, packages, network, disk, storage and Spark. Exit codes: 0 no check failed, 1 one did."""
    checks = _basic_checks(root)
    skipped = ["storage"] if root is None else []
    remote_root = root if root is not None and environment.local_path(root) is None else None
    blocked = any(check.status is Status.FAILED and check.name in ("java", "pyspark") for check in checks)
    if spark and environment.has_spark() and not blocked:
        checks += _spark_checks(remote_root, spark_timeout)
    else:
        skipped += ["spark"] if remote_root is None else ["spark", "storage"]
    if as_json:
        report = [{**asdict(check), "status": check.status.value} for check in checks]
        typer.echo(json.dumps({"checks": report, "skipped": skipped}, indent=2))
    else:
        _print(checks, skipped)
    raise typer.Exit(1 if any(check.status is Status.FAILED for check in checks) else 0)


def _basic_checks(root: str | None) -> list[EnvironmentCheck]:
    checks = [
        environment.check_python(sys.version_info[:3]),
        *([environment.check_java(environment.find_java(os.environ))] if environment.has_spark() else []),
        *environment.check_packages(),
        environment.check_loopback(),
        environment.check_host(os.environ),
        environment.check_disk("disk (temporary)", Path(tempfile.gettempdir())),
    ]
    path = None if root is None else environment.local_path(root)
    if path is not None:
        from coord_control.durable.files.filesystem import LocalFiles

        checks.append(environment.check_disk("disk (storage)", path))
        if (mounts := environment.read_mounts()) is not None:
            checks.append(environment.check_mount(path.resolve(), mounts))
        checks.append(environment.check_storage(str(path), LocalFiles()))
    return checks


def _spark_checks(root: str | None, timeout: float) -> list[EnvironmentCheck]:
    command = [
        sys.executable,
        "-m",
        "coord_control.spark.process.doctor_checks",
        *([] if root is None else ["--root", root]),
    ]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            env=driver_environment(os.environ),
        )
    except subprocess.TimeoutExpired:
        hint = "check whether the JVM waits for memory or the network; --spark-timeout raises the limit"
        return [EnvironmentCheck("spark", Status.FAILED, f"no result within {timeout:g} s", _SPARK_EXPECTED, hint)]
    if done.returncode != 0:
        hint = f"for the whole error run: {' '.join(command)}"
        return [EnvironmentCheck("spark", Status.FAILED, _last_line(done.stderr), _SPARK_EXPECTED, hint)]
    return [
        EnvironmentCheck(**{**each, "status": Status(each["status"])}) for each in json.loads(_last_line(done.stdout))
    ]


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1]


def _print(checks: list[EnvironmentCheck], skipped: list[str]) -> None:
    out = console()
    table = plain_table()
    for title in ("check", "status", "found", "expected"):
        table.add_column(title, overflow="fold")
    for check in checks:
        status = f"[{_COLOURS[check.status]}]{check.status.value}[/]"
        table.add_row(escape(check.name), status, escape(check.found), escape(check.expected))
    out.print(table)
    for check in checks:
        if check.next_step:
            out.print(f"[{_COLOURS[check.status]}]{escape(check.name)}[/]: {escape(check.next_step)}", soft_wrap=True)
    if skipped:
        out.print(f"not checked: {', '.join(skipped)}", style="dim")
