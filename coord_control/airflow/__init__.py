"""Airflow operators, a sensor and a connection type that control jobs through the control database.

Needs Airflow 3.3, whose triggers are notified when a user stops a deferred task (docs/airflow.md).
Public names are loaded on first use, because Airflow's command line reads the provider's description without them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from coord_control.airflow.freshness_sensor import CheckpointFreshnessSensor
    from coord_control.airflow.hook import CoordControlHook
    from coord_control.airflow.operators import (
        CheckpointOperator,
        SavepointOperator,
        SendEventOperator,
        SetLiveOperator,
        StopWithSavepointOperator,
    )
    from coord_control.airflow.outlet_assets import checkpoint_asset, savepoint_asset
    from coord_control.airflow.restore_operator import RestoreOperator

__all__ = [
    "CheckpointFreshnessSensor",
    "CheckpointOperator",
    "CoordControlHook",
    "RestoreOperator",
    "SavepointOperator",
    "SendEventOperator",
    "SetLiveOperator",
    "StopWithSavepointOperator",
    "checkpoint_asset",
    "savepoint_asset",
]

_MODULES: Final = {
    "CheckpointFreshnessSensor": "freshness_sensor",
    "CoordControlHook": "hook",
    "RestoreOperator": "restore_operator",
    "checkpoint_asset": "outlet_assets",
    "savepoint_asset": "outlet_assets",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'operators')}"), name)
