"""How a change in the control database becomes asset events in Dagster, and how an event is recognized.

    checkpoint, savepoint completed   materialization of its asset
    checkpoint, savepoint failed      observation of its asset
    a query recovered                 observation of the checkpoint asset, and of the query's

An event is recognized by its content, not by its number in the log of changes: if a job's history was lost, it is
written again from the job's storage, with new numbers. A checkpoint is identified by its id and its trigger time,
because ids start again at 1 if the job's folder is emptied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

import dagster as dg

from coord_control.dagster.links import link_entries
from coord_control.dagster.metadata import (
    NAMESPACE,
    checkpoint_metadata,
    entries,
    failure_metadata,
    recovery_metadata,
)
from coord_control.dagster.spec import QuerySpec, StreamingJobSpec
from coord_control.dagster.translator import StreamingJobTranslator
from coord_control.storage.records import (
    Change,
    CheckpointKind,
    CheckpointState,
    JobOverview,
    RecoveryRecord,
    SubtaskRecord,
)

__all__ = ["AssetEvent", "AssetFact", "Identity", "JobAssets", "facts_of", "happened_at", "identity_in"]

AssetEvent: TypeAlias = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation

#: The trigger time comes from the storage or from the driver's statistics, which may differ slightly.
_SAME_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Identity:
    """What identifies an event: its subject, ``what``, and when it happened, in seconds since 1970."""

    what: tuple[str | int, ...]
    at: float

    def is_same(self, other: Identity) -> bool:
        """Return whether both identify the same event."""
        tolerance = 0.001 if self.what[0] == "recovery" else _SAME_SECONDS
        return self.what == other.what and abs(self.at - other.at) <= tolerance


@dataclass(frozen=True, slots=True)
class JobAssets:
    """The assets of a job."""

    spec: StreamingJobSpec
    checkpoint: dg.AssetKey
    savepoint: dg.AssetKey
    queries: Mapping[str, dg.AssetKey]
    page: str | None = None  #: the address of ``coordctl ui``

    @classmethod
    def of(cls, job: StreamingJobSpec, translator: StreamingJobTranslator, *, page: str | None = None) -> JobAssets:
        """Return the assets of a job, with the translator's keys."""
        queries: Sequence[QuerySpec] = job.queries or ()
        return cls(
            job,
            translator.checkpoint_key(job),
            translator.savepoint_key(job),
            {query.name: translator.query_key(job, query) for query in queries},
            page,
        )


@dataclass(frozen=True, slots=True)
class AssetFact:
    """An event of an asset that a change leads to; Dagster may have it already."""

    change: Change
    asset: dg.AssetKey
    identity: Identity
    page: str | None = None  #: the address of ``coordctl ui``

    @property
    def is_materialization(self) -> bool:
        """Return whether this is a completed checkpoint or savepoint."""
        return self.identity.what[0] == "checkpoint"

    def event(
        self, subtasks: Mapping[tuple[str, int], Sequence[SubtaskRecord]], overview: JobOverview | None
    ) -> AssetEvent:
        """Return the Dagster event.

        Args:
            subtasks: the subtasks of the finished checkpoints, by job and id.
            overview: the state of the job, or None if it is gone.
        """
        sequence, record = self.change.sequence, self.change.checkpoint
        job = None if overview is None else overview.job
        checkpoint = None if record is None else record.id
        links = entries(link_entries(self.change.job, job, page=self.page, checkpoint=checkpoint))
        if record is None:
            assert self.change.recovery is not None, "a change is one of the two"
            return dg.AssetObservation(
                self.asset,
                description=self.change.recovery.what or None,
                metadata=recovery_metadata(self.change.recovery, sequence=sequence) | links,
            )
        parts = subtasks.get((record.job, record.id), ())
        if not self.is_materialization:
            text = f"{record.kind.value} {record.id} failed: {record.message or record.reason or 'unknown reason'}"
            metadata = failure_metadata(record, parts, sequence=sequence) | links
            return dg.AssetObservation(self.asset, description=text, metadata=metadata)
        metadata = checkpoint_metadata(
            record,
            parts,
            job=job,
            recovery=None if overview is None else overview.last_recovery,
            sequence=sequence,
            reported_by="sensor",
        )
        return dg.AssetMaterialization(self.asset, description=record.label, metadata=metadata | links)


def facts_of(change: Change, assets: JobAssets) -> tuple[AssetFact, ...]:
    """Return the events that a change leads to."""
    if (record := change.checkpoint) is not None:
        asset = assets.savepoint if record.kind is CheckpointKind.SAVEPOINT else assets.checkpoint
        what = "failed" if record.state is CheckpointState.FAILED else "checkpoint"
        identity = Identity((what, record.id), record.triggered_at.timestamp())
        return (AssetFact(change, asset, identity, assets.page),)
    recovery = change.recovery
    assert recovery is not None, "a change is one of the two"
    known = assets.queries.get(recovery.query) if recovery.query is not None else None
    identity = _recovery_identity(recovery)
    keys = [assets.checkpoint] if known is None else [assets.checkpoint, known]
    return tuple(AssetFact(change, key, identity, assets.page) for key in keys)


def happened_at(change: Change) -> datetime:
    """Return when a change was final: it cannot have been reported earlier."""
    if (record := change.checkpoint) is not None:
        return record.finished_at or record.triggered_at
    recovery = change.recovery
    assert recovery is not None, "a change is one of the two"
    return recovery.started_at + timedelta(seconds=recovery.duration_seconds or 0.0)


def identity_in(metadata: Mapping[str, dg.MetadataValue[Any]]) -> Identity | None:
    """Return the identity of an event from its metadata in Dagster, or None if it is not one of ours."""

    def found(name: str) -> object:
        return getattr(metadata.get(f"{NAMESPACE}{name}"), "value", None)

    def time(name: str) -> float | None:
        value = found(name)
        return value if isinstance(value, (int, float)) else None

    def number(name: str) -> int | None:
        value = found(name)  # earlier releases have stored it as a number
        return int(value) if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()) else None

    def text(name: str) -> str:
        value = found(name)
        return value if isinstance(value, str) else ""

    triggered = time("triggered_at")
    for what, name in (("checkpoint", "checkpoint_id"), ("failed", "failed_checkpoint_id")):
        if (checkpoint := number(name)) is not None and triggered is not None:
            return Identity((what, checkpoint), triggered)
    generation, recovered = number("generation"), time("recovered_at")
    if generation is None or recovered is None:
        return None
    return Identity(("recovery", generation, text("query"), text("recovery_cause")), recovered)


def _recovery_identity(recovery: RecoveryRecord) -> Identity:
    what = ("recovery", recovery.generation, recovery.query or "", recovery.cause)
    return Identity(what, recovery.started_at.timestamp())
