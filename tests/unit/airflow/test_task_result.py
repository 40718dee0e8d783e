"""The results of tasks: flat, of types that JSON has, with the names that Dagster shows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from coord_control.airflow.task_result import checkpoint_metadata, event_metadata, live_metadata, restore_metadata
from coord_control.control.commands import LiveResult, RestoreResult, SendEventResult
from coord_control.dagster.metadata import NAMESPACE
from coord_control.dagster.metadata import checkpoint_metadata as dagster_metadata
from tests import control_kit as kit


def of_checkpoint(folder: Path, **changes: Any) -> tuple[dict[str, Any], set[str]]:
    """The metadata of a checkpoint, and the names of Dagster's."""
    with kit.opened(folder) as store:
        kit.put_job(store)
        kit.put_live_value(store, minutes=45, carrier="UA", on=True)
        kit.put_checkpoint(store, 7, **changes)
        record, job = store.checkpoints.get(kit.JOB, 7), store.jobs.get(kit.JOB)
    theirs = {name.removeprefix(NAMESPACE) for name in dagster_metadata(record, job=job)}
    return dict(checkpoint_metadata(record, job)), theirs


def test_a_checkpoint_has_the_names_of_dagster_as_plain_values(tmp_path: Path) -> None:
    found, theirs = of_checkpoint(tmp_path, label="nightly")

    assert json.loads(json.dumps(found)) == found
    assert found["checkpoint_id"] == 7
    assert found["size_bytes"] == 1_234_567
    assert found["duration_seconds"] == 2.0
    assert found["label"] == "nightly"
    assert found["query/alerts/epoch"] == 47
    assert found["live/limits/minutes"] == 45
    assert found["live/limits/on"] == 1
    assert found["triggered_at"].startswith(str(kit.NOON.date()))
    tables_and_text = {"queries", "subtask_table", "live_values", "reported_by", "recovery", "sequence", "note"}
    assert theirs - tables_and_text <= found.keys()


def test_what_is_unknown_is_left_out(tmp_path: Path) -> None:
    found, _ = of_checkpoint(tmp_path, label=None, duration_seconds=math.inf)

    assert "label" not in found
    assert "duration_seconds" not in found


def test_the_other_results_are_flat() -> None:
    live = LiveResult(name="limits", version=4, value={"minutes": 3, "of": ["UA"]}, by="ada", at=kit.NOON)
    assert live_metadata(live) == {
        "live_value": "limits",
        "version": 4,
        "by": "ada",
        "live/limits/minutes": 3,
        "live/limits/of": '["UA"]',
    }
    assert event_metadata("threshold", "Threshold", SendEventResult(number=3)) == {
        "number": 3,
        "operator": "threshold",
        "event_type": "Threshold",
    }
    restored = restore_metadata("storage", RestoreResult(path="/s/1", checkpoint=1, job="flights"))
    assert restored["way"] == "storage"
    assert restored["checkpoint_id"] == 1
