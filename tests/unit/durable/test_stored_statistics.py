"""What a checkpoint's metadata says of it is what its driver measured, or at least what the checkpoint holds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata
from coord_control.durable.checkpoints.stored_statistics import stored_statistics
from coord_control.ids import CheckpointKind
from coord_control.protocol.statistics import CheckpointStatus, to_json
from tests.unit.durable.metadata_kit import full_metadata
from tests.unit.protocol.test_statistics import CHECKPOINT


def metadata(statistics: Any) -> CheckpointMetadata:
    return full_metadata().model_copy(update={"statistics": statistics})


def test_what_was_measured_is_read_back() -> None:
    found = stored_statistics(metadata(json.loads(json.dumps(to_json(CHECKPOINT)))), "/there")

    assert found.queries == CHECKPOINT.queries
    assert (found.status, found.path, found.duration_seconds) == (CheckpointStatus.COMPLETED, "/there", 1.0)
    assert (found.label, found.key, found.cause) == ("before-the-upgrade", "k-1", "api")


def of_an_older_release() -> dict[str, Any]:
    """Return measurements with the names that the fields of a subtask had at first."""
    text = json.dumps(to_json(CHECKPOINT)).replace('"passed_seconds"', '"seconds"')
    found: dict[str, Any] = json.loads(text.replace('"ack_seconds"', '"acknowledged_seconds"'))
    return found


@pytest.mark.parametrize(
    "statistics",
    [{}, {"queries": [{"query": 7}]}, {"queries": "of another release"}, of_an_older_release()],
    ids=["none", "wrong", "no list", "older release"],
)
def test_without_measurements_it_is_what_the_checkpoint_holds(statistics: dict[str, Any]) -> None:
    held = full_metadata()

    found = stored_statistics(metadata(statistics), "/there")

    assert {query.query: query.boundary for query in found.queries} == {
        name: query.epoch for name, query in held.queries.items()
    }
    assert sum(query.file_bytes for query in found.queries) == held.size
    assert sum(query.files for query in found.queries) == held.file_count
    assert found.subtasks == sum(operator.parallelism for operator in held.operators.values())
    assert found.passed_subtasks == found.subtasks
    assert found.state_bytes > held.size
    assert found.kind is CheckpointKind.SAVEPOINT
    assert found.new_bytes == found.state_bytes  # a savepoint shares nothing, whoever has measured it
