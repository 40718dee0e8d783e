"""A Dagster instance beside a control database, and the sensor between them, tick by tick.

The database is a real one, written by the same code as that of drivers. A tick evaluates the sensor as the code server
does, and stores its events one by one and the cursor after the last, as the daemon does; so it can die in between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.events import StepMaterializationData
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.test_utils import BasicLoadingContext, create_run_for_test

from coord_control.dagster.asset_checks import CHECKS
from coord_control.dagster.definitions.sensor import build_sensor
from coord_control.dagster.feed.dagster_events import JobAssets, identity_in
from coord_control.dagster.feed.tick import TickLimits
from coord_control.dagster.metadata import checkpoint_metadata
from coord_control.dagster.resource import RESOURCE_KEY, ControlPlaneResource
from coord_control.dagster.runs.own_runs import RUN_ACTOR
from coord_control.dagster.spec import ControlPlaneSpec, QuerySpec, StreamingJobSpec
from coord_control.dagster.translator import StreamingJobTranslator
from coord_control.storage.database import Database
from coord_control.storage.records import (
    CheckpointKind,
    CheckpointRecord,
    CheckpointState,
    LiveOperator,
    LiveQuery,
    LiveStatus,
    OperatorRecord,
    QueryRecord,
)
from coord_control.storage.store import ControlStore
from tests import records_kit as records
from tests.records_kit import operator_part, query_part, subtask_part, with_subtasks

JOB = records.JOB
QUERY = "alerts"
OPERATOR = "threshold"


def await_next_second() -> None:
    """Wait until the clock shows another second."""
    now = int(time.time())
    while int(time.time()) == now:
        time.sleep(0.02)


def spec(name: str = JOB, **values: Any) -> StreamingJobSpec:
    return StreamingJobSpec(name=name, queries=[QuerySpec(name=QUERY)], **values)


@dataclass
class Jobs:
    """What drivers have written."""

    database: Database
    store: ControlStore
    numbers: dict[str, int] = field(default_factory=dict)

    def put(self, name: str = JOB, **changes: Any) -> None:
        values: dict[str, Any] = {
            "queries": (QueryRecord(name=QUERY, state="running", epoch=41),),
            "operators": (OperatorRecord(uid=OPERATOR, query=QUERY, parallelism=2),),
        }
        self.store.jobs.register(records.registration(name, **values | changes))

    def live(
        self,
        name: str = JOB,
        *,
        epoch: int | None,
        generation: int = 1,
        operators: tuple[LiveOperator, ...] = (),
        spark_ui: str = "",
        **query: Any,
    ) -> None:
        values: dict[str, Any] = {"rows_per_second": 1234.0, "backlog": 56789, "lag_seconds": 2.5}
        live = LiveQuery(name=QUERY, state="running", epoch=epoch, **values | query)
        status = LiveStatus(queries=(live,), operators=operators, spark_ui=spark_ui)
        self.store.jobs.heartbeat(name, generation, status)

    def checkpoint(
        self, job: str = JOB, *, age: timedelta = timedelta(), subtasks: int = 2, **changes: Any
    ) -> CheckpointRecord:
        """One that has just ended, or a while ago."""
        number = self.numbers[job] = changes.pop("id", self.numbers.get(job, 0) + 1)
        finished = datetime.now(UTC) - age
        operator = operator_part(operator=OPERATOR, coordinator_bytes=7, subtasks=subtasks, passed_subtasks=subtasks)
        values: dict[str, Any] = {
            "job": job,
            "triggered_at": finished - timedelta(seconds=2),
            "finished_at": finished,
            "duration_seconds": 2.0,
            "state_bytes": 1000,
            "new_bytes": 10,
            "subtasks": subtasks,
            "passed_subtasks": subtasks,
            "path": f"/jobs/{job}/checkpoints/{number}",
            "cause": "interval",
            "generation": 1,
            "queries": (query_part(query=QUERY, boundary=40 + number, operators=(operator,)),),
        }
        record = records.checkpoint(number, **values | changes)
        passed = subtasks if record.reason is None else subtasks - 1
        parts = [
            subtask_part(operator=OPERATOR, subtask=each, passed_seconds=0.1 if each < passed else None)
            for each in range(subtasks)
        ]
        self.store.checkpoints.save(job, with_subtasks(record, parts))
        return record

    def checkpoint_of_run(self, run_id: str) -> CheckpointRecord:
        """One that a run of Dagster has asked for."""
        return self.checkpoint(requested_by=f"{RUN_ACTOR}{run_id}", key="command:1", cause="command")

    def savepoint(self, job: str = JOB, **changes: Any) -> CheckpointRecord:
        return self.checkpoint(job, kind=CheckpointKind.SAVEPOINT, **changes)

    def failed(self, job: str = JOB, **changes: Any) -> CheckpointRecord:
        values = {"state": CheckpointState.FAILED, "reason": "timeout", "message": "too slow", "path": None}
        return self.checkpoint(job, **{**values, **changes})

    def recovery(self, job: str = JOB, **changes: Any) -> None:
        values: dict[str, Any] = {
            "job": job,
            "cause": "driver_died",
            "what": f"{QUERY} is taken up by a new driver after epoch 40",
            "started_at": datetime.now(UTC) - timedelta(seconds=3),
            "query": QUERY,
            "from_epoch": 40,
            "from_checkpoint": 3,
            "duration_seconds": 3.0,
            "epochs_rerun": 1,
        }
        self.store.recoveries.add(records.recovery(**values | changes))


@contextmanager
def jobs_in(file: Path) -> Iterator[Jobs]:
    database = Database(f"sqlite:///{file}", application="test")
    try:
        yield Jobs(database, ControlStore(database))
    finally:
        database.close()


@dataclass
class SensorRig:
    """A sensor, and Dagster around it."""

    folder: Path
    instance: dg.DagsterInstance
    specs: Sequence[StreamingJobSpec] = field(default_factory=lambda: [spec()])
    translator: StreamingJobTranslator = field(default_factory=StreamingJobTranslator)
    limits: TickLimits | None = None
    address: str | None = None  #: of another database
    page: str | None = None  #: the address of `coordctl ui`
    cursor: str | None = None
    skipped: str | None = None  #: what the last tick has said

    @property
    def file(self) -> Path:
        return self.folder / "control.db"

    @property
    def resource(self) -> ControlPlaneResource:
        return ControlPlaneResource(database=self.address or f"sqlite:///{self.file}", retry_seconds=0.2)

    @property
    def assets(self) -> JobAssets:
        return JobAssets.of(self.specs[0], self.translator)

    def sensor(self) -> dg.SensorDefinition:
        return build_sensor(ControlPlaneSpec(page=self.page), self.specs, self.translator, limits=self.limits)

    def look(self) -> Any:
        """Evaluate the sensor; nothing is stored."""
        context = dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, resources={RESOURCE_KEY: self.resource}
        )
        return self.sensor().evaluate_tick(context)

    def tick(self, *, dies_after: int | None = None) -> list[Any]:
        """One tick; returns what was stored. One that dies has stored some events, and not the cursor."""
        found = self.look()
        for event in found.asset_events[:dies_after]:
            self.instance.report_runless_asset_event(event)
        self.skipped = found.skip_message
        if dies_after is None:
            self.cursor = found.cursor
        return list(found.asset_events[:dies_after])

    def tick_until_quiet(self) -> None:
        """Tick until no change is left for the next one."""
        for _ in range(50):
            self.tick()
            if self.skipped is not None and "more changes" not in self.skipped:
                return
        raise AssertionError("it did not come to an end")

    def materialized(self, asset: dg.AssetKey | None = None) -> list[int]:
        """The checkpoints that Dagster has of an asset, in its order."""
        key = asset or self.assets.checkpoint
        page = self.instance.fetch_materializations(key, 1000, ascending=True)
        events = [record.asset_materialization for record in page.records]
        return [int(text(event, "checkpoint_id")) for event in events if event is not None]

    def observed(self, asset: dg.AssetKey | None = None) -> list[dg.AssetObservation]:
        """What was observed of an asset, other than how a query fares."""
        page = self.instance.fetch_observations(asset or self.assets.checkpoint, 1000, ascending=True)
        events = [record.asset_observation for record in page.records]
        return [event for event in events if event is not None and identity_in(event.metadata) is not None]

    def checks(self, asset: dg.AssetKey | None = None) -> dict[str, bool]:
        """The outcomes that Dagster shows for the newest materialization of an asset, by its own rules."""
        key = asset or self.assets.checkpoint
        keys = [dg.AssetCheckKey(key, name) for name in CHECKS]
        records = self.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
        context = BasicLoadingContext(self.instance)
        return {
            check.name: record.status is AssetCheckExecutionRecordStatus.SUCCEEDED
            for check, record in records.items()
            if asyncio.run(record.targets_latest_materialization(context))
        }

    # Runs of ours.

    def run(self, status: dg.DagsterRunStatus = dg.DagsterRunStatus.STARTED, **values: Any) -> str:
        """One that is made by whoever; it does not report anything by itself."""
        run: dg.DagsterRun = create_run_for_test(self.instance, job_name="__ASSET_JOB", status=status, **values)
        return run.run_id

    def run_ends(self, run_id: str, *, well: bool) -> None:
        """As its worker, or whoever has found that dead, tells it."""
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        if well:
            event = dg.DagsterEvent(event_type_value=dg.DagsterEventType.RUN_SUCCESS.value, job_name=run.job_name)
            self.instance.report_dagster_event(event, run_id)
        else:
            self.instance.report_run_failed(run)

    def run_reports(self, run_id: str, record: CheckpointRecord) -> None:
        """As the step of a run does."""
        event = dg.AssetMaterialization(self.assets.checkpoint, metadata=checkpoint_metadata(record))
        made = dg.DagsterEvent(
            event_type_value=dg.DagsterEventType.ASSET_MATERIALIZATION.value,
            job_name="__ASSET_JOB",
            event_specific_data=StepMaterializationData(event),
        )
        self.instance.report_dagster_event(made, run_id)


def number(event: dg.AssetMaterialization | dg.AssetObservation, name: str) -> int | float:
    """A number in what an event says."""
    value = event.metadata[f"coord_control/{name}"].value
    assert isinstance(value, (int, float))
    return value


def text(event: dg.AssetMaterialization | dg.AssetObservation, name: str) -> str:
    """A text in what an event says."""
    value = event.metadata[f"coord_control/{name}"].value
    assert isinstance(value, str)
    return value
