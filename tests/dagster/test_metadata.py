from __future__ import annotations

from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from coord_control.dagster.metadata import (
    Metadata,
    checkpoint_metadata,
    failure_metadata,
    query_metadata,
    recovery_metadata,
)
from coord_control.ids import Epoch
from coord_control.storage.records import (
    CheckpointKind,
    CheckpointRecord,
    CheckpointState,
    JobRecord,
    LiveUse,
    LiveValueRecord,
    QueryRecord,
    RecoveryRecord,
)
from tests import records_kit as records
from tests.records_kit import NOON, operator_part, query_part, subtask_part


def _record(**changes: Any) -> CheckpointRecord:
    operator = operator_part(operator="threshold", coordinator_bytes=21, subtasks=2, passed_subtasks=2)
    other = operator_part(operator="router", coordinator_bytes=4, subtasks=2, passed_subtasks=2)
    values: dict[str, Any] = {
        "kind": CheckpointKind.SAVEPOINT,
        "triggered_at": NOON,
        "finished_at": NOON + timedelta(seconds=2.5),
        "duration_seconds": 2.5,
        "label": "before-upgrade",
        "cause": "command",
        "requested_by": "ada",
        "generation": 3,
        "state_bytes": 1_000_000,
        "new_bytes": 4000,
        "channel_bytes": 12,
        "blocked_events": 5,
        "blocked_seconds": 0.25,
        "snapshot_seconds": 0.125,
        "subtasks": 4,
        "passed_subtasks": 4,
        "path": "/jobs/flights/savepoints/7",
        "queries": (
            query_part(
                query="alerts",
                boundary=41,
                boundary_seconds=1.5,
                pin_seconds=0.5,
                files=3,
                file_bytes=900,
                offsets={"events": {"0": 17}},
                operators=(operator, other),
            ),
            query_part(query="counts", boundary=12, boundary_seconds=0.5, pin_seconds=0.75, files=1),
        ),
    }
    return records.checkpoint(7, **values | changes)


def _job(restarts: tuple[int, ...]) -> JobRecord:
    return records.job(generation=3, queries=tuple(QueryRecord(name=f"q{count}", restarts=count) for count in restarts))


def _recovery(**changes: Any) -> RecoveryRecord:
    values: dict[str, Any] = {
        "generation": 3,
        "cause": "restore",
        "what": "alerts resumes from checkpoint 5 at epoch 30",
        "query": "alerts",
        "from_epoch": 30,
        "from_checkpoint": 5,
        "path": "/jobs/flights/checkpoints/5",
        "duration_seconds": 4.5,
        "epochs_rerun": 2,
        "message": "somebody asked",
    }
    return records.recovery(**values | changes)


def _values(metadata: Metadata) -> dict[str, Any]:
    assert all(name.startswith("coord_control/") for name in metadata)
    return {name.removeprefix("coord_control/"): value.value for name, value in metadata.items()}


def _rows(value: object) -> list[dict[str, Any]]:
    assert isinstance(value, dg.TableMetadataValue)
    return [dict(record.data) for record in value.records]


def test_durations_are_shown_to_the_microsecond() -> None:
    part = subtask_part(operator="threshold", subtask=0, passed_seconds=0.00040694099880056456, ack_seconds=0.2 / 3)
    values = _values(checkpoint_metadata(_record(duration_seconds=1.0782546420014114), [part]))
    assert values["duration_seconds"] == 1.078255
    [row] = _rows(checkpoint_metadata(_record(), [part])["coord_control/subtask_table"])
    assert (row["passed_seconds"], row["ack_seconds"]) == (0.000407, 0.066667)


def test_a_savepoint_says_all_of_itself() -> None:
    parts = [subtask_part(operator="threshold", subtask=index, passed_seconds=0.1) for index in range(2)]
    metadata = checkpoint_metadata(
        _record(), parts, job=_job((2, 3)), recovery=_recovery(), sequence=99, note="until 11:00", reported_by="sensor"
    )
    values = _values(metadata)
    tables = {"queries", "subtask_table"}
    texts = {"restore_command", "recovery"}

    assert {name: value for name, value in values.items() if name not in tables | texts} == {
        "checkpoint_id": "7",
        "kind": "savepoint",
        "label": "before-upgrade",
        "path": "/jobs/flights/savepoints/7",
        "size_bytes": 1_000_000,
        "new_bytes": 4000,
        "duration_seconds": 2.5,
        "boundary_seconds": 1.5,
        "pin_seconds": 0.75,
        "snapshot_seconds": 0.125,
        "passed_subtasks": "4",
        "subtasks": "4",
        "blocked_events": 5,
        "blocked_seconds": 0.25,
        "channel_bytes": 12,
        "coordinator_bytes": 25,
        "cause": "command",
        "requested_by": "ada",
        "triggered_at": NOON.timestamp(),
        "finished_at": NOON.timestamp() + 2.5,
        "generation": "3",
        "restarts": 5,
        "note": "until 11:00",
        "sequence": "99",
        "reported_by": "sensor",
    }
    assert tables | texts <= values.keys()


def test_what_is_measured_is_a_number_what_names_something_is_a_text_and_times_are_times() -> None:
    metadata = checkpoint_metadata(_record(), job=_job((1,)), sequence=1)
    kinds: dict[type[Any], set[str]] = {}
    for name, value in metadata.items():
        kinds.setdefault(type(value), set()).add(name.removeprefix("coord_control/"))

    assert kinds[dg.FloatMetadataValue] == {
        "duration_seconds",
        "boundary_seconds",
        "pin_seconds",
        "snapshot_seconds",
        "blocked_seconds",
    }
    assert kinds[dg.IntMetadataValue] == {
        "size_bytes",
        "new_bytes",
        "blocked_events",
        "channel_bytes",
        "coordinator_bytes",
        "restarts",
    }
    assert kinds[dg.TextMetadataValue] >= {"checkpoint_id", "generation", "sequence", "subtasks", "passed_subtasks"}
    assert kinds[dg.TimestampMetadataValue] == {"triggered_at", "finished_at"}
    assert kinds[dg.PathMetadataValue] == {"path"}


def test_each_query_has_a_row_with_its_boundary_and_its_offsets() -> None:
    rows = _rows(checkpoint_metadata(_record())["coord_control/queries"])

    assert rows[0] == {
        "query": "alerts",
        "epoch": 41,
        "boundary_seconds": 1.5,
        "pin_seconds": 0.5,
        "files": 3,
        "bytes": 900,
        "offsets": '{"events": {"0": 17}}',
    }
    assert rows[1]["offsets"] is None


def test_each_subtask_has_a_row_in_order() -> None:
    parts = [
        subtask_part(operator="b", subtask=1, passed_seconds=None),
        subtask_part(
            operator="b",
            subtask=0,
            passed_seconds=0.5,
            ack_seconds=0.4,
            state_bytes=8,
            blocked_events=2,
            blocked_seconds=0.25,
        ),
        subtask_part(operator="a", subtask=0, passed_seconds=0.1),
    ]
    rows = _rows(checkpoint_metadata(_record(), parts)["coord_control/subtask_table"])

    assert [(row["operator"], row["subtask"]) for row in rows] == [("a", 0), ("b", 0), ("b", 1)]
    assert rows[1] == {
        "operator": "b",
        "subtask": 0,
        "ack_seconds": 0.4,
        "passed_seconds": 0.5,
        "state_bytes": 8,
        "blocked_events": 2,
        "blocked_seconds": 0.25,
    }
    assert (rows[0]["ack_seconds"], rows[0]["passed_seconds"]) == (None, 0.1), "it had acknowledged before"
    assert (rows[2]["ack_seconds"], rows[2]["passed_seconds"]) == (None, None)


def test_of_very_many_subtasks_the_slowest_are_shown() -> None:
    parts = [subtask_part(operator="a", subtask=index, passed_seconds=float(index)) for index in range(700)]
    parts[3] = subtask_part(operator="a", subtask=3, passed_seconds=None)
    rows = _rows(checkpoint_metadata(_record(subtasks=700), parts)["coord_control/subtask_table"])

    assert len(rows) == 500
    assert [rows[0]["subtask"], rows[1]["subtask"], rows[-1]["subtask"]] == [3, 201, 699]


def test_what_is_not_known_is_left_out() -> None:
    record = _record(
        label=None, requested_by=None, queries=(), path=None, finished_at=None, duration_seconds=float("nan")
    )

    assert (
        _values(checkpoint_metadata(record))
        .keys()
        .isdisjoint(
            {
                "label",
                "requested_by",
                "queries",
                "path",
                "finished_at",
                "duration_seconds",
                "boundary_seconds",
                "coordinator_bytes",
                "subtask_table",
                "restarts",
                "recovery",
                "note",
                "sequence",
            }
        )
    )


def test_a_zero_that_was_measured_is_there() -> None:
    values = _values(checkpoint_metadata(_record(blocked_events=0, blocked_seconds=0, new_bytes=0)))

    assert [values["blocked_events"], values["blocked_seconds"], values["new_bytes"]] == [0, 0.0, 0]


def test_the_command_that_restores_can_be_pasted_into_a_shell() -> None:
    nasty = _record(job="it's", path="/save points/7")
    text = _values(checkpoint_metadata(nasty))["restore_command"]

    assert "coordctl restore 'it'\"'\"'s' 7\n" in text
    assert "coordctl restore 'it'\"'\"'s' '/save points/7' --as" in text
    assert "--as" not in _values(checkpoint_metadata(_record(kind=CheckpointKind.CHECKPOINT)))["restore_command"]


@pytest.mark.parametrize("message", ["```\n# heading", "[x](javascript:alert(1))", "<img src=x>", "`` ` ``"])
def test_what_users_write_stays_code_in_markdown(message: str) -> None:
    text = _values(recovery_metadata(_recovery(message=message)))["recovery"]
    [line] = [line for line in text.splitlines() if line.startswith("- why")]
    code = line.removeprefix("- why: ` restore ` ")
    fence = code[: len(code) - len(code.lstrip("`"))]

    assert code == f"{fence} {' '.join(message.split())} {fence}"
    assert fence not in message


def test_a_recovery_says_why_from_where_and_what_was_lost() -> None:
    values = _values(recovery_metadata(_recovery(), sequence=4))
    text = values.pop("recovery")

    assert values == {
        "recovery_cause": "restore",
        "query": "alerts",
        "from_checkpoint": "5",
        "from_epoch": "30",
        "path": "/jobs/flights/checkpoints/5",
        "recovery_seconds": 4.5,
        "epochs_rerun": 2,
        "generation": "3",
        "recovered_at": NOON.timestamp(),
        "message": "somebody asked",
        "sequence": "4",
    }
    assert "restored from checkpoint 5" in text
    assert "epochs run again: 2" in text


def test_a_failure_has_no_id_that_could_be_taken_for_a_completed_one() -> None:
    record = _record(state=CheckpointState.FAILED, reason="timeout", message="too slow")
    values = _values(failure_metadata(record, sequence=4))

    assert "subtask_table" not in values
    assert values["failed_checkpoint_id"] == "7"
    assert "checkpoint_id" not in values
    assert (values["reason"], values["message"]) == ("timeout", "too slow")


def test_a_query_says_how_it_fares() -> None:
    query = QueryRecord(
        name="alerts",
        epoch=42,
        restarts=1,
        input_rows_per_second=11.5,
        rows_per_second=10.5,
        backlog=7,
        backlog_of_partitions={"0/orders/1": 6, "0/orders/0": 1},
        lag_seconds=2.0,
        state_rows=9,
        watermark=NOON,
    )

    assert _values(query_metadata(query)) == {
        "epoch": 42,
        "input_rows_per_second": 11.5,
        "rows_per_second": 10.5,
        "backlog": 7,
        "backlog_of_partitions": '{"0/orders/1": 6, "0/orders/0": 1}',
        "lag_seconds": 2.0,
        "state_rows": 9,
        "watermark": NOON.timestamp(),
        "restarts": 1,
    }


def _limits(seen: int = 3) -> LiveValueRecord:
    return LiveValueRecord(
        name="limits",
        version=3,
        value={"minutes": 45, "share": 0.25, "on": True, "carrier": "UA", "since": None},
        by="ada",
        at=NOON,
        uses={
            "alerts": LiveUse(version=seen, since=Epoch(7), next_epoch=None if seen == 3 else Epoch(43)),
            "ranks": LiveUse(version=3, since=Epoch(9), next_epoch=None),
        },
    )


def test_live_values_are_shown_with_a_checkpoint_and_their_numbers_can_be_plotted() -> None:
    metadata = checkpoint_metadata(_record(), job=records.job(live_values=(_limits(2),)))
    live = {name: value.value for name, value in metadata.items() if "/live/" in name}
    assert live == {
        "coord_control/live/limits/version": 3,
        "coord_control/live/limits/minutes": 45,
        "coord_control/live/limits/share": 0.25,
        "coord_control/live/limits/on": 1,
    }
    [row] = _rows(metadata["coord_control/live_values"])
    assert row == {
        "name": "limits",
        "version": 3,
        "value": '{"minutes": 45, "share": 0.25, "on": true, "carrier": "UA", "since": null}',
        "by": "ada",
        "at": "2026-03-01T12:00:00+00:00",
        "in_force": "alerts: version 2 since epoch 7, version 3 from epoch 43 on; ranks: version 3 since epoch 9",
    }


def test_a_query_shows_the_live_values_that_it_sees() -> None:
    def shown(seen: int, query: str = "alerts") -> dict[str, Any]:
        return _values(query_metadata(QueryRecord(name=query), [_limits(seen)]))

    assert (shown(3)["live/limits/version"], shown(3)["live/limits/minutes"]) == (3, 45)
    assert shown(2)["live/limits/version"] == 2
    assert "live/limits/minutes" not in shown(2), "it is accepted, but the query does not see it yet"
    [row] = _rows(query_metadata(QueryRecord(name="alerts"), [_limits(2)])["coord_control/live_values"])
    assert row["in_force"] == "alerts: version 2 since epoch 7, version 3 from epoch 43 on"
    assert not [name for name in shown(3, "other") if "live" in name]
