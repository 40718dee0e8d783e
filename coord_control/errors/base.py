"""The root of the tree, and the error of a state machine that rejects an input."""

from __future__ import annotations

import difflib
import enum

__all__ = ["CoordControlError", "Fault", "InvalidTransition"]


class Fault(enum.Enum):
    """Whose fault an error is."""

    USER = "user"  #: the job's code or its configuration
    EXTERNAL = "external"  #: the network, the storage, another driver
    INTERNAL = "internal"  #: this package: please report it


class CoordControlError(Exception):
    """Base of all errors of this package.

    Attributes:
        fault: whose fault it is.
        retry: whether the same action may succeed if it is simply repeated.
    """

    fault: Fault = Fault.INTERNAL
    retry: bool = False


class InvalidTransition(CoordControlError):
    """A state machine was given an input that its state does not allow; nothing was changed."""

    def __init__(self, machine: str, state: object, input_: object) -> None:
        self.machine, self.state, self.input = machine, state, input_
        super().__init__(
            f"{machine}: input {_name(input_)} is not allowed in state {_name(state)}; nothing was changed"
        )


def _name(value: object) -> str:
    return value.name if isinstance(value, enum.Enum) else str(value)


def known_names(name: str, known: list[str]) -> str:
    """Say which names there are instead of an unknown one, and which is the nearest."""
    near = difflib.get_close_matches(name, known, n=1)
    suggestion = f"; did you mean {near[0]}?" if near else ""
    return f"it has: {', '.join(known)}{suggestion}" if known else "it has none"
