"""Errors of requests, of the commands that drivers execute, and of servers that cannot start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from coord_control.errors.base import CoordControlError, Fault

__all__ = [
    "CommandCancelled",
    "CommandExpired",
    "CommandFailed",
    "CommandRefused",
    "CommandTimeout",
    "ControlEventRefused",
    "ControlSettingsInvalid",
    "MetricsAddressInvalid",
    "NoControlPlane",
    "OperatorNotFound",
    "PackageMissing",
    "PageSettingsInvalid",
    "RequestInvalid",
]


class ControlSettingsInvalid(CoordControlError):
    """Environment variables or options of the control plane are invalid."""

    fault = Fault.USER

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__(
            f"the settings of the control plane (COORD_CONTROL...) are invalid: {'; '.join(self.problems)}"
        )


class NoControlPlane(CoordControlError):
    """No control database is configured."""

    fault = Fault.USER

    def __init__(self) -> None:
        super().__init__(
            "the control plane is switched off (its address is 'none'): name the job's control database with --control "
            "or COORD_CONTROL"
        )


class RequestInvalid(CoordControlError):
    """A request is invalid; it was not sent."""

    fault = Fault.USER

    def __init__(self, kind: str, problems: Iterable[str]) -> None:
        self.kind, self.problems = kind, list(problems)
        super().__init__(f"{kind.replace('_', ' ')}: {'; '.join(self.problems)}; nothing was sent")


class OperatorNotFound(CoordControlError):
    """A request names an operator, or an event type of it, that the job does not declare; it was not sent."""

    fault = Fault.USER

    def __init__(self, what: str, name: str, owner: str, known: Iterable[str], near: Iterable[str]) -> None:
        self.what, self.name, self.owner = what, name, owner
        self.known, self.near = list(known), list(near)
        suggestion = f"; did you mean {' or '.join(self.near)}?" if self.near else ""
        super().__init__(f"{owner} has no {what} {name!r}, only {self.known or 'none'}{suggestion}")


class CommandFailed(CoordControlError):
    """A command did not succeed.

    Attributes:
        command: its id.
        code: the reason, as a code: a :class:`~coord_control.control.commands.Refusal`, or a checkpoint's failure
            reason.
        fields: pydantic's errors of single fields of the payload: ``loc``, ``msg``.
    """

    fault = Fault.EXTERNAL
    _what = "failed"

    def __init__(
        self,
        command: str,
        kind: str,
        code: str,
        message: str,
        *,
        fault: Fault = Fault.EXTERNAL,
        retry: bool = False,
        fields: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        self.command, self.kind, self.code, self.message = command, kind, code, message
        self.fault, self.retry, self.fields = fault, retry, tuple(fields)
        super().__init__(f"{kind.replace('_', ' ')} {self._what} ({code}): {message}")


class CommandRefused(CommandFailed):
    """The driver refused a command; nothing was changed."""

    _what = "was refused"


class ControlEventRefused(CommandRefused):
    """The payload of a control event does not match the declared model; ``fields`` has the details."""


class CommandExpired(CommandFailed):
    """No driver picked up a command in time; nothing was changed."""

    _what = "has expired"


class CommandCancelled(CommandFailed):
    """A command was cancelled before it completed."""

    _what = "was cancelled"


class MetricsAddressInvalid(CoordControlError):
    """The metrics address is invalid."""

    fault = Fault.USER

    def __init__(self, address: str) -> None:
        self.address = address
        super().__init__(
            f"metrics cannot be served at {address!r}: give HOST:PORT, for example 127.0.0.1:9404, or none"
        )


class PackageMissing(CoordControlError):
    """The package of an extra is not installed."""

    fault = Fault.USER

    def __init__(self, what: str, package: str, extra: str) -> None:
        self.what, self.package, self.extra = what, package, extra
        super().__init__(f"{what} needs the package {package}: pip install 'coord-control[{extra}]'")


class PageSettingsInvalid(CoordControlError):
    """The settings of the web page are invalid; the message names valid ones."""

    fault = Fault.USER


class CommandTimeout(CoordControlError):
    """Waiting for a command timed out; the command itself is not cancelled."""

    fault = Fault.EXTERNAL
    retry = True

    def __init__(self, command: str, kind: str, state: str, seconds: float) -> None:
        self.command, self.kind, self.state, self.seconds = command, kind, state, seconds
        super().__init__(
            f"{kind.replace('_', ' ')} is still {state} after {seconds:g} s and continues: check it with coordctl "
            f"command show {command}, or cancel it with coordctl command cancel {command}"
        )
