"""The configuration of streaming jobs, in YAML or in Python: one set of models for the component and the factory.

Only ``name`` is required; the other fields have defaults that suit most jobs. Nothing here reads the control database.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, Self

import dagster as dg
from pydantic import Field, model_validator

__all__ = [
    "CheckBounds",
    "ControlPlaneSpec",
    "MaterializeSpec",
    "QuerySpec",
    "RetainSpec",
    "ScheduleSpec",
    "StartSpec",
    "StreamingJobSpec",
    "SuperviseSpec",
]

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Label = Annotated[str, Field(max_length=80, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
_Page = Annotated[str, Field(pattern=r"^https?://[^\s?#]+$")]
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def _text(context: dg.ResolutionContext, raw: str) -> str:
    # Dagster evaluates anything that looks like Python, even without a template: "365" would become a number.
    return str(context.resolve_value(raw)) if "{{" in raw or "{%" in raw else raw


def _texts(context: dg.ResolutionContext, raw: list[str]) -> list[str]:
    return [_text(context.at_path(place), each) for place, each in enumerate(raw)]


def _text_by_name(context: dg.ResolutionContext, raw: dict[str, str]) -> dict[str, str]:
    return {name: _text(context.at_path(name), each) for name, each in raw.items()}


_Texts = Annotated[dict[str, str], dg.Resolver(_text_by_name, model_field_type=dict[str, str])]


class StartSpec(dg.Model, dg.Resolvable):
    """How to start a job's driver.

    By default with ``coordctl run --detach SCRIPT``, on the machine that runs Dagster's code location.

    Attributes:
        script: The Python program that runs the job.
        args: Command-line arguments of the script.
        env: Environment variables to add to those of the code location.
        working_directory: Where the script runs. Defaults to the code location's working directory.
        log_file: Where the driver's output goes. Defaults to a new file in the user's state folder for each start.
        launcher: A launcher that starts it elsewhere, as ``module:class`` (docs/operations/launchers.md).
    """

    script: str
    args: Annotated[list[str], dg.Resolver(_texts, model_field_type=list[str])] = Field(default_factory=list)
    env: _Texts = Field(default_factory=dict)
    working_directory: str | None = None
    log_file: str | None = None
    launcher: Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")] | None = None


class RetainSpec(dg.Model, dg.Resolvable):
    """Which savepoints of a schedule to keep: the newest ``count``, and those younger than ``max_age_hours``.

    The newest completed savepoint, and any that is in use, is always kept."""

    count: Annotated[int, Field(ge=1)] | None = None
    max_age_hours: _Positive | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.count is None and self.max_age_hours is None:
            raise ValueError("set count, max_age_hours, or both; leave retain out to keep all savepoints")
        return self


class ScheduleSpec(dg.Model, dg.Resolvable):
    """A schedule that takes checkpoints or savepoints.

    Attributes:
        cron: A cron expression with five fields, or a shortcut such as @hourly.
        kind: What to take.
        name: The name of the schedule. Defaults to one made from the job, the kind and the position in the list.
        timezone: The time zone of ``cron``.
        label: Prefix of the label of each checkpoint or savepoint, before the time of its tick. Defaults to the name
            of the schedule.
        target: The folder in which each savepoint gets its own folder. Defaults to the job's.
        retain: Which savepoints to keep. Defaults to all of them.
        timeout_seconds: How long each run waits for its checkpoint or savepoint.
        running: Whether the schedule is switched on by default.
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
                "retain and target are for savepoints: the job keeps its own checkpoints, as many as its program says "
                "(cc.CheckpointOptions(retained=3)); leave both out, or say kind: savepoint"
            )
        return self


class CheckBounds(dg.Model, dg.Resolvable):
    """The limits at which checks fail; None (null in YAML) switches a check off. Times are in seconds.

    Attributes:
        checkpoint_age: Age of the newest completed checkpoint or savepoint; also the window of the freshness policy.
        failed_in_a_row: Number of checkpoints that failed since the last completed one.
        checkpoint_duration: Duration of the newest completed checkpoint, from trigger to end.
        blocked: How long a gateway was closed during the newest completed checkpoint.
        restarts_per_hour: Restarts within the last hour.
        lag: How far a query's watermark is behind; the check fails only while the lag also grows.
        backlog: Number of records that wait in a query's sources; the check fails only while the backlog also grows.
    """

    checkpoint_age: _Positive | None = 900.0
    failed_in_a_row: Annotated[int, Field(ge=1)] | None = 1
    checkpoint_duration: _Positive | None = 60.0
    blocked: _Positive | None = 30.0
    restarts_per_hour: Annotated[int, Field(ge=1)] | None = 3
    lag: _Positive | None = 300.0
    backlog: Annotated[int, Field(ge=1)] | None = 10_000


class SuperviseSpec(dg.Model, dg.Resolvable):
    """Let Dagster restart a dead driver: for jobs that are not supervised by a ``coordctl run`` elsewhere.

    Attributes:
        max_restarts: Number of restarts within ``within_seconds``, after which the job must be started manually.
        within_seconds: The window in which restarts are counted.
        delay_seconds: Delay after the dead driver's lease has expired; doubled with each restart in the window.
    """

    max_restarts: Annotated[int, Field(ge=1)] = 5
    within_seconds: _Positive = 3600.0
    delay_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 10.0


class MaterializeSpec(dg.Model, dg.Resolvable):
    """When what a query has written is reported as a materialization: after so many epochs or seconds, if there is a
    new epoch.

    Attributes:
        every_epochs: Epochs between two materializations.
        every_seconds: Seconds between two materializations. With both, whatever is over first counts.
    """

    every_epochs: Annotated[int, Field(ge=1)] | None = None
    every_seconds: _Positive | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.every_epochs is None and self.every_seconds is None:
            raise ValueError("set every_epochs, every_seconds, or both; leave materialize out for observations alone")
        return self


class QuerySpec(dg.Model, dg.Resolvable):
    """A streaming query, whose output becomes an external asset.

    Attributes:
        name: The name of the query.
        key: The asset key, such as ``analytics/flights``. Defaults to the translator's.
        description: The description of the asset.
        deps: The keys of the assets that it reads, such as ``kafka/orders``.
        owners: The owners of the asset. Defaults to the job's.
        tags: Tags of the asset, in addition to the job's.
        kinds: Kinds of the asset, such as ``delta``; at most three. Defaults to the job's.
        group: The group of the asset. Defaults to the job's.
        materialize: Report what it has written as materializations, for assets downstream. Without it, its progress is
            only observed.
    """

    name: str
    key: str | None = None
    description: str | None = None
    deps: list[str] = Field(default_factory=list)
    owners: list[str] = Field(default_factory=list)
    tags: _Texts = Field(default_factory=dict)
    kinds: list[str] = Field(default_factory=list, max_length=3)
    group: str | None = None
    materialize: MaterializeSpec | None = None


class StreamingJobSpec(dg.Model, dg.Resolvable):
    """A streaming job.

    Attributes:
        name: The name of the job, as in ``Job(name)``.
        description: Added to the description of the job's assets.
        queries: The queries of the job. Defaults to those in the control database.
        group: The group of the job's assets. Defaults to the translator's.
        owners: The owners of the job's assets.
        tags: Tags of the job's assets.
        start: How to start the driver. Without it, Dagster cannot start the job.
        schedules: Schedules that take checkpoints or savepoints.
        checks: The limits of the asset checks.
        supervise: Restart the driver when it has died. Without it, Dagster never restarts the job by itself.
    """

    name: str
    description: str | None = None
    queries: list[QuerySpec] | None = None
    group: str | None = None
    owners: list[str] = Field(default_factory=list)
    tags: _Texts = Field(default_factory=dict)
    start: StartSpec | None = None
    schedules: list[ScheduleSpec] = Field(default_factory=list)
    checks: CheckBounds = CheckBounds()
    supervise: SuperviseSpec | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not a valid job name: use letters, digits, '_', '-' and '.'")
        if self.supervise is not None and self.start is None:
            raise ValueError("supervise needs start: Dagster must know how to start the job")
        names = [query.name for query in self.queries or ()]
        if len(set(names)) < len(names):
            raise ValueError(f"query names must be unique: {', '.join(names)}")
        labels = [schedule.label for schedule in self.schedules if schedule.label is not None]
        if len(set(labels)) < len(labels):
            raise ValueError(
                f"two schedules of job {self.name!r} have the same label ({', '.join(labels)}): labels must be unique "
                "in a job, and both schedules may tick in the same minute"
            )
        return self


class ControlPlaneSpec(dg.Model, dg.Resolvable):
    """The jobs of one control database.

    Attributes:
        database: The database URL. Defaults to ``COORD_CONTROL``, or else to the user's embedded database.
        page: The address of ``coordctl ui`` as browsers see it, to which assets link. Without it there are no links.
        jobs: The jobs to configure.
        discover: Whether all other jobs in the database get assets too, configured by ``defaults``.
        defaults: The configuration of discovered jobs; its name is ignored.
    """

    database: str | None = None
    page: _Page | None = None
    jobs: list[StreamingJobSpec] = Field(default_factory=list)
    discover: bool = False
    defaults: StreamingJobSpec = StreamingJobSpec(name="default")

    @model_validator(mode="after")
    def _names(self) -> Self:
        names = [job.name for job in self.jobs]
        if len(set(names)) < len(names):
            raise ValueError(f"job names must be unique: {', '.join(sorted(names))}")
        return self
