"""`coordctl savepoint state`: operators of the job from the metadata, wrong names, and what Spark answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from coord_control.cli import savepoint_state
from coord_control.durable.checkpoints.metadata_file import (
    CheckpointMetadata,
    OperatorSnapshot,
    QuerySnapshot,
    StateOperator,
    encode_metadata,
)
from coord_control.ids import Epoch, OperatorUid, QueryName, SubtaskIndex
from coord_control.spark.states.state_request import StateRequest, StateRows
from tests.cli_kit import call
from tests.unit.durable.metadata_kit import full_metadata

QUERY = QueryName("delays")
SAVE = StateOperator(id=0, name="stateStoreSave", provider="hdfs", partitions=2, stores=("default",))
JOIN = StateOperator(id=1, name="symmetricHashJoin", provider="hdfs", partitions=2, stores=("default",))


def metadata(
    states: Mapping[int, str | None], *spark: StateOperator, coordinator: bytes | None = None, parallelism: int = 3
) -> CheckpointMetadata:
    snapshot = OperatorSnapshot(
        query=QUERY,
        parallelism=parallelism,
        state="S",
        coordinator_state=coordinator,
        subtask_states={SubtaskIndex(n): None if one is None else one.encode() for n, one in states.items()},
    )
    query = QuerySnapshot(
        query_id="q", epoch=Epoch(41), lineage="l", spark_version="4.3.0", offsets=(1,), state_operators=spark
    )
    return full_metadata().model_copy(
        update={"queries": {QUERY: query}, "operators": {OperatorUid("limits"): snapshot}, "live": {}}
    )


def put(folder: Path, content: CheckpointMetadata) -> str:
    folder.mkdir()
    (folder / "_metadata").write_bytes(encode_metadata(content))
    return str(folder)


@pytest.fixture
def one(tmp_path: Path) -> str:
    return put(tmp_path / "one", metadata({0: '{"n":1}', 1: '{"n":2}'}, coordinator=b'{"sent":1}'))


def run(*arguments: str, code: int = 0) -> str:
    done = call("savepoint", "state", *arguments)
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def run_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def test_the_states_of_the_only_operator_are_shown_without_spark(one: str) -> None:
    shown = run(one, "delays", "--limit", "2")
    assert f"operator limits of query delays after epoch 41: savepoint 7 of job flights in {one}" in shown
    assert 'coordinator: {"sent": 1}' in shown
    assert '{"n": 2}' in shown
    assert "there is more: --limit shows more rows" in shown
    found = run_json(one, "delays")
    assert (found["operator"], found["coordinator"]) == ({"id": None, "name": "limits"}, {"sent": 1})
    assert found["rows"][1:] == [
        {"subtask": 1, "state": {"n": 2}, "size": 7, "waiting": 0},
        {"subtask": 2, "state": None, "size": 0, "waiting": 0},
    ]


def test_two_savepoints_are_compared_subtask_by_subtask(one: str, tmp_path: Path) -> None:
    other = put(tmp_path / "other", metadata({0: '{"n":1}', 1: '{"n":3}', 2: "{}", 3: "{}"}, parallelism=4))
    found = run_json(one, "delays", "--compare", other)
    assert (found["path"], found["compared_with"]) == (one, other)
    assert found["counts"] == {"added": 1, "removed": 1, "changed": 2}
    assert found["rows"] == [
        {"change": "removed", "subtask": None, "before": {"sent": 1}, "after": None},
        {"change": "changed", "subtask": 1, "before": {"n": 2}, "after": {"n": 3}},
        {"change": "changed", "subtask": 2, "before": None, "after": {}},
        {"change": "added", "subtask": 3, "before": None, "after": {}},
    ]
    shown = run(one, "delays", "--compare", other)
    assert f"savepoint 7 in {other} has: 1 added, 1 removed, 2 changed" in shown
    assert "coordinator" in shown
    same = run(one, "delays", "--compare", one)
    assert "0 added, 0 removed, 0 changed" in same


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("delay",), "has no query 'delay'; it has: delays; did you mean delays?"),
        (("delays",), "name one of: 0 (stateStoreSave), 1 (symmetricHashJoin), limits"),
        (
            ("delays", "--operator", "limit"),
            "1 (symmetricHashJoin), limits; did you mean limits?",
        ),
        (("delays", "--operator", "1"), "more than one state; name one of: left, right"),
        (("delays", "--operator", "1", "--state", "lef"), "it has: left, right; did you mean left?"),
    ],
)
def test_a_wrong_name_is_answered_before_spark_is_started(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    path = put(tmp_path / "both", metadata({}, SAVE, JOIN))
    assert message in run(path, *arguments, code=78)


def test_a_state_is_an_option_of_sparks_operators(one: str) -> None:
    assert "limits is one of the job" in run(one, "delays", "--state", "left", code=2).replace("\n", " ")


def test_spark_is_asked_for_rows_and_its_problem_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "spark", metadata({}, SAVE))
    asked = list[StateRequest]()
    answer = StateRows(rows=[{"key": {"k": 1}, "value": {"n": None}, "partition_id": 1}], has_more=False)

    def read(request: StateRequest) -> StateRows:
        asked.append(request)
        return answer

    monkeypatch.setattr(savepoint_state, "read_state", read)
    command = (path, "delays", "--operator", "0", "--scratch", str(tmp_path / "scratch"))
    found = run_json(*command)
    assert (found["rows"], found["state"], found["epoch"]) == (answer.rows, None, 41)
    shown = run(*command)
    assert "partition id" in shown
    assert '{"k": 1}' in shown
    assert [(one.operator, one.state, one.other, one.limit) for one in asked] == [(0, None, None, 20)] * 2
    assert asked[0].scratch == str(tmp_path / "scratch")
    answer = StateRows()
    assert "it is empty" in run(*command)
    answer = StateRows(problem="[CANNOT_LOAD_STATE_STORE] no")
    refused = run(*command, code=65)
    assert "Spark could not load the state of operator 0 (stateStoreSave) of query delays of" in refused
    assert f"coordctl savepoint verify {path}" in refused
