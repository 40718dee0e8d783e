"""Errors of reading states in checkpoints and savepoints."""

from __future__ import annotations

from collections.abc import Iterable

from coord_control.errors.base import Fault, known_names
from coord_control.errors.system import StoreError
from coord_control.errors.user import DeclarationError

__all__ = ["NotInCheckpoint", "ScratchFolderMissing", "StateNotLoaded"]


class NotInCheckpoint(StoreError):
    """A checkpoint or savepoint has no query, operator or state of a name, or several and none was named.

    Attributes:
        known: what there is.
    """

    fault = Fault.USER

    def __init__(self, what: str, name: str | None, owner: str, known: Iterable[str]) -> None:
        self.what, self.name, self.owner, self.known = what, name, owner, list(known)
        if name is None and self.known:
            super().__init__(f"{owner} has more than one {what}; name one of: {', '.join(self.known)}")
            return
        called = "" if name is None else f" {name!r}"
        super().__init__(f"{owner} has no {what}{called}; {known_names(name or '', self.known)}")


class StateNotLoaded(StoreError):
    """Spark could not load a state of a checkpoint or savepoint."""

    def __init__(self, path: str, state: str, problem: str) -> None:
        self.path, self.state, self.problem = path, state, problem
        super().__init__(
            f"Spark could not load {state} of {path}: {problem}; check its files with: coordctl savepoint verify {path}"
        )


class ScratchFolderMissing(DeclarationError):
    """States are to be read on a cluster, and no folder was named that all of its machines reach."""

    def __init__(self, master: str) -> None:
        self.master = master
        super().__init__(
            f"executors of {master} cannot reach a temporary folder of this machine: name a folder that they reach, "
            "such as StateReader(..., scratch='hdfs:///tmp')"
        )
