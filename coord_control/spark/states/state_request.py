"""What the command line asks a process with Spark about a state, and what that answers; needs no Spark itself."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

__all__ = ["StateRequest", "StateRows"]


class StateRequest(BaseModel):
    """Asks for rows of a state of Spark, or for how two of them differ.

    Attributes:
        path: the folder of the checkpoint or savepoint.
        operator: the id of Spark's operator.
        state: a side of a join, or a state variable; None for the only one.
        other: the folder to compare with.
        scratch: a folder for temporary files; None for this machine's.
        limit: how many rows at most.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    query: str
    operator: int
    state: str | None
    other: str | None
    scratch: str | None
    limit: int


class StateRows(BaseModel):
    """The answer.

    Attributes:
        rows: each as JSON, by the names of the columns.
        has_more: whether there are more rows.
        counts: of a comparison, how many keys were added, removed and changed.
        problem: why Spark could not load the state; there are no rows then.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: list[dict[str, Any]] = []
    has_more: bool = False
    counts: dict[str, int] = {}
    problem: str | None = None
