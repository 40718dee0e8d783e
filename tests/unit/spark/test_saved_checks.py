"""What a checkpoint has saved against the models of a program."""

from __future__ import annotations

from typing import Any, Final

import pytest
from pydantic import BaseModel

import coord_control as cc
from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata
from coord_control.durable.restore.checks import Verdict
from coord_control.ids import OperatorUid
from coord_control.spark.job.saved_checks import OperatorModels, check_live, check_saved
from coord_control.spark.live.live_model import LiveModel
from coord_control.spark.worker.model_codec import EventTypes, StateType
from tests.unit.durable.metadata_kit import full_metadata

UID: Final = OperatorUid("threshold")


class Threshold(BaseModel):
    city: str = ""


class Renamed(BaseModel):
    """A model that cannot have saved what is in the checkpoint."""

    another_name: int = 0


class SetThreshold(BaseModel):
    minutes: float


class Forget(BaseModel):
    pass


class Late(BaseModel):
    late: int


class Limits(BaseModel):
    minutes: float = 1.0
    city: str = ""


class Coordinator(cc.StatefulCoordinator[Limits]):
    pass


class Strange(cc.StatefulCoordinator[Renamed]):
    pass


class Silent(cc.SnapshotCoordinator):
    def snapshot(self) -> bytes:
        return b""

    def restore(self, data: bytes | None) -> None:
        raise AssertionError("only a reset may restore")


def changed(model: str, **fields: Any) -> type[BaseModel]:
    """Another model of the same name."""
    return type(model, (BaseModel,), {"__annotations__": fields, "__qualname__": model})


def metadata() -> CheckpointMetadata:
    found = full_metadata()
    saved = found.operators[UID].model_copy(update={"coordinator_state": b'{"minutes":3.0,"city":"x"}'})
    return found.model_copy(update={"operators": {**found.operators, UID: saved}})


def verdicts(
    coordinator: cc.OperatorCoordinator | None = None,
    *,
    state: type[BaseModel] = Threshold,
    down: tuple[type[BaseModel], ...] = (SetThreshold, Forget),
    up: tuple[type[BaseModel], ...] = (Late,),
) -> dict[str, str]:
    """Why each kind of check refuses."""
    models = OperatorModels(
        StateType(UID, state),
        Coordinator(Limits()) if coordinator is None else coordinator,
        EventTypes(UID, "down", down),
        EventTypes(UID, "up", up),
    )
    checks = check_saved(metadata(), {UID: models, OperatorUid("new"): models})
    assert [check.name for check in checks] == ["states", "coordinator", "events"]
    return {check.name: check.found for check in checks if check.verdict is Verdict.REFUSED}


def test_what_fits_is_not_refused() -> None:
    assert verdicts() == {}


def test_states_that_the_model_would_drop_are_refused() -> None:
    assert "it was saved, the model has no such field" in verdicts(state=Renamed)["states"]


def test_a_state_that_the_coordinator_could_not_restore_is_refused() -> None:
    """Bug: the restore took place, and the query failed when its coordinator was reset."""
    refused = verdicts(Strange(Renamed()))
    assert refused.keys() == {"coordinator"}
    assert "Strange refuses what was saved: it is not valid for Renamed: " in refused["coordinator"]


def test_a_coordinator_that_checks_nothing_is_not_asked_to_restore() -> None:
    assert verdicts(Silent()) == {}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"down": (changed("SetThreshold", minutes=int, hours=int), Forget)}, "SetThreshold"),
        ({"down": (SetThreshold, changed("Forget", all=bool))}, "Forget"),
        ({"up": (changed("Late", late=bool, early=bool),)}, "Late"),
    ],
)
def test_events_in_transit_that_do_not_fit_are_refused(change: dict[str, Any], name: str) -> None:
    refused = verdicts(**change)
    assert refused.keys() == {"events"}
    assert name in refused["events"]


def test_other_types_of_events_are_left_to_the_lineage_which_names_them() -> None:
    assert verdicts(down=(Forget,), up=()) == {}


def test_a_live_value_that_does_not_fit_is_refused() -> None:
    """Bug: the restore took place, and no query could start."""
    fits, strange = LiveModel("limits", Limits()), LiveModel("limits", Renamed())
    new = LiveModel("new", Renamed())
    assert [check.verdict for check in check_live(metadata(), [fits, new])] == [Verdict.OK]
    [check] = check_live(metadata(), [strange])
    assert (check.name, check.subject, check.verdict) == ("live value", "limits", Verdict.REFUSED)
