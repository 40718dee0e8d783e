"""Find states of a checkpoint by the names that people use, and read those of the job's own operators.

Spark numbers its stateful operators, and names them by what they do: ``stateStoreSave``, ``dedupe``,
``symmetricHashJoin``. A join has a state on each side, and ``transformWithState`` one per variable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from coord_control.coordinators.requests import StatesPage, SubtaskState
from coord_control.coordinators.saved_state import as_json
from coord_control.durable.checkpoints.metadata_file import (
    CheckpointMetadata,
    OperatorSnapshot,
    QuerySnapshot,
    StateOperator,
)
from coord_control.errors import NotInCheckpoint
from coord_control.ids import NO_EPOCH, Epoch, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.records import count

__all__ = [
    "SparkState",
    "find_operator",
    "find_query",
    "find_spark_operator",
    "find_state",
    "operator_states",
    "states_of",
]

_JOIN: Final = "symmetricHashJoin"

_Operator = TypeVar("_Operator", StateOperator, StateOperator | OperatorUid)


@dataclass(frozen=True, slots=True)
class SparkState:
    """One state of one of Spark's operators.

    Attributes:
        epoch: the last one whose changes it has.
        name: a side of a join, or a state variable; empty if the operator has only one state.
        options: what selects it in Spark's data source, besides operator and epoch.
    """

    query: QueryName
    epoch: Epoch
    operator: StateOperator
    name: str
    options: Mapping[str, str]

    @property
    def is_of_join(self) -> bool:
        """Whether one key can have several rows, because each row of a stream that waits for its partner is kept."""
        return self.operator.name == _JOIN

    def __str__(self) -> str:
        name = f" {self.name}" if self.name else ""
        return f"the state{name} of operator {_label(self.operator)} of query {self.query}"


def find_query(metadata: CheckpointMetadata, query: str) -> QuerySnapshot:
    """Return a query by its name.

    Raises:
        NotInCheckpoint: it has no such query.
    """
    found = metadata.queries.get(QueryName(query))
    if found is None:
        raise NotInCheckpoint("query", query, _owner(metadata), sorted(metadata.queries))
    return found


def find_operator(metadata: CheckpointMetadata, query: str, operator: str | None) -> StateOperator | OperatorUid:
    """Return an operator of a query: one of Spark's by its id or name, or one of the job by its uid.

    Args:
        operator: None for the only one that has state.

    Raises:
        NotInCheckpoint: there is no such query or operator, or several fit.
    """
    known: dict[str, StateOperator | OperatorUid] = {**_spark_operators(metadata, query)}
    known.update((uid, uid) for uid, one in metadata.operators.items() if one.query == query)
    return _chosen(query, known, operator)


def find_spark_operator(metadata: CheckpointMetadata, query: str, operator: int | str | None) -> StateOperator:
    """Return one of Spark's operators by its id or name.

    Args:
        operator: None for the only one.

    Raises:
        NotInCheckpoint: there is no such query or operator, or several fit.
    """
    return _chosen(query, _spark_operators(metadata, query), operator)


def find_state(
    metadata: CheckpointMetadata, query: str, operator: StateOperator, state: str | None, options: Mapping[str, str]
) -> SparkState:
    """Return a state of one of Spark's operators.

    Args:
        state: a side of a join, or a state variable; None for the only one.
        options: options of Spark's data source. If there are any and no ``state``, they alone select what is read.

    Raises:
        NotInCheckpoint: there is no such state, or several and none was named.
    """
    snapshot = find_query(metadata, query)
    if options and state is None:
        return SparkState(QueryName(query), snapshot.epoch, operator, "", options)
    found = list(states_of(QueryName(query), snapshot, operator))
    wanted = [one for one in found if state in (None, one.name)]
    if len(wanted) != 1:
        known = sorted(one.name for one in found if one.name)
        raise NotInCheckpoint("state", state, f"operator {_label(operator)} of query {query!r}", known)
    [one] = wanted
    return SparkState(one.query, one.epoch, operator, one.name, {**one.options, **options})


def states_of(query: QueryName, snapshot: QuerySnapshot, operator: StateOperator) -> Iterator[SparkState]:
    """Yield the states of one of Spark's operators: sides of a join, state variables, or the only one."""
    for name, options in _states(operator):
        yield SparkState(query, snapshot.epoch, operator, name, options)


def operator_states(metadata: CheckpointMetadata, uid: str) -> StatesPage:
    """Return the states of an operator of the job: of its coordinator, and of all subtasks.

    The state of a subtask is None with ``size`` 0 if it still has the default of its model, which only the program
    knows.

    Raises:
        NotInCheckpoint: there is no such operator.
        DamagedRecord, UnsupportedFormat: the coordinator's state cannot be taken apart.
    """
    snapshot = metadata.operators.get(OperatorUid(uid))
    if snapshot is None:
        raise NotInCheckpoint("operator", uid, _owner(metadata), sorted(metadata.operators))
    epoch, coordinator = find_query(metadata, snapshot.query).epoch, snapshot.coordinator_data
    return StatesPage(
        epoch=None if epoch == NO_EPOCH else epoch,
        parallelism=snapshot.parallelism,
        coordinator=None if coordinator is None else as_json(coordinator),
        coordinator_size=len(coordinator or b""),
        subtasks=tuple(_subtask_state(snapshot, SubtaskIndex(number)) for number in range(snapshot.parallelism)),
        next_after=None,
    )


def _subtask_state(snapshot: OperatorSnapshot, subtask: SubtaskIndex) -> SubtaskState:
    data = snapshot.subtask_states.get(subtask)
    planned = () if snapshot.planned is None else snapshot.planned.inputs.get(subtask, ())
    waiting = count(planned) + count(snapshot.down.get(subtask, ()))
    state = None if data is None else as_json(data)
    return SubtaskState(subtask=subtask, state=state, size=len(data or b""), waiting=waiting)


def _spark_operators(metadata: CheckpointMetadata, query: str) -> dict[str, StateOperator]:
    return {_label(one): one for one in find_query(metadata, query).state_operators}


def _chosen(query: str, known: Mapping[str, _Operator], operator: int | str | None) -> _Operator:
    found = {label: one for label, one in known.items() if operator is None or str(operator) in _names(one)}
    if len(found) == 1:
        return next(iter(found.values()))
    name = None if operator is None or found else str(operator)
    raise NotInCheckpoint("operator with state", name, f"query {query!r}", found or known)


def _names(operator: StateOperator | OperatorUid) -> tuple[str, ...]:
    return (str(operator.id), operator.name) if isinstance(operator, StateOperator) else (operator,)


def _label(operator: StateOperator) -> str:
    return f"{operator.id} ({operator.name})" if operator.name else str(operator.id)


def _owner(metadata: CheckpointMetadata) -> str:
    return f"{metadata.kind} {metadata.checkpoint} of job {metadata.job!r}"


def _states(operator: StateOperator) -> Iterator[tuple[str, dict[str, str]]]:
    variables = operator.properties.get("stateVariables")
    if operator.name == _JOIN:
        for side in ("left", "right"):
            yield side, {"joinSide": side}
    elif isinstance(variables, list) and variables:
        for variable in variables:
            name = str(variable.get("stateName", "")) if isinstance(variable, dict) else str(variable)
            if name and not name.startswith("$"):  # Spark's own, of timers
                yield name, {"stateVarName": name}
    else:
        yield "", {}
