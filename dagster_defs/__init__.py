"""Streaming jobs in Dagster: assets, checks, schedules, sensors and jobs over the control database.

In YAML a :class:`StreamingJobComponent` does it, in Python :func:`build_streaming_definitions`; both take the same
specs. docs/dagster.md begins at the beginning.

The public names are loaded when they are first used, as in ``coord_control``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dagster_defs.component import StreamingJobComponent
    from dagster_defs.factory import build_streaming_definitions, streaming_job_definitions
    from dagster_defs.resource import ControlPlaneResource
    from dagster_defs.spec import (
        CheckBounds,
        ControlPlaneSpec,
        QuerySpec,
        RetainSpec,
        ScheduleSpec,
        StartSpec,
        StreamingJobSpec,
        SuperviseSpec,
    )
    from dagster_defs.translator import StreamingJobTranslator

__all__ = [
    "CheckBounds",
    "ControlPlaneResource",
    "ControlPlaneSpec",
    "QuerySpec",
    "RetainSpec",
    "ScheduleSpec",
    "StartSpec",
    "StreamingJobComponent",
    "StreamingJobSpec",
    "StreamingJobTranslator",
    "SuperviseSpec",
    "build_streaming_definitions",
    "streaming_job_definitions",
]

_MODULES: Final = {
    "ControlPlaneResource": "dagster_defs.resource",
    "StreamingJobComponent": "dagster_defs.component",
    "StreamingJobTranslator": "dagster_defs.translator",
    "build_streaming_definitions": "dagster_defs.factory",
    "streaming_job_definitions": "dagster_defs.factory",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES.get(name, "dagster_defs.spec")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # dg finds the component among these
