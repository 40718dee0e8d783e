"""What the launchpad asks before an action on a streaming job.

Threads: values.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence
from typing import Annotated, Any

import dagster as dg
from pydantic import Field, create_model

from coord_control.ids import MAX_LABEL

__all__ = [
    "ActionConfig",
    "ForkConfig",
    "RefConfig",
    "RestoreConfig",
    "SendConfig",
    "StartConfig",
    "StopConfig",
    "chosen_job",
    "job_choice",
    "with_job",
]

_Timeout = Annotated[
    float, Field(gt=0, description="Seconds that the run waits. What is not done by then goes on without it.")
]
_Ref = Annotated[str, Field(min_length=1, description="Which one: an id, a label, latest, or the path of its folder.")]
_Allow = Annotated[
    bool,
    Field(description="Let queries and operators of the checkpoint be left behind, and new ones begin empty."),
]
_AllowMissing = Annotated[
    bool, Field(description="Restore although files that a source would read again are gone; their rows are lost.")
]
_Verify = Annotated[
    bool, Field(description="Read all files of the checkpoint and compare their checksums, not only their sizes.")
]
_Force = Annotated[
    bool,
    Field(description="Also when the job's last driver ran on a machine that cannot be looked at; it is fenced off."),
]


class ActionConfig(dg.Config):
    """What all actions are told; which job is added for the jobs that there are."""

    timeout_seconds: _Timeout = 600.0


class StartConfig(ActionConfig):
    timeout_seconds: _Timeout = 300.0


class StopConfig(ActionConfig):
    savepoint: bool = Field(default=False, description="Take a savepoint first, and process nothing after it.")
    label: str | None = Field(
        default=None,
        max_length=MAX_LABEL,
        description="A name to find and restore the savepoint by, unique in the job.",
    )
    target: str | None = Field(
        default=None, description="The savepoint's new folder, as the driver's machine sees it; empty: below the job's."
    )
    grace_seconds: float | None = Field(
        default=None, ge=0, description="How long the running epochs may take; not with a savepoint, which awaits them."
    )


class RestoreConfig(ActionConfig):
    ref: _Ref = "latest"
    allow_non_restored_state: _Allow = False
    allow_missing_input: _AllowMissing = False
    start: bool = Field(
        default=False,
        description="Start the job afterwards, if it does not run; one that runs is started again in any case.",
    )
    verify: _Verify = True
    force: _Force = False


class ForkConfig(ActionConfig):
    as_name: str = Field(min_length=1, description="The name of the new job, which goes on beside the original.")
    ref: _Ref = "latest"
    allow_non_restored_state: _Allow = False
    allow_missing_input: _AllowMissing = False
    verify: _Verify = True
    force: _Force = False


class SendConfig(ActionConfig):
    operator: str = Field(description="The uid of the operator.")
    event_type: str = Field(description="One of the event models that the operator declares, by its class name.")
    payload: Any = Field(description="The event: its fields, or the same as JSON text.")
    subtask: int | None = Field(
        default=None, ge=0, description="Empty: all of them, or whatever the operator's coordinator makes of it."
    )


class RefConfig(ActionConfig):
    ref: _Ref


def job_choice(names: Sequence[str], type_name: str) -> Any:
    """The type of a field that names one of these jobs: an enumeration, if Python allows these names in one.

    Dagster takes two enumerations of one name for the same one as long as a process lives, also when definitions are
    loaded anew with other jobs; so its name says which jobs it has.
    """
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:8]
    try:
        choice = enum.Enum(f"{type_name}_{digest}", {name: name for name in names})  # type: ignore[misc] # made here
    except (ValueError, TypeError):  # names that Python keeps for itself, like mro and __init__
        return str
    return choice if len(choice) == len(names) else str


def with_job(config: type[ActionConfig], choice: Any, names: Sequence[str]) -> type[ActionConfig]:
    """The config with the field ``job``; when there is one job only, that is the default."""
    default: Any = ...
    if len(names) == 1:
        default = choice(names[0])
    field = Field(default, description="The streaming job.")
    made: type[ActionConfig] = create_model(config.__name__, __base__=config, job=(choice, field))
    return made


def chosen_job(config: ActionConfig) -> str:
    """The job that a config made by :func:`with_job` names."""
    job: Any = getattr(config, "job")  # noqa: B009 - the field is not in the declared type
    return str(job.value) if isinstance(job, enum.Enum) else str(job)
