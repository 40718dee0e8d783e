"""What a user writes about streaming jobs, in YAML or in Python: one set of models for the component and the factory.

Only ``name`` is needed; everything else has the default that suits a job one knows nothing about. Nothing here reaches
the control database.

Threads: values.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, Self

import dagster as dg
from pydantic import Field, model_validator

__all__ = [
    "CheckBounds",
    "ControlPlaneSpec",
    "QuerySpec",
    "RetainSpec",
    "ScheduleSpec",
    "StartSpec",
    "StreamingJobSpec",
    "SuperviseSpec",
]

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Label = Annotated[str, Field(max_length=80, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def _text(context: dg.ResolutionContext, raw: str) -> str:
    # Dagster evaluates what looks like Python, also without a template: "365" would become a number.
    return str(context.resolve_value(raw)) if "{{" in raw or "{%" in raw else raw


def _texts(context: dg.ResolutionContext, raw: list[str]) -> list[str]:
    return [_text(context.at_path(place), each) for place, each in enumerate(raw)]


def _text_by_name(context: dg.ResolutionContext, raw: dict[str, str]) -> dict[str, str]:
    return {name: _text(context.at_path(name), each) for name, each in raw.items()}


class StartSpec(dg.Model, dg.Resolvable):
    """How the driver of a job is started: ``coordctl run --detach SCRIPT``, on the machine of Dagster's code location.

    Attributes:
        script: the Python program that makes the job.
        args: its arguments.
        env: variables on top of those of the code location.
        working_directory: None: the code location's.
        log_file: None: one below the user's state folder for each start.
    """

    script: str
    args: Annotated[list[str], dg.Resolver(_texts, model_field_type=list[str])] = Field(default_factory=list)
    env: Annotated[dict[str, str], dg.Resolver(_text_by_name, model_field_type=dict[str, str])] = Field(
        default_factory=dict
    )
    working_directory: str | None = None
    log_file: str | None = None


class RetainSpec(dg.Model, dg.Resolvable):
    """Which savepoints of a schedule stay: those that are among the newest ``count``, or are younger than
    ``max_age_hours``. The newest completed one, and one that is in use, always stays."""

    count: Annotated[int, Field(ge=1)] | None = None
    max_age_hours: _Positive | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.count is None and self.max_age_hours is None:
            raise ValueError("say count, max_age_hours, or both; leave retain out to keep all of them")
        return self


class ScheduleSpec(dg.Model, dg.Resolvable):
    """Checkpoints or savepoints by the clock.

    Attributes:
        cron: five fields, or @hourly and the like.
        name: None: made of the job, the kind, and its place in the list.
        label: what the label of each checkpoint or savepoint begins with, before the time of its tick; None: the name
            of the schedule.
        target: the folder below which each savepoint gets a folder of its own; None: the job's.
        retain: None: nothing is ever removed.
        running: the schedule runs without anybody having to switch it on.
    """

    cron: str
    kind: Literal["checkpoint", "savepoint"] = "savepoint"
    name: str | None = None
    timezone: str = "UTC"
    label: _Label | None = None
    target: str | None = None
    retain: RetainSpec | None = None
    timeout_seconds: _Positive = 600.0
    running: bool = False

    @model_validator(mode="after")
    def _is_of_savepoints(self) -> Self:
        if self.kind == "checkpoint" and (self.retain or self.target):
            raise ValueError(
                "checkpoints are retained by the job itself, in its own folder: leave out retain and target"
            )
        return self


class CheckBounds(dg.Model, dg.Resolvable):
    """When a check says that something is wrong; None switches it off. Times are seconds.

    Attributes:
        checkpoint_age: of the newest completed checkpoint or savepoint; also the bound of its freshness policy.
        failed_in_a_row: so many checkpoints failed since the last completed one.
        checkpoint_duration: of the newest completed one, from trigger to end.
        blocked: how long a gateway was closed in the newest completed one.
        restarts_per_hour: recoveries within the last hour.
        lag: how far a watermark is behind, and growing.
    """

    checkpoint_age: _Positive | None = 900.0
    failed_in_a_row: Annotated[int, Field(ge=1)] | None = 1
    checkpoint_duration: _Positive | None = 60.0
    blocked: _Positive | None = 30.0
    restarts_per_hour: Annotated[int, Field(ge=1)] | None = 3
    lag: _Positive | None = 300.0


class SuperviseSpec(dg.Model, dg.Resolvable):
    """A dead driver is started again by Dagster: for jobs that no ``coordctl run`` elsewhere looks after.

    Attributes:
        max_restarts: within ``within_seconds``; then it is left alone until somebody starts it.
        delay_seconds: after the lease of the dead driver has ended; doubled with each restart within the window.
    """

    max_restarts: Annotated[int, Field(ge=1)] = 5
    within_seconds: _Positive = 3600.0
    delay_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 10.0


class QuerySpec(dg.Model, dg.Resolvable):
    """One streaming query, which becomes an external asset: what it writes.

    Attributes:
        key: of the asset, like ``analytics/flights``; None: the translator's.
    """

    name: str
    key: str | None = None
    description: str | None = None


class StreamingJobSpec(dg.Model, dg.Resolvable):
    """One streaming job.

    Attributes:
        name: as in ``Job(name)``.
        queries: None: those that it is known to have.
        group: of its assets; None: the translator's.
        tags: of its assets.
        start: None: Dagster cannot start it.
        supervise: None: Dagster does not start it by itself.
    """

    name: str
    description: str | None = None
    queries: list[QuerySpec] | None = None
    group: str | None = None
    owners: list[str] = Field(default_factory=list)
    tags: dict[str, str] = Field(default_factory=dict)
    start: StartSpec | None = None
    schedules: list[ScheduleSpec] = Field(default_factory=list)
    checks: CheckBounds = CheckBounds()
    supervise: SuperviseSpec | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no name of a job: letters, digits, '_', '-' and '.'")
        if self.supervise is not None and self.start is None:
            raise ValueError("supervise needs start: Dagster must know how to start the job")
        names = [query.name for query in self.queries or ()]
        if len(set(names)) < len(names):
            raise ValueError(f"a query is named twice: {', '.join(names)}")
        labels = [schedule.label for schedule in self.schedules if schedule.label is not None]
        if len(set(labels)) < len(labels):
            raise ValueError(
                f"two schedules of job {self.name!r} have one label ({', '.join(labels)}): labels are unique in a job, "
                "and both may tick in the same minute"
            )
        return self


class ControlPlaneSpec(dg.Model, dg.Resolvable):
    """The jobs of one control database.

    Attributes:
        database: its address; None: as ``COORD_CONTROL`` says, or the user's embedded one.
        jobs: those of which there is something to say.
        discover: all other jobs of the database get assets as well, with ``defaults``.
        defaults: for discovered jobs; its name does not matter.
    """

    database: str | None = None
    jobs: list[StreamingJobSpec] = Field(default_factory=list)
    discover: bool = False
    defaults: StreamingJobSpec = StreamingJobSpec(name="default")

    @model_validator(mode="after")
    def _names(self) -> Self:
        names = [job.name for job in self.jobs]
        if len(set(names)) < len(names):
            raise ValueError(f"a job is named twice: {', '.join(sorted(names))}")
        return self
