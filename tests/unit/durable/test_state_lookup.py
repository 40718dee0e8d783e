"""States of a checkpoint are found by the names that people use, and a wrong name is answered with what there is."""

from __future__ import annotations

import pytest

from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata, StateOperator
from coord_control.durable.checkpoints.state_lookup import (
    find_operator,
    find_spark_operator,
    find_state,
    operator_states,
    states_of,
)
from coord_control.errors import NotInCheckpoint
from coord_control.ids import Epoch, QueryName
from tests.unit.durable.metadata_kit import full_metadata

QUERY = QueryName("delays")


def spark_operator(number: int, name: str, **properties: object) -> StateOperator:
    return StateOperator(
        id=number, name=name, provider="hdfs", partitions=2, stores=("default",), properties=dict(properties)
    )


AGGREGATION = spark_operator(0, "stateStoreSave")
JOIN = spark_operator(1, "symmetricHashJoin")
#: Names of variables as Spark writes them, and one of Spark's own, of timers.
VARIABLES = spark_operator(2, "transformWithStateExec", stateVariables=[{"stateName": "total"}, {"stateName": "$proc"}])


def metadata(*operators: StateOperator) -> CheckpointMetadata:
    """A checkpoint whose query `delays` has these operators of Spark, and two of the job: silent and threshold."""
    full = full_metadata()
    query = full.queries[QUERY].model_copy(update={"state_operators": operators})
    return full.model_copy(update={"queries": {**full.queries, QUERY: query}})


def test_an_operator_is_named_by_id_name_or_uid() -> None:
    there = metadata(AGGREGATION, JOIN)
    assert find_operator(there, QUERY, "1") == JOIN
    assert find_operator(there, QUERY, "stateStoreSave") == AGGREGATION
    assert find_operator(there, QUERY, "threshold") == "threshold"
    assert find_spark_operator(there, QUERY, 0) == AGGREGATION
    assert find_spark_operator(metadata(JOIN), QUERY, None) == JOIN


@pytest.mark.parametrize(
    ("query", "operator", "message"),
    [
        ("delay", None, "savepoint 7 of job 'flights' has no query 'delay'; it has: delays, raw; did you mean delays?"),
        ("raw", None, "query 'raw' has no operator with state; it has none"),
        ("raw", "threshold", "query 'raw' has no operator with state 'threshold'; it has none"),
        ("delays", "treshold", "it has: 0 (stateStoreSave), threshold, silent; did you mean threshold?"),
        ("delays", None, "more than one operator with state; name one of: 0 (stateStoreSave), threshold, silent"),
    ],
)
def test_a_wrong_name_is_answered_with_what_there_is(query: str, operator: str | None, message: str) -> None:
    with pytest.raises(NotInCheckpoint) as caught:
        find_operator(metadata(AGGREGATION), query, operator)
    assert message in str(caught.value)


def test_two_of_sparks_operators_with_one_name_need_an_id() -> None:
    there = metadata(AGGREGATION, spark_operator(3, "stateStoreSave"), JOIN)
    with pytest.raises(NotInCheckpoint, match=r"name one of: 0 \(stateStoreSave\), 3 \(stateStoreSave\)$"):
        find_spark_operator(there, QUERY, "stateStoreSave")


def test_the_states_of_an_operator_have_names_where_there_are_several() -> None:
    there = metadata(AGGREGATION, JOIN, VARIABLES)
    only = find_state(there, QUERY, AGGREGATION, None, {})
    assert (only.name, only.options, only.epoch, only.is_of_join) == ("", {}, 41, False)
    assert str(only) == "the state of operator 0 (stateStoreSave) of query delays"
    left = find_state(there, QUERY, JOIN, "left", {})
    assert (left.options, left.is_of_join) == ({"joinSide": "left"}, True)
    assert str(left) == "the state left of operator 1 (symmetricHashJoin) of query delays"
    assert find_state(there, QUERY, VARIABLES, None, {}).options == {"stateVarName": "total"}
    assert [one.name for one in states_of(QUERY, there.queries[QUERY], VARIABLES)] == ["total"]


def test_options_of_the_data_source_select_alone_or_are_added() -> None:
    there = metadata(JOIN, VARIABLES)
    raw = {"storeName": "left-keyToNumValues"}
    assert find_state(there, QUERY, JOIN, None, raw).options == raw
    added = find_state(there, QUERY, VARIABLES, "total", {"flattenCollectionTypes": "false"})
    assert added.options == {"stateVarName": "total", "flattenCollectionTypes": "false"}


def test_a_state_that_must_be_named_or_does_not_exist_is_refused() -> None:
    there = metadata(JOIN)
    with pytest.raises(NotInCheckpoint, match="more than one state; name one of: left, right"):
        find_state(there, QUERY, JOIN, None, {})
    with pytest.raises(NotInCheckpoint, match="no state 'lefd'; it has: left, right; did you mean left"):
        find_state(there, QUERY, JOIN, "lefd", {})


def test_the_states_of_an_operator_of_the_job_are_on_one_page() -> None:
    page = operator_states(full_metadata(), "threshold")
    # Bytes that are no JSON are base64, and the events of the planned epoch wait as well.
    assert (page.epoch, page.parallelism, page.coordinator, page.next_after) == (41, 4, "AP97fQ==", None)
    assert [(each.subtask, each.state, each.waiting) for each in page.subtasks] == [
        (0, {"city": "Zürich"}, 0),
        (1, None, 1),
        (2, None, 0),
        (3, None, 3),
    ]
    assert [each.size for each in page.subtasks] == [18, 0, 0, 0]


def test_an_operator_that_has_committed_nothing_has_no_epoch() -> None:
    full = full_metadata()
    query = full.queries[QUERY].model_copy(update={"epoch": Epoch(-1)})
    page = operator_states(full.model_copy(update={"queries": {QUERY: query}}), "silent")
    assert (page.epoch, page.coordinator, page.coordinator_size) == (None, None, 0)
    with pytest.raises(NotInCheckpoint, match="no operator 'silend'; it has: silent, threshold; did you mean silent"):
        operator_states(full, "silend")
