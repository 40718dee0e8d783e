"""The definition of a metric: its name, type, help text and labels.

Names follow the conventions of Prometheus: base units (seconds, bytes) at the end, ``_total`` for counters, ``_info``
for text, ``_timestamp_seconds`` for points in time, so that an age is ``time() - x`` and stays right between scrapes.

The job's name is in the label ``job_name``, because Prometheus uses ``job`` for the name of the scrape configuration,
and would rename ours to ``exported_job``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

__all__ = ["OPERATOR", "PREFIX", "QUERY", "SUBTASK", "Metric", "MetricKind", "Source", "by_name", "counter", "gauge"]

PREFIX: Final = "coord_control_"

#: Labels of a query's, an operator's and a subtask's metrics, after ``job_name``.
QUERY: Final = ("query",)
OPERATOR: Final = ("query", "operator")
SUBTASK: Final = ("query", "operator", "subtask")


class MetricKind(enum.Enum):
    """The type of a metric."""

    GAUGE = "gauge"  #: goes up and down
    COUNTER = "counter"  #: only grows, and is reset to 0 by a new driver: use ``rate`` or ``increase``
    HISTOGRAM = "histogram"  #: ``_bucket``, ``_sum`` and ``_count``: use ``histogram_quantile``
    INFO = "info"  #: always 1; the information is in the labels


class Source(enum.Enum):
    """The process that serves a metric."""

    DRIVER = "driver"
    EXPORTER = "exporter"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table.

    Attributes:
        name: the name in queries; for a histogram without ``_bucket``.
        labels: the labels in addition to ``job_name``, which every metric of a job has.
        is_of_job: whether it has the label ``job_name``.
        on_request: whether it is only included in a scrape with ``?subtasks=N``.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    source: Source = Source.DRIVER
    is_of_job: bool = True
    on_request: bool = False

    @property
    def label_names(self) -> tuple[str, ...]:
        """Return all labels, in the order of their values."""
        return ("job_name", *self.labels) if self.is_of_job else self.labels


def gauge(name: str, help_: str, labels: tuple[str, ...] = (), *, on_request: bool = False) -> Metric:
    """Return a gauge of the driver; ``name`` without the prefix."""
    return Metric(PREFIX + name, MetricKind.GAUGE, help_, labels, on_request=on_request)


def counter(name: str, help_: str, labels: tuple[str, ...] = (), *, on_request: bool = False) -> Metric:
    """Return a counter of the driver; ``name`` without the prefix, with ``_total``."""
    return Metric(PREFIX + name, MetricKind.COUNTER, help_, labels, on_request=on_request)


def by_name(metrics: Iterable[Metric]) -> dict[str, Metric]:
    """Return the metrics by their names without the prefix.

    Raises:
        ValueError: two metrics have the same name.
    """
    found: dict[str, Metric] = {}
    for metric in metrics:
        name = metric.name.removeprefix(PREFIX)
        if name in found:
            raise ValueError(f"two metrics are named {metric.name}")
        found[name] = metric
    return found
