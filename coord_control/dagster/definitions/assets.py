"""The assets of a job: the output of its queries, its checkpoints, and its savepoints.

The output of a query is an external asset: the job writes it, Dagster shows and observes it. A materialization of the
other two is a completed checkpoint or savepoint: materializing the asset requests one from the job and waits for it.
Checkpoints that were requested elsewhere are reported by the sensor.
"""

# Without "from __future__ import annotations": Dagster reads the types of a step's arguments, and not as text.

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, ParamSpec, TypeAlias, TypeVar

import dagster as dg
from pydantic import Field

import coord_control as cc
from coord_control.control.commands import (
    CheckpointResult,
    Command,
    StopResult,
    StopWithSavepoint,
    TriggerCheckpoint,
    TriggerSavepoint,
    requested,
)
from coord_control.dagster.definitions.schedules import find_schedule
from coord_control.dagster.links import link_entries
from coord_control.dagster.metadata import NAMESPACE, Metadata, checkpoint_metadata, entries
from coord_control.dagster.resource import ControlPlaneResource
from coord_control.dagster.runs.job_run import OnCancel, action_failure, actor_of, attend
from coord_control.dagster.runs.own_runs import SCHEDULE_TAG
from coord_control.dagster.runs.savepoint_retention import dispose_old
from coord_control.dagster.spec import QuerySpec, StreamingJobSpec
from coord_control.dagster.translator import StreamingJobTranslator
from coord_control.errors import CoordControlError
from coord_control.ids import MAX_LABEL

__all__ = ["CheckpointConfig", "SavepointConfig", "build_assets"]

_P = ParamSpec("_P")
_C = TypeVar("_C", bound=Command[Any])
_Purpose: TypeAlias = Literal["checkpoint", "savepoint"]

#: The `coordctl` subcommands to show for each asset.
_VERBS: Final[Mapping[_Purpose, Sequence[str]]] = {
    "checkpoint": ("trigger", "list", "summary"),
    "savepoint": ("create", "list"),
}
#: The shortest window that Dagster allows.
_SHORTEST_WINDOW: Final = timedelta(seconds=60)


class CheckpointConfig(dg.Config):
    """Options of a checkpoint, in the launchpad."""

    label: str | None = Field(
        default=None, max_length=MAX_LABEL, description="A name by which to find and restore it; unique in the job."
    )
    timeout_seconds: Annotated[float, Field(gt=0)] = Field(
        default=600.0, description="Seconds to wait. A request that has been started by then continues without the run."
    )
    on_cancel: OnCancel = Field(
        default="abort",
        description="What to do if the run is cancelled: 'abort' the request, or wait for it to 'finish'.",
    )
    note: str | None = Field(
        default=None, description="Free text stored with the materialization, such as its purpose or its event time."
    )


class SavepointConfig(CheckpointConfig):
    """Options of a savepoint, in the launchpad."""

    target: str | None = Field(
        default=None,
        description="The folder to create, as a path on the driver's machine. Defaults to one in the job's folder.",
    )
    stop: bool = Field(default=False, description="Stop the job right after the savepoint.")


def build_assets(
    jobs: Sequence[StreamingJobSpec],
    translator: StreamingJobTranslator,
    *,
    database: str | None = None,
    page: str | None = None,
) -> list[dg.AssetSpec | dg.AssetsDefinition]:
    """Return the assets of all jobs.

    Args:
        database: the database URL to show, without a password.
        page: the address of ``coordctl ui``, to link to.
    """
    return [asset for job in jobs for asset in _of_job(job, translator, _Places(database, page))]


@dataclass(frozen=True, slots=True)
class _Places:
    """What all definitions show: the address of the control database, and that of ``coordctl ui``."""

    database: str | None
    page: str | None


def _of_job(
    job: StreamingJobSpec, translator: StreamingJobTranslator, places: _Places
) -> list[dg.AssetSpec | dg.AssetsDefinition]:
    queries = [_query(job, query, translator, places) for query in job.queries or ()]
    keys = [query.key for query in queries]
    return [
        *queries,
        _checkpoint(job, translator, _taken(job, "checkpoint", keys, translator, places), places),
        _savepoint(job, translator, _taken(job, "savepoint", keys, translator, places), places),
    ]


def _query(
    job: StreamingJobSpec, query: QuerySpec, translator: StreamingJobTranslator, places: _Places
) -> dg.AssetSpec:
    return dg.AssetSpec(
        translator.query_key(job, query),
        description=query.description or f"The output of the query {query.name} of the streaming job {job.name}.",
        deps=[dg.AssetKey.from_user_string(key) for key in query.deps],
        metadata={f"{NAMESPACE}query": query.name, **_shown(job, places)},
        **_looks_of_query(_looks(job, translator), query),
    )


def _taken(
    job: StreamingJobSpec,
    purpose: _Purpose,
    queries: Sequence[dg.AssetKey],
    translator: StreamingJobTranslator,
    places: _Places,
) -> dg.AssetSpec:
    is_checkpoint = purpose == "checkpoint"
    about = (
        f"Checkpoints of the streaming job {job.name}, to restore it from. The job takes one on request, and regularly "
        "if its program sets an interval; it keeps the newest and removes older ones. Restarts do not need them: a "
        "restarted job resumes where it stopped."
        if is_checkpoint
        else f"Savepoints of the streaming job {job.name}, to restore it or to fork another job from. They are kept "
        "until you remove them. Schedules remove only the savepoints that they have taken."
    )
    return dg.AssetSpec(
        translator.checkpoint_key(job) if is_checkpoint else translator.savepoint_key(job),
        deps=queries,
        description="\n\n".join(filter(None, [about, "Materialize it to take one now.", job.description])),
        metadata={f"{NAMESPACE}howto": _howto(job, purpose), **_shown(job, places)},
        freshness_policy=_freshness(job) if is_checkpoint else None,
        **_looks(job, translator),
    )


def _looks(job: StreamingJobSpec, translator: StreamingJobTranslator) -> dict[str, Any]:
    return {
        "group_name": translator.group(job),
        "owners": list(translator.owners(job)),
        "tags": dict(translator.tags(job)),
        "kinds": translator.kinds(job),
    }


def _looks_of_query(looks: Mapping[str, Any], query: QuerySpec) -> dict[str, Any]:
    return {
        "group_name": query.group or looks["group_name"],
        "owners": query.owners or looks["owners"],
        "tags": {**looks["tags"], **query.tags},
        "kinds": set(query.kinds) or looks["kinds"],
    }


def _shown(job: StreamingJobSpec, places: _Places) -> Mapping[str, Any]:
    database = {f"{NAMESPACE}database": places.database} if places.database else {}
    return {f"{NAMESPACE}job": job.name, **database, **entries(link_entries(job.name, None, page=places.page))}


def _howto(job: StreamingJobSpec, purpose: _Purpose) -> dg.MetadataValue[Any]:
    commands = "\n".join(f"coordctl {purpose} {verb} {job.name}" for verb in _VERBS[purpose])
    return dg.MetadataValue.md(f"```sh\n{commands}\n```")


def _freshness(job: StreamingJobSpec) -> dg.FreshnessPolicy | None:
    age = job.checks.checkpoint_age
    if age is None:
        return None
    return dg.FreshnessPolicy.time_window(fail_window=max(timedelta(seconds=age), _SHORTEST_WINDOW))


def _checkpoint(
    job: StreamingJobSpec, translator: StreamingJobTranslator, spec: dg.AssetSpec, places: _Places
) -> dg.AssetsDefinition:
    @dg.multi_asset(
        name=translator.name(job, "checkpoint"), specs=[spec], retry_policy=translator.retry_policy(job, "checkpoint")
    )
    def checkpoint(
        context: dg.AssetExecutionContext, config: CheckpointConfig, control_plane: ControlPlaneResource
    ) -> Iterator[dg.MaterializeResult[Any]]:
        with _client(context, control_plane) as client:
            command = _requested(TriggerCheckpoint, label=config.label)
            yield from _take(context, client, job, translator, command, config, places)

    return checkpoint


def _savepoint(
    job: StreamingJobSpec, translator: StreamingJobTranslator, spec: dg.AssetSpec, places: _Places
) -> dg.AssetsDefinition:
    @dg.multi_asset(
        name=translator.name(job, "savepoint"), specs=[spec], retry_policy=translator.retry_policy(job, "savepoint")
    )
    def savepoint(
        context: dg.AssetExecutionContext, config: SavepointConfig, control_plane: ControlPlaneResource
    ) -> Iterator[dg.MaterializeResult[Any]]:
        with _client(context, control_plane) as client:
            if config.stop:
                stop = _requested(StopWithSavepoint, target=config.target, label=config.label)
                yield from _take(context, client, job, translator, stop, config, places)
            else:
                command = _requested(TriggerSavepoint, target=config.target, label=config.label)
                yield from _take(context, client, job, translator, command, config, places)

    return savepoint


def _client(context: dg.AssetExecutionContext, control_plane: ControlPlaneResource) -> cc.ControlClient:
    try:
        return control_plane.client(actor_of(context))
    except CoordControlError as error:
        raise action_failure(error) from error


def _requested(kind: Callable[_P, _C], *args: _P.args, **fields: _P.kwargs) -> _C:
    try:
        return requested(kind, *args, **fields)
    except CoordControlError as error:
        raise action_failure(error) from error


def _take(
    context: dg.AssetExecutionContext,
    client: cc.ControlClient,
    job: StreamingJobSpec,
    translator: StreamingJobTranslator,
    command: Command[Any],
    config: CheckpointConfig,
    places: _Places,
) -> Iterator[dg.MaterializeResult[Any]]:
    followed = attend(
        context, client, job.name, command, timeout_seconds=config.timeout_seconds, on_cancel=config.on_cancel
    )
    made = followed.result.savepoint if isinstance(followed.result, StopResult) else followed.result
    assert isinstance(made, CheckpointResult), "all of these commands take a checkpoint or savepoint"
    context.log.info(f"{made.kind} {made.checkpoint} is complete: {made.path}")
    try:
        metadata = _metadata(client, job.name, made, config.note, places.page)
    except CoordControlError as error:
        raise action_failure(error) from error
    if not followed.is_cancelled:
        metadata |= _retained(context, client, job, translator)
    yield dg.MaterializeResult(metadata=metadata)
    if followed.is_cancelled:
        # It completed before it could be aborted: report it, and still end the run as cancelled.
        raise dg.DagsterExecutionInterruptedError("the run was cancelled; its request had already completed")


def _metadata(
    client: cc.ControlClient, job: str, made: CheckpointResult, note: str | None, page: str | None
) -> Metadata:
    found = client.checkpoint_report(job, made.checkpoint)
    links = entries(link_entries(job, found.job, page=page, checkpoint=made.checkpoint))
    return links | checkpoint_metadata(
        found.checkpoint,
        found.subtasks,
        job=found.job,
        recovery=found.last_recovery,
        sequence=found.checkpoint.sequence,
        note=note,
    )


def _retained(
    context: dg.AssetExecutionContext,
    client: cc.ControlClient,
    job: StreamingJobSpec,
    translator: StreamingJobTranslator,
) -> Metadata:
    """Remove the savepoints that the schedule of this run does not retain, if a schedule launched it."""
    name = context.run.tags.get(SCHEDULE_TAG)
    schedule = None if name is None else find_schedule(job, name, translator)
    if name is None or schedule is None or schedule.retain is None:
        return {}
    gone = dispose_old(context, client, job.name, name, schedule.retain)
    return {f"{NAMESPACE}disposed": dg.MetadataValue.json(gone)}
