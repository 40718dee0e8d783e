"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

__all__ = ["Force", "Job", "Json", "Root"]

Root: TypeAlias = Annotated[
    str, typer.Option(envvar="COORD_ROOT", metavar="PATH", help="The folder of all jobs: a path, or a URI.")
]
Job: TypeAlias = Annotated[
    str | None,
    typer.Option("--job", envvar="COORD_JOB", metavar="NAME", help="The job; needed unless REF is a path."),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", envvar="COORD_JSON", help="Print JSON.")]
Force: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--force",
        envvar="COORD_FORCE",
        help="Also when the job's driver ran on a machine that cannot be looked at: it is fenced off.",
    ),
]
