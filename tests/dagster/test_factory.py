from __future__ import annotations

import dagster as dg
import pytest

from coord_control.dagster import (
    ControlPlaneSpec,
    QuerySpec,
    ScheduleSpec,
    StartSpec,
    StreamingJobSpec,
    StreamingJobTranslator,
    SuperviseSpec,
    build_streaming_definitions,
    streaming_job_definitions,
)
from coord_control.dagster.facts import DatabaseFacts, KnownJob
from coord_control.errors import AssetKeyTaken

_UNREACHABLE = "postgresql://nobody:secret@127.0.0.1:1/nothing"


def repository(defs: dg.Definitions) -> dg.RepositoryDefinition:
    dg.Definitions.validate_loadable(defs)
    return defs.get_repository_def()


def keys(defs: dg.Definitions) -> set[str]:
    return {key.to_user_string() for key in defs.resolve_all_asset_keys()}


def test_a_job_has_everything_that_is_written_of_it() -> None:
    defs = streaming_job_definitions(
        "flights",
        database=_UNREACHABLE,
        queries=[QuerySpec(name="alerts")],
        schedules=[ScheduleSpec(name="nightly", cron="@daily")],
        start=StartSpec(script="job.py"),
        supervise=SuperviseSpec(),
    )

    found = repository(defs)

    assert keys(defs) == {"flights/query/alerts", "flights/checkpoint", "flights/savepoint"}
    assert {each.name for each in found.schedule_defs} == {"nightly"}
    assert {each.name for each in found.sensor_defs} == {"streaming_jobs_sensor", "streaming_supervisor_sensor"}
    assert {"start_streaming_job", "stop_streaming_job", "restore_streaming_job"} <= set(found.job_names)
    assert {key.asset_key.to_user_string() for key in defs.resolve_asset_graph().asset_check_keys} == {
        "flights/checkpoint"
    }


def test_no_password_is_shown() -> None:
    defs = streaming_job_definitions("flights", database=_UNREACHABLE)

    shown = defs.resolve_asset_graph().get(dg.AssetKey(["flights", "checkpoint"])).metadata["coord_control/database"]

    assert "127.0.0.1:1/nothing" in str(shown)
    assert "secret" not in str(shown)


@pytest.mark.parametrize("database", ["none", "mysql://somewhere/else", _UNREACHABLE])
def test_it_loads_whatever_the_database_is(database: str) -> None:
    assert keys(streaming_job_definitions("flights", database=database)) == {"flights/checkpoint", "flights/savepoint"}


def test_it_loads_without_any_job() -> None:
    defs = build_streaming_definitions(ControlPlaneSpec(database=_UNREACHABLE, discover=True))

    assert keys(defs) == set()
    assert [each.name for each in repository(defs).sensor_defs] == ["streaming_jobs_sensor"]


def test_many_jobs_with_the_same_defaults_load() -> None:
    facts = DatabaseFacts(tuple(KnownJob(f"job-{number}", ("q",)) for number in range(200)))
    defaults = StreamingJobSpec(name="any", schedules=[ScheduleSpec(name="nightly", cron="@daily")])

    found = repository(
        build_streaming_definitions(
            ControlPlaneSpec(database=_UNREACHABLE, discover=True, defaults=defaults), facts=facts
        )
    )

    assert len(found.schedule_defs) == 200


def test_a_translator_decides_the_names() -> None:
    class Mine(StreamingJobTranslator):
        def savepoint_key(self, job: StreamingJobSpec) -> dg.AssetKey:
            return dg.AssetKey(["saved", job.name])

    defs = streaming_job_definitions("flights", database=_UNREACHABLE, translator=Mine())

    assert keys(defs) == {"flights/checkpoint", "saved/flights"}


@pytest.mark.parametrize(
    ("jobs", "owners"),
    [
        (
            [StreamingJobSpec(name="a.b"), StreamingJobSpec(name="a-b")],
            ["the checkpoints of job 'a.b'", "the checkpoints of job 'a-b'"],
        ),
        (
            [StreamingJobSpec(name="a", queries=[QuerySpec(name="q", key="a/savepoint")])],
            ["the savepoints of job 'a'", "query 'q' of job 'a'"],
        ),
    ],
)
def test_two_assets_of_one_key_are_refused(jobs: list[StreamingJobSpec], owners: list[str]) -> None:
    with pytest.raises(AssetKeyTaken) as caught:
        build_streaming_definitions(ControlPlaneSpec(jobs=jobs))

    assert caught.value.owners == owners


def test_it_goes_along_with_other_definitions() -> None:
    @dg.asset(deps=[dg.AssetKey(["flights", "savepoint"])])
    def report() -> None: ...

    defs = dg.Definitions.merge(
        streaming_job_definitions("flights", database=_UNREACHABLE), dg.Definitions(assets=[report])
    )

    assert "report" in keys(defs)
    dg.Definitions.validate_loadable(defs)
