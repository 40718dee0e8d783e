"""Materializations of what queries write, for queries that ask for them: assets downstream follow them.

The cursor says up to where a query was reported. Before anything is reported, Dagster's own event log is asked for the
newest materialization, because the daemon may have died before it stored the cursor, or have lost it. The number of
rows in between is known only if both agree, and the same driver has counted them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import dagster as dg

from coord_control.dagster.feed.cursor import Cursor, JobMark, WrittenMark
from coord_control.dagster.feed.dagster_events import AssetEvent, JobAssets
from coord_control.dagster.links import link_entries
from coord_control.dagster.metadata import entries, table_metadata, written_metadata
from coord_control.dagster.spec import MaterializeSpec
from coord_control.storage.records import JobOverview, JobRecord, QueryRecord

__all__ = ["materialize_queries"]

_DATA_VERSION = "dagster/data_version"


@dataclass(frozen=True, slots=True)
class _Written:
    """A query that has committed an epoch since it was reported, or was never reported."""

    job: JobRecord
    query: QueryRecord
    asset: dg.AssetKey
    wanted: MaterializeSpec
    mark: WrittenMark | None

    def now(self, at: int) -> WrittenMark:
        assert self.query.epoch is not None, "only those are looked at"
        return WrittenMark(
            version=_version(self.query),
            epoch=self.query.epoch,
            at=at,
            generation=self.job.generation,
            rows=self.query.rows,
            output_rows=self.query.output_rows,
        )

    def is_due(self, at: int) -> bool:
        if (mark := self.mark) is None:
            return True
        now = self.now(at)
        if now.version == mark.version:
            return False
        if _lineage(now.version) != _lineage(mark.version):  # it was restored: its rows are others
            return True
        epochs, seconds = self.wanted.every_epochs, self.wanted.every_seconds
        return (epochs is not None and now.epoch - mark.epoch >= epochs) or (
            seconds is not None and at - mark.at >= seconds
        )


def materialize_queries(
    instance: dg.DagsterInstance,
    jobs: Mapping[str, JobAssets],
    overviews: Mapping[str, JobOverview],
    cursor: Cursor,
    now: datetime,
    most: int,
) -> tuple[list[AssetEvent], Cursor]:
    """Return materializations of the queries that have written enough since the last one, and the cursor after that.

    Args:
        now: the time by the clock of the control database.
        most: how many queries to report at most.
    """
    at = int(now.timestamp())
    all_due = [each for each in _written(jobs, overviews, cursor) if each.is_due(at)]
    due = sorted(all_due, key=lambda each: 0 if each.mark is None else each.mark.at)[:most]
    reported = _newest(instance, [each.asset for each in due])
    marks, events = dict(cursor.jobs), list[AssetEvent]()
    for each in due:
        name, last = each.job.name, reported.get(each.asset)
        if last is not None and (each.mark is None or last.version != each.mark.version):
            each = replace(each, mark=last)
        mark = each.mark
        if each.is_due(at):
            events.append(_event(each, each.now(at), jobs[name].page))
            mark = each.now(at)
        if mark is not None:
            before = marks.get(name, JobMark())
            marks[name] = replace(before, written={**before.written, each.query.name: mark})
    return events, replace(cursor, jobs=marks)


def _written(jobs: Mapping[str, JobAssets], overviews: Mapping[str, JobOverview], cursor: Cursor) -> Sequence[_Written]:
    found = []
    for name, assets in jobs.items():
        wanted = {query.name: query.materialize for query in assets.spec.queries or () if query.materialize}
        if not wanted or name not in overviews:
            continue
        marks = cursor.jobs.get(name, JobMark()).written
        job = overviews[name].job
        found += [
            _Written(job, query, assets.queries[query.name], wanted[query.name], marks.get(query.name))
            for query in job.queries
            if query.name in wanted and query.epoch is not None
        ]
    return found


def _newest(instance: dg.DagsterInstance, assets: Sequence[dg.AssetKey]) -> dict[dg.AssetKey, WrittenMark]:
    """Return what the newest materializations of these assets say, without those that are not ours."""
    found = {}
    for record in instance.get_asset_records(assets) if assets else ():
        entry = record.asset_entry
        event = None if entry.last_materialization is None else entry.last_materialization.asset_materialization
        version = (event.tags or {}).get(_DATA_VERSION) if event is not None else None
        epoch = version.rpartition("/")[2] if version is not None else ""
        if entry.last_materialization is not None and version is not None and epoch.isdecimal():
            at = int(entry.last_materialization.timestamp)
            found[entry.asset_key] = WrittenMark(version=version, epoch=int(epoch), at=at)
    return found


def _event(written: _Written, now: WrittenMark, page: str | None) -> dg.AssetMaterialization:
    job, query, mark = written.job, written.query, written.mark
    rows_read = rows_written = None
    if mark is not None and mark.generation == now.generation and mark.epoch < now.epoch:
        rows_read, rows_written = _grown(mark.rows, now.rows), _grown(mark.output_rows, now.output_rows)
    metadata = written_metadata(
        query, since_epoch=None if mark is None else mark.epoch, rows_read=rows_read, rows_written=rows_written
    )
    links = entries(link_entries(job.name, job, page=page))
    return dg.AssetMaterialization(
        written.asset,
        description=f"What {query.name} has written up to epoch {query.epoch}",
        metadata={**metadata, **table_metadata(query), **links},
        tags={_DATA_VERSION: now.version},
    )


def _grown(before: int | None, now: int | None) -> int | None:
    return None if before is None or now is None else max(0, now - before)


def _version(query: QueryRecord) -> str:
    # A restored query has another lineage, and may commit the same epochs again with other rows.
    return f"{query.lineage}/{query.epoch}" if query.lineage else str(query.epoch)


def _lineage(version: str) -> str:
    return version.rpartition("/")[0]
