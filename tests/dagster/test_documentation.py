"""docs/dagster.md says what the code does: every name in its tables is one of the code's, and none is missing."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import dagster as dg
import pytest

from coord_control.dagster import (
    ControlPlaneSpec,
    StartSpec,
    StreamingJobSpec,
    SuperviseSpec,
    build_streaming_definitions,
)
from coord_control.dagster.asset_checks import CHECKS
from coord_control.dagster.definitions.assets import CheckpointConfig, SavepointConfig
from coord_control.dagster.facts import DatabaseFacts, KnownJob, KnownModel, KnownOperator
from coord_control.dagster.feed.blocked import blocked_entries, blocked_marks
from coord_control.dagster.links import link_entries
from coord_control.dagster.metadata import (
    NAMESPACE,
    Metadata,
    checkpoint_metadata,
    entries,
    failure_metadata,
    query_metadata,
    recovery_metadata,
    written_metadata,
)
from coord_control.dagster.runs.action_configs import (
    ActionConfig,
    AskConfig,
    ForkConfig,
    PromoteConfig,
    RefConfig,
    RestoreConfig,
    SendConfig,
    SetConfig,
    StartConfig,
    StopConfig,
    UpgradeConfig,
)
from coord_control.dagster.runs.form_configs import event_choice, live_choice
from coord_control.ids import Epoch
from coord_control.storage.records import (
    BlockedRecord,
    CheckpointKind,
    GatewayRecord,
    LiveStatus,
    LiveUse,
    LiveValueRecord,
    OperatorRecord,
    QueryRecord,
)
from tests import records_kit as records
from tests.records_kit import NOON, operator_part, query_part, subtask_part

PAGE: Final = (Path(__file__).resolve().parents[2] / "docs" / "dagster.md").read_text(encoding="utf-8")

OPERATOR: Final = operator_part(operator="threshold", coordinator_bytes=21, subtasks=1, passed_subtasks=1)
QUERY: Final = query_part(query="alerts", boundary=41, boundary_seconds=1.5, pin_seconds=0.5, operators=(OPERATOR,))
CHECKPOINT: Final = records.checkpoint(
    7,
    kind=CheckpointKind.SAVEPOINT,
    finished_at=NOON + timedelta(seconds=2),
    duration_seconds=2.0,
    label="before",
    cause="command",
    requested_by="ada",
    generation=3,
    path="/savepoints/7",
    reason="expired",
    message="it took too long",
    queries=(QUERY,),
)
LIMITS: Final = LiveValueRecord(
    name="limits",
    version=3,
    value={"minutes": 45},
    by="ada",
    at=NOON,
    uses={"alerts": LiveUse(version=3, since=Epoch(7), next_epoch=None)},
)
JOB: Final = records.job(
    generation=3, live_values=(LIMITS,), live=LiveStatus(spark_ui="http://driver:4040"), log_file="/flights.log"
)
RECOVERY: Final = records.recovery(
    cause="restore",
    query="alerts",
    from_epoch=30,
    from_checkpoint=5,
    path="/checkpoints/5",
    duration_seconds=4.5,
    message="somebody asked",
)
QUERY_NOW: Final = QueryRecord(
    name="alerts",
    epoch=3,
    input_rows_per_second=1.5,
    rows_per_second=1.0,
    backlog=7,
    backlog_of_partitions={"0/orders/1": 7},
    lag_seconds=2.0,
    state_rows=5,
    watermark=NOON,
    rows=7,
    output_rows=5,
)
OPERATOR_NOW: Final = OperatorRecord(
    uid="threshold",
    query="alerts",
    blocked_by={"epoch": BlockedRecord(), "checkpoint": BlockedRecord()},
    gateways=(GatewayRecord(subtask=0, blocked_total=1),),
)

COMPLETED: Final = checkpoint_metadata(
    CHECKPOINT, [subtask_part(operator="threshold", subtask=0)], job=JOB, recovery=RECOVERY, sequence=1, note="why"
)
FORM: Final = KnownModel("limits", {"properties": {"minutes": {"type": "integer"}}})
#: Everything that Dagster shows of these, by what introduces the table in the page.
TABLES: Final[dict[str, Metadata]] = {
    "A completed checkpoint or savepoint": COMPLETED,
    "One that failed": failure_metadata(CHECKPOINT, [subtask_part(operator="threshold", subtask=0)], sequence=1),
    "A recovery": recovery_metadata(RECOVERY, sequence=1),
    "A query whose epoch has moved": query_metadata(QUERY_NOW, [LIMITS])
    | entries(blocked_entries([OPERATOR_NOW], 3, blocked_marks([OPERATOR_NOW], 3))),
    "A query with `materialize`": written_metadata(QUERY_NOW, since_epoch=1, rows_read=7, rows_written=5),
    "Each of these links to": entries(link_entries("flights", JOB, page="http://ui:8765")),
}
TYPES: Final = {
    dg.IntMetadataValue: "int",
    dg.FloatMetadataValue: "float",
    dg.TextMetadataValue: "text",
    dg.PathMetadataValue: "path",
    dg.TimestampMetadataValue: "timestamp",
    dg.MarkdownMetadataValue: "Markdown",
    dg.TableMetadataValue: "table",
    dg.UrlMetadataValue: "link",
}


def rows_after(text: str) -> list[list[str]]:
    """The cells of the first table behind a text, without its head."""
    behind = PAGE[PAGE.index(f"\n{text}") :]
    table = re.search(r"(?:^\|.*\n)+", behind, flags=re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()[2:]]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("introduction", TABLES)
def test_every_metadata_key_has_a_row_with_its_type(introduction: str) -> None:
    metadata = TABLES[introduction]
    described = {name: kind for cell, kind, *_ in rows_after(introduction) for name in names(cell)}
    assert {f"{NAMESPACE}{name}" for name in described} == metadata.keys()
    for name, kind in described.items():
        known = metadata[f"{NAMESPACE}{name}"]
        assert kind in (TYPES[type(known)], ""), name
        assert kind or f"{NAMESPACE}{name}" in COMPLETED, f"{name} has no type, and is in no table above"


def test_nothing_that_could_be_shown_is_left_out_of_the_records_above() -> None:
    for record, unset in (
        (CHECKPOINT, {"key", "sequence"}),
        (RECOVERY, {"id", "sequence"}),
        (QUERY_NOW, {"updated_at"}),
    ):
        assert {each.name for each in fields(record) if getattr(record, each.name) is None} == unset


@pytest.mark.parametrize("key", ["queries", "subtask_table"])
def test_the_columns_of_the_tables_are_described(key: str) -> None:
    table: Any = COMPLETED[f"{NAMESPACE}{key}"]
    (meaning,) = (cells[-1] for cells in rows_after("A completed checkpoint") if names(cells[0]) == [key])
    assert names(meaning) == [column.name for column in table.schema.columns]


def test_every_field_of_the_launchpad_has_a_row() -> None:
    described = [names(cells[0])[0] for cells in rows_after("**Materialize** waits")]
    assert set(described) == SavepointConfig.model_fields.keys()
    of_savepoints = {names(cells[0])[0] for cells in rows_after("**Materialize** waits") if "savepoints:" in cells[1]}
    assert of_savepoints == SavepointConfig.model_fields.keys() - CheckpointConfig.model_fields.keys()


def test_every_action_has_a_row_with_its_config() -> None:
    facts = DatabaseFacts((KnownJob("flights", (), (KnownOperator("op", (FORM,)),), (FORM,)),))
    live, event = (choice(facts.jobs, str, ["flights"]) for choice in (live_choice, event_choice))
    assert live is not None
    assert event is not None
    configs: dict[str, type[ActionConfig]] = {
        "start_streaming_job": StartConfig,
        "upgrade_streaming_job": UpgradeConfig,
        "stop_streaming_job": StopConfig,
        "restart_streaming_job": ActionConfig,
        "restore_streaming_job": RestoreConfig,
        "fork_streaming_job": ForkConfig,
        "promote_streaming_job": PromoteConfig,
        "send_control_event": SendConfig,
        "send_control_event_form": event.config,
        "set_live_value": SetConfig,
        "set_live_value_form": live.config,
        "ask_operator": AskConfig,
        "dispose_savepoint": RefConfig,
        "verify_savepoint": RefConfig,
    }
    of_all = {"job", *ActionConfig.model_fields}
    all_fields = {name for config in configs.values() for name in config.model_fields}
    described: dict[str, set[str]] = {}
    for jobs, config, *_ in rows_after("Jobs of Dagster with one step each"):
        for job in names(jobs):
            described[job] = {field for field in names(config) if field in all_fields}
    assert described == {name: set(config.model_fields) - of_all for name, config in configs.items()}
    spec = StreamingJobSpec(name="flights", start=StartSpec(script="flights.py"), supervise=SuperviseSpec())
    made = build_streaming_definitions(ControlPlaneSpec(jobs=[spec]), facts=facts).get_repository_def()
    assert described.keys() == set(made.job_names) - {"__ASSET_JOB"}


def test_every_check_has_a_row() -> None:
    assert [names(cells[0]) for cells in rows_after("## Checks and freshness")] == [[name] for name in CHECKS]


@pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.BetaWarning")  # of Dagster, about itself
def test_every_python_in_the_page_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    made = [found for found in map(_run, blocks) if "defs" in found]
    assert len(blocks) > len(made) == 1
    defs = made[0]["defs"]
    dg.Definitions.validate_loadable(defs)
    assert dg.AssetKey(["flights", "query", "airports"]) in defs.resolve_all_asset_keys()


def _run(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "documentation"}
    exec(block, names)
    return names
