from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from coord_control.dagster.definitions.assets import CheckpointConfig, SavepointConfig, build_assets
from coord_control.dagster.resource import RESOURCE_KEY, ControlPlaneResource
from coord_control.dagster.spec import CheckBounds, QuerySpec, RetainSpec, ScheduleSpec, StreamingJobSpec
from coord_control.dagster.translator import StreamingJobTranslator
from coord_control.protocol.failures import FailureReason
from coord_control.storage.records import CommandKind, CommandState
from tests.dagster.action_kit import meanwhile
from tests.dagster_kit import (
    Plane,
    plane_in,
)
from tests.patience import eventually

_JOB = StreamingJobSpec(name="flights", queries=[QuerySpec(name="q")])
_CHECKPOINT = dg.AssetKey(["flights", "checkpoint"])
_SAVEPOINT = dg.AssetKey(["flights", "savepoint"])


class _Patient(StreamingJobTranslator):
    def retry_policy(self, job: StreamingJobSpec, purpose: str) -> dg.RetryPolicy | None:
        return dg.RetryPolicy(max_retries=3)


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    with plane_in(tmp_path) as plane:
        yield plane


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as instance:
        yield instance


def materialize(
    plane: Plane,
    instance: dg.DagsterInstance,
    config: CheckpointConfig | None = None,
    *,
    purpose: str = "checkpoint",
    job: StreamingJobSpec = _JOB,
    translator: StreamingJobTranslator | None = None,
    **more: Any,
) -> dg.ExecuteInProcessResult:
    translator = translator or StreamingJobTranslator()
    config = config or (CheckpointConfig if purpose == "checkpoint" else SavepointConfig)(timeout_seconds=30.0)
    return dg.materialize(
        build_assets([job], translator),
        selection=[dg.AssetKey([job.name, purpose])],
        resources={RESOURCE_KEY: plane.resource},
        instance=instance,
        run_config=dg.RunConfig(ops={translator.name(job, purpose): config}),
        raise_on_error=False,
        **more,
    )


def metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = result.get_asset_materialization_events()
    found = event.step_materialization_data.materialization.metadata
    return {name.removeprefix("coord_control/"): value.value for name, value in found.items()}


def log_lines(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> list[str]:
    return [entry.user_message for entry in instance.all_logs(result.run_id) if entry.dagster_event is None]


def failure(result: dg.ExecuteInProcessResult) -> tuple[str, dict[str, Any]]:
    (event,) = [event for event in result.all_events if event.is_step_failure]
    found = event.step_failure_data.user_failure_data
    assert found is not None
    return str(found.description), {name: value.value for name, value in found.metadata.items()}


def specs(job: StreamingJobSpec = _JOB) -> dict[str, dg.AssetSpec]:
    found = {}
    for asset in build_assets([job], StreamingJobTranslator(), database="sqlite:///c.db"):
        for spec in asset.specs if isinstance(asset, dg.AssetsDefinition) else [asset]:
            found[spec.key.to_user_string()] = spec
    return found


def test_a_job_has_an_asset_for_each_query_and_two_that_depend_on_them() -> None:
    found = specs()

    assert set(found) == {"flights/query/q", "flights/checkpoint", "flights/savepoint"}
    for purpose in ("checkpoint", "savepoint"):
        spec = found[f"flights/{purpose}"]
        assert [dep.asset_key for dep in spec.deps] == [dg.AssetKey(["flights", "query", "q"])]
        assert spec.metadata["coord_control/database"] == "sqlite:///c.db"
        assert f"coordctl {purpose}" in spec.metadata["coord_control/howto"].value
        assert (spec.group_name, spec.tags["coord_control/job"]) == ("flights", "flights")


def test_a_query_may_have_its_own_looks_and_what_it_reads() -> None:
    own = QuerySpec(
        name="q",
        deps=["kafka/orders", "customers"],
        owners=["team:alerts"],
        tags={"pii": "no"},
        kinds=["delta"],
        group="alerts",
    )
    job = _JOB.model_copy(update={"owners": ["team:operations"], "tags": {"tier": "gold"}})
    query = specs(job.model_copy(update={"queries": [own]}))["flights/query/q"]
    plain = specs(job)["flights/query/q"]

    assert [dep.asset_key for dep in query.deps] == [dg.AssetKey(["kafka", "orders"]), dg.AssetKey("customers")]
    assert (query.owners, query.group_name, query.kinds) == (["team:alerts"], "alerts", {"delta"})
    assert (query.tags["pii"], query.tags["tier"]) == ("no", "gold")
    assert (plain.owners, plain.group_name, plain.kinds) == (["team:operations"], "flights", {"spark", "streaming"})
    assert (plain.tags["tier"], list(plain.deps)) == ("gold", [])


def test_only_checkpoints_go_stale_and_no_sooner_than_dagster_can_tell() -> None:
    found = specs()
    soon = specs(_JOB.model_copy(update={"checks": CheckBounds(checkpoint_age=5.0)}))
    never = specs(_JOB.model_copy(update={"checks": CheckBounds(checkpoint_age=None)}))

    assert found["flights/savepoint"].freshness_policy is None
    assert never["flights/checkpoint"].freshness_policy is None
    assert found["flights/checkpoint"].freshness_policy == dg.FreshnessPolicy.time_window(
        fail_window=timedelta(minutes=15)
    )
    assert soon["flights/checkpoint"].freshness_policy == dg.FreshnessPolicy.time_window(
        fail_window=timedelta(seconds=60)
    )


def test_materializing_takes_a_checkpoint(plane: Plane, instance: dg.DagsterInstance) -> None:
    plane.driver()

    result = materialize(plane, instance, CheckpointConfig(label="mine", note="until noon"))

    found = metadata(result)
    (record,) = plane.client().checkpoints("flights")
    assert (found["checkpoint_id"], found["kind"], found["label"], found["note"]) == (
        "1",
        "checkpoint",
        "mine",
        "until noon",
    )
    assert (found["path"], found["passed_subtasks"], found["reported_by"]) == (record.path, "2", "run")
    assert found["sequence"] == str(record.sequence)
    assert record.requested_by == found["requested_by"] == f"dagster:run:{result.run_id}"
    assert f"checkpoint 1 is complete: {record.path}" in log_lines(instance, result)


def test_a_savepoint_goes_where_it_should_and_the_job_runs_on(
    plane: Plane, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    driver = plane.driver()
    target = tmp_path / "elsewhere"

    result = materialize(plane, instance, SavepointConfig(target=str(target), label="s"), purpose="savepoint")

    assert metadata(result)["path"] == str(target)
    assert target.is_dir()
    assert not driver.ended.is_set()


def test_a_job_can_be_stopped_with_a_savepoint(plane: Plane, instance: dg.DagsterInstance) -> None:
    driver = plane.driver()

    result = materialize(plane, instance, SavepointConfig(stop=True), purpose="savepoint")

    assert metadata(result)["kind"] == "savepoint"
    assert driver.ended.is_set()
    assert not plane.client().job("flights").is_alive


def test_the_log_tells_how_far_it_is(plane: Plane, instance: dg.DagsterInstance) -> None:
    driver = plane.driver(is_automatic=False)
    client = plane.client()

    def finish_when_seen() -> None:
        eventually(lambda: any((each.progress or {}).get("passed_subtasks") for each in client.commands("flights")))
        eventually(
            lambda: any(
                "1 of 2 subtasks" in line.user_message
                for run in instance.get_runs()
                for line in instance.all_logs(run.run_id)
            )
        )
        driver.complete(1)

    with meanwhile(finish_when_seen):
        result = materialize(plane, instance, purpose="savepoint")

    lines = [line for line in log_lines(instance, result) if line.startswith("savepoint 1")]
    assert lines[0] == "savepoint 1: 1 of 2 subtasks have passed the boundary"
    assert len(lines) == len(set(lines))  # a line only when something has changed
    assert lines[-1].startswith("savepoint 1 is complete: ")


def test_a_job_that_is_down_fails_the_run_at_once_with_the_next_step(
    plane: Plane, instance: dg.DagsterInstance
) -> None:
    plane.driver().stop()

    result = materialize(plane, instance)

    description, found = failure(result)
    assert "job 'flights' has not been running since" in description
    assert "coordctl run" in description
    assert found["coord_control/error"] == "JobNotRunning"


def test_a_job_that_is_down_is_asked_anew_when_it_is_up(plane: Plane, instance: dg.DagsterInstance) -> None:
    plane.driver().stop()

    class Starting(StreamingJobTranslator):
        def retry_policy(self, job: StreamingJobSpec, purpose: str) -> dg.RetryPolicy | None:
            return dg.RetryPolicy(max_retries=1, delay=1)

    def start_after_the_refusal() -> None:
        eventually(lambda: plane.client().commands("flights"))
        plane.driver()

    with meanwhile(start_after_the_refusal):
        result = materialize(plane, instance, translator=Starting())

    assert result.success
    states = [command.state for command in plane.client().commands("flights")]
    assert states == [CommandState.COMPLETED, CommandState.REFUSED]


def test_an_unknown_job_fails_the_run(plane: Plane, instance: dg.DagsterInstance) -> None:
    plane.driver()

    result = materialize(plane, instance, job=StreamingJobSpec(name="flihgts"))

    assert "flights" in failure(result)[0]


@pytest.mark.parametrize("database", ["postgresql://nobody@127.0.0.1:1/nothing", "none", "mysql://x/y"])
def test_a_database_that_cannot_be_used_fails_the_run_with_the_cause(
    instance: dg.DagsterInstance, database: str
) -> None:
    result = dg.materialize(
        build_assets([_JOB], StreamingJobTranslator()),
        selection=[_CHECKPOINT],
        resources={RESOURCE_KEY: ControlPlaneResource(database=database, retry_seconds=0.2)},
        instance=instance,
        raise_on_error=False,
    )

    description, found = failure(result)
    assert database.partition(":")[0] in description
    assert found["coord_control/error"] in ("DatabaseUnavailable", "NoControlPlane", "DatabaseUrlInvalid")


def test_a_retry_waits_for_the_checkpoint_of_the_first_attempt(plane: Plane, instance: dg.DagsterInstance) -> None:
    driver = plane.driver(is_automatic=False)

    def finish_after_a_retry() -> None:
        eventually(
            lambda: any(
                "is still claimed" in str(event)
                for run in instance.get_runs()
                for event in instance.all_logs(run.run_id)
            )
        )
        driver.complete(1)

    with meanwhile(finish_after_a_retry):
        result = materialize(plane, instance, CheckpointConfig(timeout_seconds=2.0), translator=_Patient())

    assert result.success
    assert result.retry_attempts_for_node("flights__checkpoint") >= 1
    (command,) = plane.client().commands("flights")
    assert (command.state, metadata(result)["checkpoint_id"]) == (CommandState.COMPLETED, "1")


def test_a_retry_after_a_failure_takes_another_one(plane: Plane, instance: dg.DagsterInstance) -> None:
    driver = plane.driver(is_automatic=False)
    client = plane.client()

    def fail_and_complete() -> None:
        eventually(lambda: any(each.checkpoint == 1 for each in client.commands("flights")))
        driver.fail(1, FailureReason.EXPIRED)
        eventually(lambda: any(each.checkpoint == 2 for each in client.commands("flights")))
        driver.complete(2)

    with meanwhile(fail_and_complete):
        result = materialize(plane, instance, translator=_Patient())

    assert metadata(result)["checkpoint_id"] == "2"
    newest, oldest = client.commands("flights")
    assert (newest.key.removesuffix("#2"), oldest.state) == (oldest.key.removesuffix("#1"), CommandState.FAILED)


def test_a_failed_checkpoint_fails_the_run_with_its_reason(plane: Plane, instance: dg.DagsterInstance) -> None:
    driver = plane.driver(is_automatic=False)
    client = plane.client()

    def fail() -> None:
        eventually(lambda: any(each.checkpoint == 1 for each in client.commands("flights")))
        driver.fail(1, FailureReason.EXPIRED)

    with meanwhile(fail):
        result = materialize(plane, instance)

    description, found = failure(result)
    assert FailureReason.EXPIRED.sentence in description
    assert found["coord_control/reason"] == "EXPIRED"


def test_another_run_is_another_request(plane: Plane, instance: dg.DagsterInstance) -> None:
    plane.driver()

    results = [materialize(plane, instance) for _ in range(2)]

    assert [metadata(result)["checkpoint_id"] for result in results] == ["1", "2"]


def test_a_scheduled_savepoint_is_of_its_schedule_and_removes_what_that_does_not_keep(
    plane: Plane, instance: dg.DagsterInstance
) -> None:
    plane.driver()
    schedule = ScheduleSpec(cron="@daily", name="nightly", retain=RetainSpec(count=1))
    job = _JOB.model_copy(update={"schedules": [schedule]})
    by_hand = materialize(plane, instance, purpose="savepoint", job=job)
    tags = {"dagster/schedule_name": "nightly"}

    first, second = (materialize(plane, instance, purpose="savepoint", job=job, tags=tags) for _ in range(2))

    assert "disposed" not in metadata(by_hand)
    assert metadata(first)["requested_by"] == "dagster:schedule:nightly"
    assert (metadata(first)["disposed"], metadata(second)["disposed"]) == ([], [2])
    assert Path(metadata(by_hand)["path"]).exists()
    assert not Path(metadata(first)["path"]).exists()


@pytest.mark.parametrize(
    "config", [CheckpointConfig(timeout_seconds=0.5), CheckpointConfig(timeout_seconds=0.5, label="x")]
)
def test_a_run_that_waited_too_long_fails_and_the_checkpoint_goes_on(
    plane: Plane, instance: dg.DagsterInstance, config: CheckpointConfig
) -> None:
    plane.driver(is_automatic=False)

    result = materialize(plane, instance, config)

    description, found = failure(result)
    (command,) = plane.client().commands("flights", kind=CommandKind.TRIGGER_CHECKPOINT)
    assert "Re-execute the run from failure" in description
    assert (found["coord_control/command"], command.is_finished) == (command.id, False)
