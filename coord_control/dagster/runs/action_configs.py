"""The configs of the actions on streaming jobs, as shown in the launchpad."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence
from typing import Annotated, Any

import dagster as dg
from pydantic import Field, create_model

from coord_control.ids import MAX_LABEL
from coord_control.launch.promotion import MAX_BACKLOG, READY_SECONDS

__all__ = [
    "ActionConfig",
    "AskConfig",
    "ForkConfig",
    "PromoteConfig",
    "RefConfig",
    "RestoreConfig",
    "SendConfig",
    "SetConfig",
    "StartConfig",
    "StopConfig",
    "UpgradeConfig",
    "chosen_job",
    "job_choice",
    "with_job",
]

_Timeout = Annotated[
    float,
    Field(gt=0, description="Seconds to wait. A request that has been started by then continues without the run."),
]
_Ref = Annotated[
    str,
    Field(min_length=1, description="The checkpoint or savepoint: an id, a label, latest, or the path of its folder."),
]
_Allow = Annotated[
    bool,
    Field(description="Drop the state of queries and operators that the job no longer has, and start new ones empty."),
]
_AllowMissing = Annotated[
    bool, Field(description="Restore even if files that a source would read again are missing; their rows are lost.")
]
_RollBack = Annotated[
    bool,
    Field(description="Set the sinks back to the checkpoint too: Spark's file sink, Delta and Iceberg tables."),
]
_AcceptSkipped = Annotated[
    bool,
    Field(
        description="Restore even if a sink skips epochs that it has received; what they now produce differently is "
        "lost."
    ),
]
_Verify = Annotated[
    bool, Field(description="Read all files of the checkpoint and compare their checksums, not only their sizes.")
]
_Force = Annotated[
    bool,
    Field(description="Proceed even if the last driver's host cannot be checked; the old driver is fenced off."),
]


class ActionConfig(dg.Config):
    """The options of every action; :func:`with_job` adds the choice of the job."""

    timeout_seconds: _Timeout = 600.0


class StartConfig(ActionConfig):
    timeout_seconds: _Timeout = 300.0


class StopConfig(ActionConfig):
    savepoint: bool = Field(default=False, description="Take a savepoint, and stop right after it.")
    label: str | None = Field(
        default=None,
        max_length=MAX_LABEL,
        description="A name by which to find and restore the savepoint; unique in the job.",
    )
    target: str | None = Field(
        default=None,
        description="The folder to create for the savepoint, as a path on the driver's machine. Defaults to one in the "
        "job's folder.",
    )
    drain: bool = Field(
        default=False, description="Read everything that the sources have now, before the savepoint is taken."
    )
    grace_seconds: float | None = Field(
        default=None,
        ge=0,
        description="Seconds that the current epochs may take. Not allowed with a savepoint, which waits for them.",
    )


class RestoreConfig(ActionConfig):
    ref: _Ref = "latest"
    check_only: bool = Field(
        default=False, description="Only check whether it would work, from the job's storage; change nothing."
    )
    allow_non_restored_state: _Allow = False
    allow_missing_input: _AllowMissing = False
    roll_back_sinks: _RollBack = False
    accept_skipped_epochs: _AcceptSkipped = False
    start: bool = Field(
        default=False,
        description="Start the job afterwards if it is not running. A running job is always restarted.",
    )
    verify: _Verify = True
    force: _Force = False


class UpgradeConfig(ActionConfig):
    timeout_seconds: Annotated[
        float, Field(gt=0, description="Seconds that a program may take until all of its queries run.")
    ] = 300.0
    verify_seconds: float = Field(
        default=600.0, ge=0, description="Seconds that the new program is watched before it counts as healthy."
    )
    rollback: bool = Field(
        default=True, description="Go back to the old program and the savepoint if the new one fails."
    )
    accept_idle: bool = Field(default=False, description="A query without input needs no new epoch.")
    allow_non_restored_state: _Allow = False


class ForkConfig(ActionConfig):
    as_name: str = Field(min_length=1, description="The name of the new job, which can run next to the original.")
    ref: _Ref = "latest"
    allow_non_restored_state: _Allow = False
    allow_missing_input: _AllowMissing = False
    verify: _Verify = True
    force: _Force = False


class PromoteConfig(ActionConfig):
    timeout_seconds: Annotated[float, Field(gt=0, description="Seconds that the fork may take to be ready.")] = (
        READY_SECONDS
    )
    max_backlog: int = Field(
        default=MAX_BACKLOG,
        ge=0,
        description="Records that may wait for a query that the parent has too, unless about as many wait for that.",
    )
    check_only: bool = Field(default=False, description="Only look at the fork, once; change nothing.")
    parent: str | None = Field(
        default=None,
        description="The job that is to stop. Needed only if the control database does not know what the fork was "
        "restored from.",
    )


class SendConfig(ActionConfig):
    operator: str = Field(description="The uid of the operator.")
    event_type: str = Field(description="The class name of an event model that the operator declares.")
    payload: Any = Field(description="The fields of the event, as an object or as JSON text.")
    subtask: int | None = Field(
        default=None,
        ge=0,
        description="The subtask to send to. Default: all, unless the operator's coordinator handles it.",
    )


class SetConfig(ActionConfig):
    name: str = Field(description="The name of the live value.")
    fields: Any = Field(description="The fields to change, as an object or as JSON text.")
    expect: int | None = Field(default=None, ge=1, description="Change it only if it has this version. Default: any.")


class AskConfig(ActionConfig):
    timeout_seconds: _Timeout = 30.0
    operator: str = Field(description="The uid of the operator.")
    request: str = Field(description="The class name of a request that the operator declares, or CommittedStates.")
    payload: Any = Field(default={}, description="The fields of the request, as an object or as JSON text.")


class RefConfig(ActionConfig):
    ref: _Ref


def job_choice(names: Sequence[str], type_name: str) -> Any:
    """Return the type of a field that names one of these jobs: an enum, or str if an enum cannot have these names.

    A Dagster process treats two enums of the same name as identical, even after definitions were reloaded with other
    jobs, so the enum's name contains a digest of the job names.
    """
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:8]
    try:
        choice = enum.Enum(f"{type_name}_{digest}", {name: name for name in names})  # type: ignore[misc] # made here
    except (ValueError, TypeError):  # reserved names such as mro and __init__
        return str
    return choice if len(choice) == len(names) else str


def with_job(config: type[ActionConfig], choice: Any, names: Sequence[str]) -> type[ActionConfig]:
    """Return the config with an added field ``job``; if there is only one job, it is the default."""
    default: Any = ...
    if len(names) == 1:
        default = choice(names[0])
    field = Field(default, description="The streaming job.")
    made: type[ActionConfig] = create_model(config.__name__, __base__=config, job=(choice, field))
    return made


def chosen_job(config: dg.Config) -> str:
    """Return the job that a config made by :func:`with_job` names."""
    job: Any = getattr(config, "job")  # noqa: B009 - the field is not in the declared type
    return str(job.value) if isinstance(job, enum.Enum) else str(job)
