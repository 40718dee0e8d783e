"""Links from assets to the page of the job, to Spark's page and to the driver's log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from pydantic import ValidationError

from coord_control.dagster import ControlPlaneSpec, build_streaming_definitions
from coord_control.dagster.links import link_entries
from coord_control.storage.records import LiveStatus
from tests import records_kit as records
from tests.dagster.sensor_kit import JOB, QUERY, Jobs, SensorRig, spec

_PAGE = "https://ui.example/streams/"
_LIVE = records.job(live=LiveStatus(spark_ui="http://driver:4040"), log_file="/var/log/flights.log")


def _links(event: dg.AssetMaterialization | dg.AssetObservation) -> dict[str, dg.MetadataValue[Any]]:
    names = ("page", "spark_ui", "log_file")
    return {name: value for name in names if (value := event.metadata.get(f"coord_control/{name}")) is not None}


def test_a_checkpoint_links_to_its_own_page_and_everything_else_to_that_of_the_job() -> None:
    assert link_entries("flights", _LIVE, page=_PAGE, checkpoint=7) == {
        "page": dg.MetadataValue.url("https://ui.example/streams/jobs/flights/checkpoints/7"),
        "spark_ui": dg.MetadataValue.url("http://driver:4040"),
        "log_file": dg.MetadataValue.path("/var/log/flights.log"),
    }
    assert link_entries("a/b", None, page=_PAGE) == {
        "page": dg.MetadataValue.url("https://ui.example/streams/jobs/a%2Fb")
    }


def test_what_is_not_known_and_a_page_that_is_gone_have_no_link() -> None:
    assert link_entries("flights", None, page=None) == {}
    assert link_entries("flights", records.job(), page=None) == {}
    assert link_entries("flights", records.job(live=LiveStatus()), page=None) == {}
    assert link_entries("flights", replace(_LIVE, is_alive=False), page=None) == {
        "log_file": dg.MetadataValue.path("/var/log/flights.log")
    }


def test_what_the_sensor_reports_has_the_links(rig: SensorRig, jobs: Jobs) -> None:
    rig.page = "http://ui:8765"
    jobs.put(log_file="/var/log/flights.log")
    jobs.live(epoch=42, spark_ui="http://driver:4040")
    completed, failed = jobs.checkpoint(), jobs.failed()
    jobs.recovery()
    events = [each for each in rig.tick() if isinstance(each, (dg.AssetMaterialization, dg.AssetObservation))]
    pages = [each["page"].value for each in map(_links, events)]
    of_job = f"http://ui:8765/jobs/{JOB}"

    assert pages == [
        f"{of_job}/checkpoints/{completed.id}",
        f"{of_job}/checkpoints/{failed.id}",
        of_job,  # the recovery, of the checkpoints ...
        of_job,  # ... and of the query
        of_job,  # how the query fares
    ]
    assert events[-1].asset_key == rig.assets.queries[QUERY]
    assert all(len(_links(event)) == 3 for event in events)


def test_definitions_link_to_the_page_of_the_job() -> None:
    defs = build_streaming_definitions(ControlPlaneSpec(page="http://ui:8765", jobs=[spec()]))

    assert {each.metadata["coord_control/page"] for each in defs.resolve_all_asset_specs()} == {
        dg.MetadataValue.url(f"http://ui:8765/jobs/{JOB}")
    }


@pytest.mark.parametrize("address", ["ui:8765", "javascript:alert(1)", "http://ui/?x=1"])
def test_a_page_that_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValidationError, match="page"):
        ControlPlaneSpec(page=address)
