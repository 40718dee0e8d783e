"""Fifty jobs in a real Dagster: the lineage has a group for each, in the order of their names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import expect

from tests.acceptance.dagster_pages import Person
from tests.browser_kit import Screen, browser
from tests.dagster_dev_kit import dagster_dev

_JOBS: Final = 50
_CODE: Final = f"""
    from coord_control.dagster import ControlPlaneSpec, QuerySpec, StreamingJobSpec, build_streaming_definitions

    def job(number):
        query = QuerySpec(name="events", deps=[f"kafka/events_{{number:02}}"], kinds={{"kafka", "delta"}})
        return StreamingJobSpec(name=f"stream_{{number:02}}", queries=[query])

    defs = build_streaming_definitions(ControlPlaneSpec(jobs=[job(number) for number in range({_JOBS})]))
"""


@pytest.mark.slow
def test_the_lineage_of_fifty_jobs_has_a_group_for_each(tmp_path: Path) -> None:
    environment = {"COORD_CONTROL": f"sqlite:///{tmp_path / 'control.db'}"}
    with dagster_dev(tmp_path / "dagster", _CODE, environment) as dagster, browser() as started:
        person = Person(Screen(started, "dagster"), dagster)
        person.page.set_viewport_size({"width": 1600, "height": 900})
        person.page.goto(dagster.page("asset-groups?expanded="))
        groups = person.see(person.page.get_by_text(re.compile(r"^stream_\d\d$")))
        expect(groups).to_be_visible()
        expect(person.page.get_by_text("fetching statuses")).to_have_count(0)
        shown = [name for name in person.page.locator("body").inner_text().split() if name.startswith("stream_")]
        listed = shown[: len(set(shown))]  # in the list, where each is once
        assert listed == sorted(listed)
        assert len(listed) > 20, "as many as the window holds"
        person.screen.shoot("61-lineage-of-fifty-jobs")
        person.page.goto(dagster.location_page("asset-groups/stream_07/lineage"))
        person.see(person.page.get_by_text("savepoint"))
        expect(person.page.get_by_text("Loading...")).to_have_count(0)
        person.screen.shoot("62-lineage-of-one-of-them")
