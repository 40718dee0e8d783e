"""``coordctl init``: writes what a job needs: its script, a project for Dagster, and a unit for systemd.

Threads: the command's thread.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

from coord_control.cli.options import JobName, Json
from coord_control.cli.output import print_json, say, warn
from coord_control.exit_codes import NO_RESTART, ExitCode
from coord_control.ids import is_valid_name

__all__ = ["init"]

_SCRIPT: Final = Template('''\
"""The streaming job $job. Run it with: coordctl run --detach ${job}_job.py"""

from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter

import coord_control as cc

ROOT = $root  # of all jobs: savepoints and states are kept below it


def query(spark: SparkSession) -> DataStreamWriter:
    """Return the query as it is written to its sink, and do not start it: the job does."""
$query


if __name__ == "__main__":
    spark = SparkSession.builder.appName("$job").getOrCreate()
    with cc.Job("$job", spark, root=ROOT) as job:
        job.start("main", query(spark)$checkpoint)
        job.await_termination()
''')
_EXAMPLE: Final = """\
    numbers = spark.readStream.format("rate").load()  # put your query in place of this one
    return numbers.writeStream.format("noop").trigger(processingTime="5 seconds")"""
_YOURS: Final = """\
    # Your source, your transformations and your sink, without start() and without the option checkpointLocation.
    raise NotImplementedError("put your query here")"""
_PROJECT: Final = """\
# So that `dg dev` in this folder finds the jobs.
directory_type = "project"

[project]
root_module = "streams"
code_location_target_module = "streams.definitions"

[cli]
suppress_warnings = ["project_and_activated_venv_mismatch"]
"""
_DEFINITIONS: Final = '''\
"""The code location: everything below `defs`."""

from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
'''
_ASSETS: Final = Template("""\
type: dagster_defs.StreamingJobComponent

attributes:
  jobs:
    - name: $name
      start:
        script: $script
      schedules:
        - cron: "@hourly" # a savepoint each hour, once it is switched on in Dagster; the newest 24 are kept
          retain: { count: 24 }
""")
_UNIT: Final = Template("""\
# systemctl --user link $unit && systemctl --user enable --now $job
# It runs while you are logged in; on a server: loginctl enable-linger

[Unit]
Description=Streaming job $job

[Service]
Type=exec
WorkingDirectory=$folder
${environment}ExecStart=$coordctl run $script
# The signal goes to coordctl run alone, which lets the running batches end.
KillMode=mixed
TimeoutStopSec=90
Restart=on-failure
RestartSec=10
SuccessExitStatus=$stopped
RestartPreventExitStatus=$final

[Install]
WantedBy=default.target
""")
#: Of the terminal's environment, what the unit needs as well.
_TAKEN_OVER: Final = ("COORD_CONTROL", "JAVA_HOME", "SPARK_HOME")


def init(
    job: JobName,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where to write; it is made if it is missing.")
    ] = Path("."),
    root: Annotated[
        str | None,
        typer.Option(
            "--root", envvar="COORD_ROOT", metavar="PATH", help="The folder of all jobs. Default: jobs, in FOLDER."
        ),
    ] = None,
    adopted: Annotated[
        str | None,
        typer.Option(
            "--adopt",
            envvar="COORD_ADOPT",
            metavar="PATH",
            help="The Spark checkpoint of a query that you have already.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a script for JOB, a Dagster project and a systemd unit; files that exist are left as they are."""
    if not is_valid_name(job):
        raise typer.BadParameter(
            f"{job!r} cannot name a job: use letters, digits, '_', '.' and '-', and begin with a letter or digit"
        )
    folder = folder.absolute()
    if adopted is not None and "://" not in adopted:
        adopted = _spark_checkpoint(adopted)
    files = _files(folder, job, root or str(folder / "jobs"), adopted)
    written = {path: _write(folder / path, text) for path, text in files.items()}
    steps = _steps(folder, job, has_query=adopted is None)
    if as_json:
        print_json({"job": job, "folder": str(folder), "files": written, "next": steps})
        return
    for path, state in written.items():
        say(f"{state}  {folder / path}")
    say("\nnext:")
    for step in steps:
        say(f"  {step}")


def _spark_checkpoint(path: str) -> str:
    found = Path(path).absolute()
    if not (found / "metadata").is_file():
        raise typer.BadParameter(f"{found} is no checkpoint of Spark: it has no file 'metadata'")
    return str(found)


def _files(folder: Path, job: str, root: str, adopted: str | None) -> Mapping[str, str]:
    """Return the texts by their paths in the folder."""
    script = _script(job)
    return {
        script: _SCRIPT.substitute(
            job=job,
            root=json.dumps(root),
            query=_EXAMPLE if adopted is None else _YOURS,
            checkpoint="" if adopted is None else f", checkpoint_location={json.dumps(adopted)}",
        ),
        "dg.toml": _PROJECT,
        "streams/__init__.py": "",
        "streams/definitions.py": _DEFINITIONS,
        f"streams/defs/{job}/defs.yaml": _ASSETS.substitute(
            name=json.dumps(job), script=json.dumps(str(folder / script))
        ),
        f"{job}.service": _UNIT.substitute(
            job=job,
            unit=shlex.quote(str(folder / f"{job}.service")),
            folder=_escaped(str(folder)),
            environment="".join(f'Environment="{name}={_escaped(text)}"\n' for name, text in _environment().items()),
            coordctl=f'"{_escaped(str(Path(sys.executable).parent / "coordctl"))}"',
            script=f'"{_escaped(str(folder / script))}"',
            stopped=ExitCode.STOPPED.value,
            final=" ".join(map(str, sorted(code.value for code in NO_RESTART))),
        ),
    }


def _script(job: str) -> str:
    return f"{job}_job.py"  # a script with the name of a module would be imported in its place


def _environment() -> Mapping[str, str]:
    found = {name: os.environ[name] for name in _TAKEN_OVER if name in os.environ}
    if urlsplit(found.get("COORD_CONTROL", "")).password is not None:
        warn("the unit does not name the control database: a password does not belong in it; see docs/control-plane.md")
        del found["COORD_CONTROL"]
    return found


def _escaped(text: str) -> str:
    """Return a text as it stands in a unit, where a percent sign begins a specifier."""
    return text.replace("%", "%%")


def _write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return "kept"
    return "new"


def _steps(folder: Path, job: str, *, has_query: bool) -> list[str]:
    place = shlex.quote(str(folder))
    return [
        *([] if has_query else [f"put your query into {folder / _script(job)}, and stop the program that runs it"]),
        f"cd {place} && coordctl run --detach {_script(job)}",
        f"coordctl savepoint create {job}",
        "dg dev    # Dagster on http://127.0.0.1:3000; needs the extra dagster",
        f"systemctl --user link {shlex.quote(str(folder / f'{job}.service'))} && systemctl --user enable --now {job}",
    ]
