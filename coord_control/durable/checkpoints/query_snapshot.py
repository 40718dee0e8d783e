"""What the metadata of a checkpoint says of a query: taken from Spark's own logs at the boundary.

Threads: pure functions; any thread.
"""

from __future__ import annotations

import json
from typing import Any

from coord_control.durable.checkpoints.metadata_file import (
    FileEntry,
    QuerySnapshot,
    SinkSnapshot,
    StateOperator,
)
from coord_control.durable.job_folder.lineage_record import Reached
from coord_control.durable.spark_layout.layout import EpochLayout
from coord_control.durable.spark_layout.query_logs import OffsetEntry
from coord_control.durable.spark_layout.stateful_operators import PARTITIONS_SETTING
from coord_control.ids import Epoch

__all__ = ["describe_query", "offsets_by_source", "with_sink"]


def describe_query(
    layout: EpochLayout,
    files: tuple[FileEntry, ...],
    *,
    query_id: str,
    lineage: str,
    spark_version: str,
    earlier: Reached | None,
    sources: tuple[str, ...] = (),
) -> QuerySnapshot:
    """Describe a query at a committed epoch, and at the planned one behind it.

    Args:
        layout: of its checkpoint directory at the boundary.
        files: what was pinned.
        lineage: the name of the lineage's folder.
        sources: what Spark calls the sources, as far as it is known.
        earlier: how far the query has run in other lineages, if any.
    """
    offsets, commit, epoch, planned = layout.offsets, layout.commit, layout.epoch, layout.planned
    at = Reached(committed=epoch, planned=epoch if planned is None else Epoch(epoch + 1))
    known = QuerySnapshot(
        query_id=query_id,
        epoch=epoch,
        lineage=lineage,
        spark_version=spark_version,
        planned_offsets=None if planned is None else _offsets(planned),
        sources=sources or tuple(planned.by_source if planned is not None else ()),
        reached=at.joined(earlier),
        files=files,
    )
    if offsets is None or commit is None:  # nothing is committed yet
        return known
    partitions = offsets.settings.get(PARTITIONS_SETTING, "")
    operators = [
        StateOperator(
            id=operator.id,
            name=operator.name,
            provider=operator.provider,
            provider_class=operator.provider_class,
            partitions=operator.partitions,
            stores=operator.stores,
            checkpoint_format=operator.checkpoint_format,
            description_version=operator.description_version,
            properties=dict(operator.properties),
        )
        for operator in layout.operators
    ]
    return known.model_copy(
        update={
            "offsets": _offsets(offsets),
            "batch_metadata": dict(offsets.metadata),
            "commit": dict(commit.metadata),
            "state_operators": tuple(operators),
            "shuffle_partitions": int(partitions) if partitions.isdigit() else None,
            "sources": sources or tuple(offsets.by_source),
        }
    )


def with_sink(snapshot: QuerySnapshot, sink: SinkSnapshot, files: tuple[FileEntry, ...]) -> QuerySnapshot:
    """Add the query's sink.

    Args:
        files: the log of a file sink.
    """
    return snapshot.model_copy(update={"sink": sink, "files": (*snapshot.files, *files)})


def offsets_by_source(snapshot: QuerySnapshot) -> dict[str, Any]:
    """Return what each source had been read up to, for people; by number where a source has no name."""
    names = tuple(map(str, snapshot.sources))
    if not len(set(names)) == len(names) == len(snapshot.offsets):
        names = tuple(map(str, range(len(snapshot.offsets))))
    return dict(zip(names, snapshot.offsets, strict=True))


def _offsets(entry: OffsetEntry) -> tuple[Any, ...]:
    return tuple(None if value is None else _parsed(value) for value in entry.by_source.values())


def _parsed(offset: str) -> Any:
    # Most sources write JSON; what another one writes stays as it is.
    try:
        return json.loads(offset)
    except ValueError:
        return offset
