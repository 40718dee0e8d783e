"""All metrics of the project: the table behind the collectors, docs/metrics.md and the dashboards."""

from __future__ import annotations

from typing import Final

from coord_control.metrics.metric import Metric, by_name
from coord_control.metrics.names_driver import DRIVER
from coord_control.metrics.names_fleet import FLEET

__all__ = ["METRICS"]

#: Every metric by its name without the prefix.
METRICS: Final[dict[str, Metric]] = by_name((*DRIVER, *FLEET))
