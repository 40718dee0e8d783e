from __future__ import annotations

from pathlib import Path

import pytest

import coord_control as cc
from coord_control.dagster.facts import (
    DatabaseFacts,
    KnownJob,
    KnownModel,
    KnownOperator,
    from_json,
    read_facts,
    resolved_jobs,
    to_json,
)
from coord_control.dagster.spec import ControlPlaneSpec, QuerySpec, ScheduleSpec, StreamingJobSpec
from tests import control_kit as kit

_FACTS = DatabaseFacts(
    (
        KnownJob(
            "flights",
            ("alerts",),
            (KnownOperator("delay-threshold", (KnownModel("Threshold", kit.THRESHOLD.schema),)),),
            (KnownModel("limits", kit.LIMITS_SCHEMA),),
        ),
        KnownJob("trains"),
    )
)


def test_they_are_read_from_the_database(tmp_path: Path) -> None:
    with kit.opened(tmp_path) as store:
        kit.put_job(store)
        kit.put_live_value(store, minutes=45)
        kit.put_job(store, "trains", queries=(), operators=())

    with cc.ControlClient(settings=kit.settings(tmp_path)) as client:
        assert read_facts(client) == _FACTS


def test_they_survive_as_text() -> None:
    assert from_json(to_json(_FACTS)) == _FACTS


def test_what_a_newer_release_adds_is_ignored() -> None:
    text = to_json(_FACTS).replace('"jobs"', '"more": 1, "jobs"')

    assert from_json(text) == _FACTS


@pytest.mark.parametrize("text", ["", "{", "[]", '{"jobs": [{}]}'])
def test_other_texts_are_no_facts(text: str) -> None:
    with pytest.raises(ValueError, match="not a valid description of a control database"):
        from_json(text)


def test_a_job_has_the_queries_that_it_is_known_to_have() -> None:
    spec = ControlPlaneSpec(jobs=[StreamingJobSpec(name="flights"), StreamingJobSpec(name="unknown")])

    flights, unknown = resolved_jobs(spec, _FACTS)

    assert flights.queries == [QuerySpec(name="alerts")]
    assert unknown.queries == []


def test_queries_that_are_written_down_win() -> None:
    mine = [QuerySpec(name="alerts", key="analytics/alerts")]
    spec = ControlPlaneSpec(jobs=[StreamingJobSpec(name="flights", queries=mine)])

    assert resolved_jobs(spec, _FACTS)[0].queries == mine


def test_without_facts_there_are_only_the_jobs_that_are_written_down() -> None:
    spec = ControlPlaneSpec(jobs=[StreamingJobSpec(name="flights")], discover=True)

    (job,) = resolved_jobs(spec, None)

    assert (job.name, job.queries) == ("flights", [])


def test_discovered_jobs_come_after_the_written_ones_and_have_the_defaults() -> None:
    defaults = StreamingJobSpec(name="any", group="streams", schedules=[ScheduleSpec(cron="@daily", name="nightly")])
    spec = ControlPlaneSpec(jobs=[StreamingJobSpec(name="trains")], discover=True, defaults=defaults)

    trains, flights = resolved_jobs(spec, _FACTS)

    assert (trains.name, trains.group, trains.schedules) == ("trains", None, [])
    assert (flights.name, flights.group, flights.queries) == ("flights", "streams", [QuerySpec(name="alerts")])
    assert [schedule.name for schedule in flights.schedules] == [None]  # one name cannot be that of many schedules


def test_nothing_is_discovered_unless_asked_for() -> None:
    assert resolved_jobs(ControlPlaneSpec(), _FACTS) == ()
