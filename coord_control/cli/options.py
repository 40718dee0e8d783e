"""Options shared by several commands."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from coord_control.cli.completion import complete_job
from coord_control.cli.duration_parser import DURATION, parse_seconds
from coord_control.driver_process import ACCEPT_SKIPPED_VARIABLE, ALLOW_MISSING_INPUT_VARIABLE, ROLL_BACK_VARIABLE

__all__ = [
    "AllowMissingInput",
    "AnyRoot",
    "By",
    "Control",
    "Force",
    "JobName",
    "Json",
    "Key",
    "Label",
    "Limit",
    "OptionalJob",
    "Target",
    "Timeout",
    "Wait",
    "Yes",
]

JobName: TypeAlias = Annotated[
    str, typer.Argument(metavar="JOB", help="The job.", autocompletion=complete_job, show_default=False)
]
AnyRoot: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--root",
        envvar="COORD_ROOT",
        metavar="PATH",
        help="The folder of all jobs; not needed if REF is a path, or for a job in the control database.",
    ),
]
OptionalJob: TypeAlias = Annotated[
    str | None,
    typer.Argument(metavar="JOB", help="The job. Default: all.", autocompletion=complete_job, show_default=False),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", envvar="COORD_JSON", help="Print JSON.")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", envvar="COORD_YES", help="Do not ask for confirmation.")]
Force: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--force",
        envvar="COORD_FORCE",
        help="Proceed even if the driver's host cannot be checked; the old driver is fenced off.",
    ),
]
AllowMissingInput: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--allow-missing-input",
        envvar=ALLOW_MISSING_INPUT_VARIABLE,
        help="Restore even if files that a source would read again are gone; their rows are lost.",
    ),
]
RollBackSinks: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--roll-back-sinks",
        envvar=ROLL_BACK_VARIABLE,
        help="Set the sinks back to REF too (Spark's file sink, Delta, Iceberg), before a query starts.",
    ),
]
AcceptSkippedEpochs: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--accept-skipped-epochs",
        envvar=ACCEPT_SKIPPED_VARIABLE,
        help="Restore even if a sink skips epochs that it has received; what they produce differently is lost.",
    ),
]
Control: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--control",
        envvar="COORD_CONTROL",
        metavar="URL",
        show_default=False,
        help="The control database: sqlite:////path, postgresql://user@host/name, or none. Default: the user's own. "
        "A password belongs in COORD_CONTROL_PASSWORD or in the file COORD_CONTROL_PASSWORD_FILE.",
    ),
]
Wait: TypeAlias = Annotated[
    bool,
    typer.Option("--wait/--no-wait", envvar="COORD_WAIT", help="Wait until it is done, or only request it."),
]
Timeout: TypeAlias = Annotated[
    float | None,
    typer.Option(
        parser=parse_seconds,
        metavar=DURATION,
        envvar="COORD_TIMEOUT",
        help="How long to wait; after that the command continues. Default: as long as it takes.",
    ),
]
Key: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--key",
        envvar="COORD_KEY",
        metavar="TEXT",
        help="An idempotency key: repeating the request with the same key finds the first command.",
    ),
]
Limit: TypeAlias = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=100_000, envvar="COORD_LIMIT", help="Maximum number, newest first.")
]
Label: TypeAlias = Annotated[
    str | None,
    typer.Option("--label", envvar="COORD_LABEL", metavar="NAME", help="A name for it, unique in the job."),
]
By: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--by",
        envvar="COORD_BY",
        metavar="ACTOR",
        help="Only those with this requested_by: a user, dagster:run:ID, or dagster:schedule:NAME.",
        show_default=False,
    ),
]
Target: TypeAlias = Annotated[
    str | None,
    typer.Option("--target", envvar="COORD_TARGET", metavar="PATH", help="The new folder; by default below the job's."),
]
