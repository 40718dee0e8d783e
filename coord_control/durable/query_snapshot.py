"""What the metadata of a checkpoint says of a query: read from Spark's own logs at the boundary.

Threads: reads files; any thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from coord_control.durable.layout import Read, state_operators
from coord_control.durable.layout_logs import parse_commit, parse_offsets, read_file
from coord_control.durable.layout_operators import PARTITIONS_SETTING
from coord_control.durable.metadata import FileEntry, QuerySnapshot, StateOperator
from coord_control.ids import Epoch

__all__ = ["describe_query"]


def describe_query(
    listing: Mapping[str, int],
    epoch: Epoch,
    read: Read,
    files: tuple[FileEntry, ...],
    *,
    query_id: str,
    lineage: str,
    spark_version: str,
    sources: tuple[str, ...] = (),
) -> QuerySnapshot:
    """Describe a query at a committed epoch.

    Args:
        listing, read: as for :func:`~coord_control.durable.layout.files_of_epoch`; what was pinned will do.
        epoch: its boundary; -1: nothing is committed yet.
        files: what was pinned.
        lineage: the name of the lineage's folder.
        sources: what Spark calls the sources, as far as it is known.

    Raises:
        StateFileMissing, DamagedRecord: Spark's logs do not say it.
    """
    if epoch < 0:
        return QuerySnapshot(query_id=query_id, epoch=epoch, lineage=lineage, spark_version=spark_version)
    offsets_path, commits_path = f"offsets/{epoch}", f"commits/{epoch}"
    offsets = parse_offsets(offsets_path, read_file(read, offsets_path))
    commit = parse_commit(commits_path, read_file(read, commits_path))
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
        for operator in state_operators(listing, epoch, read)
    ]
    return QuerySnapshot(
        query_id=query_id,
        epoch=epoch,
        lineage=lineage,
        spark_version=spark_version,
        offsets=tuple(None if value is None else _parsed(value) for value in offsets.by_source.values()),
        batch_metadata=dict(offsets.metadata),
        commit=dict(commit.metadata),
        state_operators=tuple(operators),
        shuffle_partitions=int(partitions) if partitions.isdigit() else None,
        sources=sources or tuple(offsets.by_source),
        files=files,
    )


def _parsed(offset: str) -> Any:
    # Most sources write JSON; what another one writes stays as it is.
    try:
        return json.loads(offset)
    except ValueError:
        return offset
