"""All metrics of the project: the one table that collectors, docs/metrics.md and dashboards are made of.

Values; any thread.
"""

from __future__ import annotations

from typing import Final

from coord_control.metrics.metric import Metric, by_name
from coord_control.metrics.names_driver import DRIVER
from coord_control.metrics.names_fleet import FLEET

__all__ = ["METRICS"]

#: Every metric by its name without the prefix.
METRICS: Final[dict[str, Metric]] = by_name((*DRIVER, *FLEET))
