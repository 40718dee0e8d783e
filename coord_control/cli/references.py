"""How commands name a checkpoint or savepoint: ``JOB REF``, or the path of its folder alone.

Threads: the command's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand

from coord_control.cli.completion import complete_job
from coord_control.cli.output import plain
from coord_control.cli.storage import absolute, existing_job, reference, storage_of
from coord_control.durable.checkpoints.catalog import Catalog

__all__ = [
    "CheckpointCommand",
    "CheckpointWords",
    "Reference",
    "checkpoint_and",
    "checkpoint_named",
    "checkpoint_words",
]


@dataclass(frozen=True, slots=True)
class Reference:
    """A checkpoint or savepoint as the command line names it.

    Attributes:
        job: None: ``ref`` is a path.
        ref: an id, a label, ``latest``, or an absolute path.
    """

    job: str | None
    ref: str

    def catalog(self, root: str | None) -> Catalog:
        """Return the catalog that resolves ``ref``: the one of the job below ``root``, or one of paths.

        Raises:
            JobNotFound: there is no such job below the root.
        """
        if self.job is None or root is None:
            return Catalog.of_paths(self.ref, storage_of)
        base = absolute(root)
        return Catalog(storage_of(base), existing_job(base, self.job), storage_of)


class CheckpointCommand(TyperCommand):
    """A command whose usage line shows its arguments as they are named, without the marks of a list."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [each for each in self.params if each.param_type_name == "argument"]
        return ["[OPTIONS]", *(str(getattr(each, "metavar", each.name)) for each in arguments)]


def checkpoint_words(*behind: str) -> Any:
    """Return the argument of a command that takes ``[JOB] REF`` and what stands behind them."""
    names = " ".join(("[JOB] REF", *behind))
    return typer.Argument(
        metavar=names,
        help="REF is an id, a label or latest, of JOB; or a path, and JOB may be left out.",
        autocompletion=complete_job,
        show_default=False,
    )


CheckpointWords: TypeAlias = Annotated[list[str], checkpoint_words()]


def checkpoint_named(given: Sequence[str]) -> Reference:
    """Return the checkpoint that the words ``[JOB] REF`` name.

    Raises:
        typer.BadParameter: as :func:`checkpoint_and`.
    """
    return checkpoint_and(given, 0)[0]


def checkpoint_and(given: Sequence[str], behind: int) -> tuple[Reference, list[str]]:
    """Return the checkpoint that the words ``[JOB] REF ...`` name, and the ``behind`` words that stand behind it.

    Raises:
        typer.BadParameter: too many or too few words, or an id or a label without a job.
    """
    first, rest = list(given[: len(given) - behind]), list(given[len(given) - behind :])
    match first:
        case [job, ref]:
            return Reference(job, reference(ref)), rest
        case [ref] if "/" in ref:
            return Reference(None, reference(ref)), rest
        case [word]:
            raise typer.BadParameter(
                plain(f"{word!r} alone is not enough: give the job and an id, a label or latest; or a path")
            )
        case _:
            raise typer.BadParameter(f"expected {behind + 1} or {behind + 2} arguments, not {len(given)}")
