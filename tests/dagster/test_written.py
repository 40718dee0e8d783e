"""What the sensor says of what queries have written: materializations, for those that ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pydantic import ValidationError

from coord_control.dagster import (
    ControlPlaneSpec,
    MaterializeSpec,
    QuerySpec,
    StreamingJobSpec,
    build_streaming_definitions,
)
from coord_control.dagster.feed.cursor import Cursor
from coord_control.dagster.feed.tick import TickLimits
from coord_control.storage.records import QueryRecord
from tests.dagster.sensor_kit import JOB, QUERY, Jobs, SensorRig, jobs_in

_TENTH = MaterializeSpec(every_epochs=10)


def _spec(materialize: MaterializeSpec | None = _TENTH, name: str = JOB) -> StreamingJobSpec:
    return StreamingJobSpec(name=name, queries=[QuerySpec(name=QUERY, materialize=materialize)])


@pytest.fixture
def rig(rig: SensorRig) -> SensorRig:
    rig.specs = [_spec()]
    return rig


def _put(jobs: Jobs, lineage: str = "lineage-000001", **changes: Any) -> None:
    jobs.put(queries=(QueryRecord(name=QUERY, lineage=lineage, state="running"),), **changes)


def _written(rig: SensorRig, *, dies: bool = False) -> list[dict[str, Any]]:
    """One tick: the materializations of queries, by short names, with the data version."""
    events = rig.tick()
    if dies:  # after it has stored the events, and before the cursor
        rig.cursor = None
    return _shown(events)


def _shown(events: Sequence[Any]) -> list[dict[str, Any]]:
    return [
        {"version": (event.tags or {})["dagster/data_version"]}
        | {name.removeprefix("coord_control/"): value.value for name, value in event.metadata.items()}
        for event in events
        if isinstance(event, dg.AssetMaterialization)
    ]


def _ago(rig: SensorRig, seconds: int) -> None:
    """Let the last materialization be so long ago."""
    assert rig.cursor is not None
    cursor = Cursor.decode(rig.cursor)
    mark = cursor.jobs[JOB]
    written = {name: replace(each, at=each.at - seconds) for name, each in mark.written.items()}
    rig.cursor = replace(cursor, jobs={JOB: replace(mark, written=written)}).encode()


def test_without_materialize_a_query_is_only_observed(rig: SensorRig, jobs: Jobs) -> None:
    rig.specs = [_spec(None)]
    jobs.live(epoch=42)
    assert [type(event) for event in rig.tick() if not isinstance(event, dg.AssetCheckEvaluation)] == [
        dg.AssetObservation
    ]


def test_a_query_is_materialized_after_so_many_epochs_with_the_rows_in_between(rig: SensorRig, jobs: Jobs) -> None:
    _put(jobs)
    jobs.live(epoch=42, rows=1000, output_rows=100)
    assert _written(rig) == [{"version": "lineage-000001/42", "epoch": 42}]  # how much of it is new is not known
    jobs.live(epoch=51, rows=1900, output_rows=190)
    assert _written(rig) == []
    jobs.live(epoch=52, rows=2000, output_rows=200)
    assert _written(rig) == [
        {
            "version": "lineage-000001/52",
            "epoch": 52,
            "since_epoch": "42",
            "rows_read": 1000,
            "rows_written": 100,
        }
    ]
    assert _written(rig) == []


def test_a_query_is_materialized_after_so_many_seconds_if_there_is_a_new_epoch(rig: SensorRig, jobs: Jobs) -> None:
    rig.specs = [_spec(MaterializeSpec(every_seconds=300))]
    jobs.live(epoch=42)
    assert len(_written(rig)) == 1
    _ago(rig, 301)
    assert _written(rig) == []
    jobs.live(epoch=43)
    _ago(rig, -301)
    assert _written(rig) == []
    _ago(rig, 301)
    assert [each["epoch"] for each in _written(rig)] == [43]


def test_rows_that_a_sink_does_not_report_are_left_out(rig: SensorRig, jobs: Jobs) -> None:
    jobs.live(epoch=42, rows=1000)
    _written(rig)
    jobs.live(epoch=52, rows=2000)

    assert _written(rig) == [{"version": "52", "epoch": 52, "since_epoch": "42", "rows_read": 1000}]


def test_the_table_and_its_columns_are_shown_where_dagster_looks_for_them(rig: SensorRig, jobs: Jobs) -> None:
    jobs.live(epoch=42, table="lake.alerts", columns={"carrier": "string", "minutes": "double"})
    [event] = [each for each in rig.tick() if isinstance(each, dg.AssetMaterialization)]

    assert event.asset_key == rig.assets.queries[QUERY]
    assert event.metadata["dagster/table_name"] == dg.MetadataValue.text("lake.alerts")
    assert event.metadata["dagster/column_schema"] == dg.MetadataValue.table_schema(
        dg.TableSchema([dg.TableColumn("carrier", "string"), dg.TableColumn("minutes", "double")])
    )


def test_a_lost_cursor_repeats_nothing(rig: SensorRig, jobs: Jobs) -> None:
    jobs.live(epoch=42, rows=1000)
    _written(rig)
    jobs.live(epoch=52, rows=2000)
    assert len(_written(rig, dies=True)) == 1
    assert _written(rig) == []
    jobs.live(epoch=61, rows=2900)
    assert _written(rig) == []
    jobs.live(epoch=62, rows=3000)
    assert _written(rig) == [{"version": "62", "epoch": 62, "since_epoch": "52"}]  # who had counted is not known
    jobs.live(epoch=72, rows=4000)
    assert [each["rows_read"] for each in _written(rig)] == [1000]


def test_a_tick_that_dies_after_it_has_reported_is_not_made_up_for(rig: SensorRig, jobs: Jobs) -> None:
    jobs.live(epoch=42, rows=1000)
    _written(rig)
    before = rig.cursor
    jobs.live(epoch=52, rows=2000)
    assert len(_written(rig)) == 1
    rig.cursor = before
    jobs.live(epoch=53, rows=2100)
    assert _written(rig) == []
    jobs.live(epoch=62, rows=3000)
    assert [each["since_epoch"] for each in _written(rig)] == ["52"]


def test_a_restored_query_is_another_version_and_its_rows_are_counted_anew(rig: SensorRig, jobs: Jobs) -> None:
    _put(jobs)
    jobs.live(epoch=42, rows=1000)
    _written(rig)
    _put(jobs, "lineage-000002", generation=2)
    jobs.live(epoch=41, generation=2, rows=10)

    assert _written(rig) == [{"version": "lineage-000002/41", "epoch": 41, "since_epoch": "42"}]


def test_rows_of_two_drivers_are_not_mixed(rig: SensorRig, jobs: Jobs) -> None:
    _put(jobs)
    jobs.live(epoch=42, rows=1000)
    _written(rig)
    _put(jobs, generation=2)
    jobs.live(epoch=52, generation=2, rows=1500)

    assert _written(rig) == [{"version": "lineage-000001/52", "epoch": 52, "since_epoch": "42"}]


def test_of_very_many_queries_some_are_materialized_in_each_tick(tmp_path: Path) -> None:
    names = [f"job{each}" for each in range(5)]
    with dg.DagsterInstance.ephemeral() as instance, jobs_in(tmp_path / "control.db") as jobs:
        limits = TickLimits(materializations=2)
        rig = SensorRig(tmp_path, instance, [_spec(name=name) for name in names], limits=limits)
        for name in names:
            jobs.put(name)
            jobs.live(name, epoch=42)
        counts = [len(_written(rig)) for _ in range(4)]

    assert counts == [2, 2, 1, 0]


def test_assets_downstream_follow_what_a_query_has_written(rig: SensorRig, jobs: Jobs) -> None:
    query = rig.assets.queries[QUERY]

    @dg.asset(deps=[query], automation_condition=dg.AutomationCondition.eager())
    def report() -> None: ...

    defs = dg.Definitions.merge(
        build_streaming_definitions(ControlPlaneSpec(jobs=[_spec()])), dg.Definitions(assets=[report])
    )
    cursor = None
    requested = []
    for epoch in (None, 42, 45, 52, 60, 62):
        if epoch is not None:
            jobs.live(epoch=epoch)
            rig.tick()
        result = dg.evaluate_automation_conditions(
            defs, rig.instance, asset_selection=dg.AssetSelection.assets(report), cursor=cursor
        )
        cursor = result.cursor
        requested.append(result.total_requested)
        if result.total_requested:
            rig.instance.report_runless_asset_event(dg.AssetMaterialization(report.key))

    assert requested == [0, 1, 0, 1, 0, 1]


def test_when_to_materialize_must_be_said() -> None:
    with pytest.raises(ValidationError, match="set every_epochs, every_seconds, or both"):
        MaterializeSpec()
