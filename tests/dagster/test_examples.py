"""The demo's code location, and the asset in it that follows each new savepoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from coord_control.dagster.metadata import checkpoint_metadata
from coord_control.storage.records import CheckpointKind, CheckpointRecord
from examples.dagster_downstream.report import page, savepoint_report_definitions
from examples.flights import definitions
from examples.flights.alerts import Thresholds
from examples.flights.server import EVENT_JOB, REPORTS_VARIABLE
from tests import control_kit as kit

SAVEPOINT = dg.AssetKey(["flights", "savepoint"])
CHECKPOINT = dg.AssetKey(["flights", "checkpoint"])
REPORT = dg.AssetKey(["flights", "savepoint_report"])


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def defs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dg.Definitions:
    monkeypatch.setenv("COORD_CONTROL", f"sqlite:///{tmp_path / 'control.db'}")
    monkeypatch.setenv(REPORTS_VARIABLE, str(tmp_path / "reports"))
    return definitions.defs()


def record(folder: Path, number: int) -> CheckpointRecord:
    with kit.opened(folder) as store:
        kit.put_job(store)
        kit.put_checkpoint(store, number, kind=CheckpointKind.SAVEPOINT, label=f"`{number}`", requested_by="ada")
        return store.checkpoints.get("flights", number)


def appear(instance: dg.DagsterInstance, key: dg.AssetKey, saved: CheckpointRecord) -> None:
    """As the sensor reports what others have taken."""
    metadata = checkpoint_metadata(saved, reported_by="sensor")
    instance.report_runless_asset_event(dg.AssetMaterialization(key, metadata=metadata))


def test_it_loads_without_its_database(defs: dg.Definitions, tmp_path: Path) -> None:
    dg.Definitions.validate_loadable(defs)
    keys = {spec.key for spec in defs.resolve_all_asset_specs()}
    queries = {dg.AssetKey(["flights", "query", name]) for name in ("alerts", "airports")}
    assert keys == {SAVEPOINT, CHECKPOINT, REPORT, *queries}
    assert defs.resolve_schedule_def(definitions.SCHEDULE).default_status is dg.DefaultScheduleStatus.STOPPED
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.BetaWarning")  # of Dagster, about itself
def test_the_report_is_wanted_once_for_each_new_savepoint(
    defs: dg.Definitions, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    def wanted(last: dg.EvaluateAutomationConditionsResult | None) -> dg.EvaluateAutomationConditionsResult:
        cursor = None if last is None else last.cursor
        return dg.evaluate_automation_conditions(defs=defs, instance=instance, cursor=cursor)

    nothing = wanted(None)
    assert nothing.total_requested == 0
    saved = record(tmp_path, 7)
    appear(instance, CHECKPOINT, saved)
    checkpoint = wanted(nothing)
    assert checkpoint.total_requested == 0
    appear(instance, SAVEPOINT, saved)
    first = wanted(checkpoint)
    assert first.get_num_requested(REPORT) == first.total_requested == 1
    again = wanted(first)
    assert again.total_requested == 0
    appear(instance, SAVEPOINT, record(tmp_path, 8))
    assert wanted(again).get_num_requested(REPORT) == 1


def test_the_sensor_of_the_condition_is_on(defs: dg.Definitions) -> None:
    sensor = defs.resolve_sensor_def("flights_automation")
    assert isinstance(sensor, dg.AutomationConditionSensorDefinition)
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    assert sensor.asset_selection.resolve(defs.resolve_asset_graph()) == {REPORT}


def test_the_report_is_about_the_newest_savepoint(
    defs: dg.Definitions, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    for number in (7, 8):
        appear(instance, SAVEPOINT, record(tmp_path, number))
    result = defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance, asset_selection=[REPORT]
    )
    assert result.success
    (made,) = result.asset_materializations_for_node("flights__savepoint_report")
    assert made.metadata["savepoint"].value == "8"
    text = (tmp_path / "reports" / "savepoint-8.md").read_text()
    assert "# Savepoint 8 of flights" in text
    assert "* requested_by: `ada`" in text
    assert "* query `alerts`: up to epoch 48" in text
    assert not (tmp_path / "reports" / "savepoint-7.md").exists()


def test_the_launchpad_offers_an_event_of_the_flights(defs: dg.Definitions) -> None:
    job = defs.resolve_job_def(EVENT_JOB)
    assert job.run_config is not None
    event = job.run_config["ops"]["send_control_event"]["config"]
    assert dg.validate_run_config(job)["ops"]["send_control_event"]["config"]["job"] == "flights"
    assert event["event_type"] == Thresholds.__name__
    assert Thresholds.model_validate(event["payload"]).minutes == {"UA": 45.0}


def test_without_a_savepoint_the_report_says_what_to_do(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    defs = savepoint_report_definitions(SAVEPOINT, str(tmp_path))
    with pytest.raises(dg.Failure, match="materialize flights/savepoint first"):
        defs.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance)


def test_a_page_leaves_out_what_is_not_known() -> None:
    assert page("flights", {"checkpoint_id": "1", "label": None}) == "# Savepoint 1 of flights\n\n"
