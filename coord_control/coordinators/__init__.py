"""The coordinator's contract, base classes for common cases, and ready-made coordinators."""

from coord_control.coordinators.broadcast import BroadcastConfig
from coord_control.coordinators.contract import CoordinatorContext, OperatorCoordinator, SnapshotResult, SubtaskGateway
from coord_control.coordinators.requests import CommittedStates, Request, StatesPage, SubtaskState
from coord_control.coordinators.stateful import SnapshotCoordinator, StatefulCoordinator

__all__ = [
    "BroadcastConfig",
    "CommittedStates",
    "CoordinatorContext",
    "OperatorCoordinator",
    "Request",
    "SnapshotCoordinator",
    "SnapshotResult",
    "StatefulCoordinator",
    "StatesPage",
    "SubtaskGateway",
    "SubtaskState",
]
