"""What every kind of command has: a payload, a result, an execution, and a rule for the driver that takes it over.

A client sends a payload; the driver reports progress, and a result once the command is completed. Lengths are limited
by the payload's model, before anything is written to the database, and checked again when it is read: a table that
others can write to is untrusted input.

How far a driver that died had got with a command is unknown. So each kind can either be repeated, or leaves a trace:
checkpoints and restores the command's key on the storage, events their number, and the end of a driver the mere fact
that another one is running. Times of different clocks are never compared: a restore records its key and its generation,
and a command expires by the database's clock alone.
"""

from __future__ import annotations

import abc
import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Generic, ParamSpec, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from coord_control.control.execution.checkpoint_execution import CheckpointResult
from coord_control.control.execution.driver_port import DriverPort
from coord_control.control.execution.execution import Execution, Workplace
from coord_control.control.execution.outcomes import CommandResult
from coord_control.errors import RequestInvalid
from coord_control.ids import MAX_LABEL, CheckpointKind
from coord_control.storage.records import CommandKind, CommandRecord, JobRecord, Outcome

__all__ = [
    "MAX_PATH",
    "Again",
    "Command",
    "CommandProgress",
    "EndJob",
    "Label",
    "Name",
    "Path",
    "Takeover",
    "requested",
]

MAX_PATH: Final = 4096
_MAX_NAME: Final = 256

Label: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MAX_LABEL)]
Path: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MAX_PATH)]
Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=_MAX_NAME)]


@dataclass(frozen=True, slots=True)
class Again:
    """Carry the command out as if it had just been claimed."""


@dataclass(frozen=True, slots=True)
class EndJob:
    """End the job, because the driver that was stopping it died before it had finished.

    Attributes:
        savepoint: the savepoint that the driver had taken before.
    """

    savepoint: CheckpointResult | None = None


#: What a driver does with a command that an older one had claimed and not finished.
Takeover: TypeAlias = Outcome | Again | EndJob

R_co = TypeVar("R_co", bound=CommandResult, covariant=True)


class Command(BaseModel, abc.ABC, Generic[R_co]):
    """A request to a driver. A subclass is a kind of command; its fields are the payload.

    Attributes:
        result: the model of the result.
        takes: what the command takes, if it takes a checkpoint or savepoint. Then it can be cancelled while it does.
        reads: whether it needs the files of the checkpoint or savepoint that its ``ref`` names until it ends.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: ClassVar[CommandKind]
    result: ClassVar[type[CommandResult]]
    takes: ClassVar[CheckpointKind | None] = None
    reads: ClassVar[bool] = False

    @abc.abstractmethod
    def execution(self, command: CommandRecord, place: Workplace) -> Execution | None:
        """Return what carries the command out, or None if the event queue does."""

    def take_over(self, command: CommandRecord, port: DriverPort, now: datetime.datetime) -> Takeover:
        """Decide what to do with the command if an older driver had claimed it. By default it is carried out again.

        Args:
            now: the time by the clock of the database.

        Raises:
            StoreUnavailable: the storage cannot be read; try again later.
        """
        return Again()

    def check(self, job: str, read: Callable[[str], JobRecord]) -> None:
        """Raise if the client can tell that the job would refuse the command.

        Args:
            read: returns what the database knows of a job.
        """

    @property
    def ends_job(self) -> bool:
        """Return whether the job ends for it: such commands are carried out one after the other, in their order."""
        return False

    @property
    def recipient(self) -> str | None:
        """Return the operator to which the command is addressed, if any."""
        return None


class CommandProgress(BaseModel):
    """The progress of a command. Any field may be missing, depending on the kind and the phase."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    message: str = ""  #: one human-readable sentence
    checkpoint: int | None = None
    subtasks: int | None = None
    passed_subtasks: int | None = None  #: those that have passed the boundary
    blocked_events: int | None = None
    stage: str | None = None  #: of a control event: see EventStage
    sent_to: tuple[int, ...] | None = None  #: of a control event that was applied


_P = ParamSpec("_P")
_C = TypeVar("_C", bound=Command[Any])


def requested(kind: Callable[_P, _C], *args: _P.args, **fields: _P.kwargs) -> _C:
    """Return a command of a kind, with these fields.

    Raises:
        RequestInvalid: a field is invalid.
    """
    try:
        return kind(*args, **fields)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}".lstrip(": ") for each in error.errors()]
        raise RequestInvalid(getattr(kind, "kind").value, problems) from error  # noqa: B009 - a callable, for mypy
