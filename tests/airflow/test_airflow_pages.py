"""What a person sees of a savepoint in Airflow's own pages."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.agent_kit import ScriptedDriver
from tests.airflow.test_airflow import in_progress
from tests.airflow_kit import Airflow
from tests.browser_kit import Screen, browser
from tests.dagster_kit import Plane
from tests.patience import SECONDS

_MILLISECONDS = SECONDS * 1000


@pytest.mark.slow
def test_a_savepoint_is_on_the_pages_of_its_task_and_of_its_asset(
    airflow: Airflow, plane: Plane, driver: ScriptedDriver
) -> None:
    airflow.run("saving", "seen", label="before-the-upgrade")
    driver.complete(in_progress(airflow, plane, "saving", "seen"))
    assert airflow.until("saving", "seen", "save")["state"] == "success"
    address = airflow.variables["AIRFLOW__API__BASE_URL"]

    with browser() as started:
        screen = Screen(started, "airflow")
        screen.page.goto(f"{address}/dags/saving/runs/seen/tasks/save/xcom")
        expect(screen.page.get_by_text("return_value").first).to_be_visible(timeout=_MILLISECONDS)
        screen.shoot("1-result-of-a-task")
        screen.page.goto(f"{address}/dags/saving/runs/seen/tasks/save/asset_events")
        expect(screen.page.get_by_text("coord-control://flights/savepoint").first).to_be_visible(timeout=_MILLISECONDS)
        screen.shoot("2-event-of-an-asset")
