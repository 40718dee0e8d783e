"""Whether what a checkpoint has saved fits the program: states, events in transit and live values against its models.

A restore asks before it takes place: what does not fit would end a query after the job has been set back.

Threads: that of the job's methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from coord_control.coordinators.contract import OperatorCoordinator
from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata, OperatorSnapshot
from coord_control.durable.restore.checks import Check, Verdict
from coord_control.errors import EventInvalid, LiveValueInvalid, StateInvalid
from coord_control.ids import OperatorUid
from coord_control.protocol.records import EventBatch
from coord_control.spark.live.live_model import LiveModel
from coord_control.spark.worker.model_codec import EventTypes, StateType

__all__ = ["OperatorModels", "check_live", "check_saved"]

_WAY_OUT: Final = "let the model accept what an earlier one has saved"


@dataclass(frozen=True, slots=True)
class OperatorModels:
    """What the program reads the saved part of an operator with."""

    state: StateType[Any]
    coordinator: OperatorCoordinator
    down: EventTypes
    up: EventTypes


def check_saved(metadata: CheckpointMetadata, operators: Mapping[OperatorUid, OperatorModels]) -> list[Check]:
    """Check the operators of a program that the checkpoint has."""
    return [
        check
        for uid, models in sorted(operators.items())
        if (snapshot := metadata.operators.get(uid)) is not None
        for check in (
            _check_states(uid, models.state, snapshot),
            _check_coordinator(uid, models.coordinator, snapshot.coordinator_data),
            _check_events(uid, models, snapshot),
        )
    ]


def check_live(metadata: CheckpointMetadata, models: Iterable[LiveModel[Any]]) -> list[Check]:
    """Check the live values of a program that the checkpoint has."""
    return [_check_live(model, metadata.live[model.name].value) for model in models if model.name in metadata.live]


def _check_states(uid: OperatorUid, state: StateType[Any], snapshot: OperatorSnapshot) -> Check:
    try:
        for subtask, data in snapshot.subtask_states.items():
            state.load(subtask, data)
    except StateInvalid as error:
        return Check("states", uid, Verdict.REFUSED, str(error), _WAY_OUT)
    return Check("states", uid, Verdict.OK, f"{len(snapshot.subtask_states)} are valid for {state.model.__name__}")


def _check_coordinator(uid: OperatorUid, coordinator: OperatorCoordinator, data: bytes | None) -> Check:
    name = type(coordinator).__name__
    try:
        if data is not None:
            coordinator.check_saved_state(data)
    except Exception as error:
        found = f"{name} refuses what was saved: {error}"
        return Check("coordinator", uid, Verdict.REFUSED, found, _WAY_OUT)
    return Check("coordinator", uid, Verdict.OK, f"{name} has nothing against what was saved")


def _check_events(uid: OperatorUid, models: OperatorModels, snapshot: OperatorSnapshot) -> Check:
    down = [batch for batches in snapshot.down.values() for batch in batches]
    up = [batch for outbox in snapshot.outboxes() for batch in outbox.events]
    if snapshot.planned is not None:
        planned = snapshot.planned.replay(uid)
        down += [batch for batches in planned.inputs.values() for batch in batches]
        up += [batch for ack in planned.acks.values() for batch in ack.outbox]
    try:
        _decode(models.down, snapshot.down_types, down)
        _decode(models.up, snapshot.up_types, up)
    except EventInvalid as error:
        return Check("events", uid, Verdict.REFUSED, f"one in transit does not fit: {error}", _WAY_OUT)
    return Check("events", uid, Verdict.OK, "those in transit are valid for their models")


def _decode(types: EventTypes, saved: tuple[str, ...], batches: list[EventBatch]) -> None:
    now = tuple(model.__qualname__ for model in types.models)
    if now[: len(saved)] == saved:  # otherwise the lineage refuses it, and names what has changed
        types.decode(batches)


def _check_live(model: LiveModel[Any], value: bytes) -> Check:
    try:
        model.texts(value)
    except LiveValueInvalid as error:
        return Check("live value", model.name, Verdict.REFUSED, error.problems, _WAY_OUT)
    return Check("live value", model.name, Verdict.OK, f"it is valid for {model.model.__name__}")
