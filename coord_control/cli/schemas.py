"""What commands share that send an operator what a user has written: its models, JSON, and what does not fit.

Threads: pure functions.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import typer

from coord_control.cli.output import plain
from coord_control.errors import OperatorNotFound
from coord_control.storage.records import JobRecord, OperatorRecord

__all__ = ["fields_text", "operator_of", "parsed_json", "print_problems"]


def operator_of(job: JobRecord, uid: str) -> OperatorRecord:
    """Return an operator of a job.

    Raises:
        OperatorNotFound: it has no such operator; the message suggests similar names.
    """
    known = {operator.uid: operator for operator in job.operators}
    if uid not in known:
        raise OperatorNotFound("operator", uid, f"job {job.name!r}", known, difflib.get_close_matches(uid, known, n=3))
    return known[uid]


def fields_text(schema: Mapping[str, Any]) -> str:
    """Describe the fields of a model; those with a question mark need not be given."""
    required = schema.get("required", ())
    return ", ".join(
        f"{name}: {each.get('type', 'any')}" + ("" if name in required else "?")
        for name, each in schema.get("properties", {}).items()
        if isinstance(each, dict)
    )


def parsed_json(text: str, what: str) -> Any:
    """Return what a user has written as JSON; ``-`` reads it from standard input.

    Raises:
        typer.BadParameter: it is none.
    """
    try:
        return json.loads(sys.stdin.read() if text == "-" else text)
    except ValueError as error:
        raise typer.BadParameter(f"the {what} is not valid JSON ({error}); quote it: '{{\"minutes\": 45}}'") from None


def print_problems(fields: Iterable[Mapping[str, Any]]) -> None:
    """Print to standard error what does not fit, a line for each field."""
    for each in fields:
        typer.echo(plain(f"  {_place(each)}: {each.get('msg', '')}"), err=True)


def _place(field: Mapping[str, Any]) -> str:
    place = field.get("loc", ())
    return ".".join(map(str, place)) if isinstance(place, (list, tuple)) else str(place)
