"""Errors of live values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coord_control.errors.base import CoordControlError, Fault, known_names
from coord_control.errors.user import DeclarationError

__all__ = [
    "LiveModelInvalid",
    "LiveValueInvalid",
    "LiveValueNotFound",
    "LiveValuesRefused",
    "LiveVersionChanged",
]


class LiveModelInvalid(DeclarationError):
    """A live value cannot be declared like this."""

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        super().__init__(f"live value {name!r}: {why}")


class LiveValueInvalid(CoordControlError):
    """A live value does not fit its model, and was not changed."""

    fault = Fault.USER

    def __init__(self, name: str, problems: str, fields: Iterable[dict[str, Any]] = ()) -> None:
        self.name, self.problems, self.fields = name, problems, list(fields)
        super().__init__(f"live value {name!r}: {problems}")


class LiveValueNotFound(CoordControlError):
    """The job has declared no live value of this name."""

    fault = Fault.USER

    def __init__(self, name: str, job: str, known: Iterable[str]) -> None:
        self.name, self.job, self.known = name, job, sorted(known)
        super().__init__(f"job {job!r} has no live value {name!r}; {known_names(name, self.known)}")


class LiveVersionChanged(CoordControlError):
    """A live value has another version than the one that was expected, and was not changed."""

    fault = Fault.USER

    def __init__(self, name: str, expected: int, version: int) -> None:
        self.name, self.expected, self.version = name, expected, version
        super().__init__(f"live value {name!r} has version {version}, not {expected}; read it again before changing it")


class LiveValuesRefused(CoordControlError):
    """An epoch asked for live values that it cannot have."""

    fault = Fault.EXTERNAL
    retry = True

    def __init__(self, query: str, epoch: int, why: str) -> None:
        self.query, self.epoch = query, epoch
        super().__init__(f"epoch {epoch} of query {query!r} has no live values: {why}")
