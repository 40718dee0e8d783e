"""Streaming jobs in Dagster: assets, checks, schedules, sensors and jobs over the control database.

Use :class:`StreamingJobComponent` in YAML or :func:`build_streaming_definitions` in Python; both take the same specs.
docs/dagster.md is the introduction.

Public names are loaded on first use, as in ``coord_control``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from coord_control.dagster.definitions.check_alerts import CheckAlert, build_check_alert_sensor
    from coord_control.dagster.definitions.component import StreamingJobComponent
    from coord_control.dagster.definitions.factory import build_streaming_definitions, streaming_job_definitions
    from coord_control.dagster.resource import ControlPlaneResource
    from coord_control.dagster.spec import (
        CheckBounds,
        ControlPlaneSpec,
        MaterializeSpec,
        QuerySpec,
        RetainSpec,
        ScheduleSpec,
        StartSpec,
        StreamingJobSpec,
        SuperviseSpec,
    )
    from coord_control.dagster.translator import StreamingJobTranslator

__all__ = [
    "CheckAlert",
    "CheckBounds",
    "ControlPlaneResource",
    "ControlPlaneSpec",
    "MaterializeSpec",
    "QuerySpec",
    "RetainSpec",
    "ScheduleSpec",
    "StartSpec",
    "StreamingJobComponent",
    "StreamingJobSpec",
    "StreamingJobTranslator",
    "SuperviseSpec",
    "build_check_alert_sensor",
    "build_streaming_definitions",
    "streaming_job_definitions",
]

_MODULES: Final = {
    "CheckAlert": "coord_control.dagster.definitions.check_alerts",
    "ControlPlaneResource": "coord_control.dagster.resource",
    "StreamingJobComponent": "coord_control.dagster.definitions.component",
    "StreamingJobTranslator": "coord_control.dagster.translator",
    "build_check_alert_sensor": "coord_control.dagster.definitions.check_alerts",
    "build_streaming_definitions": "coord_control.dagster.definitions.factory",
    "streaming_job_definitions": "coord_control.dagster.definitions.factory",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES.get(name, "coord_control.dagster.spec")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # dg finds the component among these
