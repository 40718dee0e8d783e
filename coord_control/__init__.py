"""Exactly-once control events for long-running, crash-safe PySpark Structured Streaming jobs.

A :class:`Job` owns one or more streaming queries. An operator of a query has subtasks on the executors and a
coordinator in the driver, which exchange control events exactly once, whatever fails. Start with docs/protocol.md and
examples/flights.

Public names are loaded on first use, so that the command line and the executors only import what they need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from coord_control.control.client.control_client import ControlClient
    from coord_control.coordinators import (
        BroadcastConfig,
        CommittedStates,
        CoordinatorContext,
        OperatorCoordinator,
        Request,
        SnapshotCoordinator,
        SnapshotResult,
        StatefulCoordinator,
        StatesPage,
        SubtaskGateway,
        SubtaskState,
    )
    from coord_control.errors import CoordControlError, Fault
    from coord_control.protocol.scheduler.checkpoint_options import CheckpointOptions
    from coord_control.protocol.status import JobStatus
    from coord_control.spark.checkpoints.checkpoint_handle import CheckpointHandle, CompletedCheckpoint
    from coord_control.spark.job.job import Job
    from coord_control.spark.job.operator_handle import Operator
    from coord_control.spark.job.rescale import SubtaskSnapshot
    from coord_control.spark.live.live_handle import Live
    from coord_control.spark.queries.restart_policy import RestartPolicy
    from coord_control.spark.states.state_reader import StateReader
    from coord_control.spark.worker.subtask import Subtask

__all__ = [
    "BroadcastConfig",
    "CheckpointHandle",
    "CheckpointOptions",
    "CommittedStates",
    "CompletedCheckpoint",
    "ControlClient",
    "CoordControlError",
    "CoordinatorContext",
    "Fault",
    "Job",
    "JobStatus",
    "Live",
    "Operator",
    "OperatorCoordinator",
    "Request",
    "RestartPolicy",
    "SnapshotCoordinator",
    "SnapshotResult",
    "StateReader",
    "StatefulCoordinator",
    "StatesPage",
    "Subtask",
    "SubtaskGateway",
    "SubtaskSnapshot",
    "SubtaskState",
]

_MODULES: Final = {
    "CoordControlError": "coord_control.errors",
    "CheckpointHandle": "coord_control.spark.checkpoints.checkpoint_handle",
    "CheckpointOptions": "coord_control.protocol.scheduler.checkpoint_options",
    "CompletedCheckpoint": "coord_control.spark.checkpoints.checkpoint_handle",
    "ControlClient": "coord_control.control.client.control_client",
    "Fault": "coord_control.errors",
    "Job": "coord_control.spark.job.job",
    "JobStatus": "coord_control.protocol.status",
    "Live": "coord_control.spark.live.live_handle",
    "Operator": "coord_control.spark.job.operator_handle",
    "RestartPolicy": "coord_control.spark.queries.restart_policy",
    "StateReader": "coord_control.spark.states.state_reader",
    "Subtask": "coord_control.spark.worker.subtask",
    "SubtaskSnapshot": "coord_control.spark.job.rescale",
}


#: Packages of the extra ``spark``, under the names by which they are imported.
_SPARK: Final = ("pandas", "py4j", "pyarrow", "pyspark")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(_MODULES.get(name, "coord_control.coordinators"))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _SPARK:
            raise
        errors = importlib.import_module("coord_control.errors")
        raise errors.PackageMissing(f"{__name__}.{name}", error.name, "spark") from error
    return getattr(module, name)
