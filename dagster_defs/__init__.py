"""The code location of this repository, and the names that YAML uses: ``dagster_defs.StreamingJobComponent``.

Everything is in the library :mod:`coord_control.dagster`; its public names are here as well.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coord_control.dagster import *  # noqa: F403

__all__ = list(importlib.import_module("coord_control.dagster").__all__)


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("coord_control.dagster"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # dg finds the component among these
