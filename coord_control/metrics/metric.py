"""One metric as a value: its name, what it measures and what its labels mean.

Names follow the conventions of Prometheus: base units (seconds, bytes) at the end, ``_total`` for what only grows,
``_info`` for text, ``_timestamp_seconds`` for points in time, so that an age is ``time() - x`` and stays right between
two scrapes.

The job's name is in the label ``job_name``, not ``job``: that one is Prometheus's own, for the name of the scrape
configuration, and would be renamed to ``exported_job`` on its way in.

Values; any thread.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

__all__ = ["OPERATOR", "PREFIX", "QUERY", "SUBTASK", "Kind", "Metric", "Source", "by_name", "counter", "gauge"]

PREFIX: Final = "coord_control_"

#: Labels of a query's, an operator's and a subtask's metrics, after ``job_name``.
QUERY: Final = ("query",)
OPERATOR: Final = ("query", "operator")
SUBTASK: Final = ("query", "operator", "subtask")


class Kind(enum.Enum):
    """What may be done with the numbers."""

    GAUGE = "gauge"  #: goes up and down
    COUNTER = "counter"  #: grows, and begins at 0 again with a new driver: use ``rate`` or ``increase``
    HISTOGRAM = "histogram"  #: ``_bucket``, ``_sum`` and ``_count``: use ``histogram_quantile``
    INFO = "info"  #: always 1; its labels are what it says


class Source(enum.Enum):
    """Who serves it."""

    DRIVER = "driver"
    EXPORTER = "exporter"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table.

    Attributes:
        name: as it is asked for in a query; a histogram's without ``_bucket``.
        labels: besides ``job_name``, which every metric of a job has.
        is_of_job: whether it has ``job_name``.
        on_request: whether it is left out of a scrape without ``?subtasks=N``.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    source: Source = Source.DRIVER
    is_of_job: bool = True
    on_request: bool = False

    @property
    def label_names(self) -> tuple[str, ...]:
        """All labels, in the order in which values are given."""
        return ("job_name", *self.labels) if self.is_of_job else self.labels


def gauge(name: str, help_: str, labels: tuple[str, ...] = (), *, on_request: bool = False) -> Metric:
    """A gauge of the driver; ``name`` without the prefix."""
    return Metric(PREFIX + name, Kind.GAUGE, help_, labels, on_request=on_request)


def counter(name: str, help_: str, labels: tuple[str, ...] = (), *, on_request: bool = False) -> Metric:
    """A counter of the driver; ``name`` without the prefix, with ``_total``."""
    return Metric(PREFIX + name, Kind.COUNTER, help_, labels, on_request=on_request)


def by_name(metrics: Iterable[Metric]) -> dict[str, Metric]:
    """The metrics by their names without the prefix.

    Raises:
        ValueError: there are two of one name.
    """
    found: dict[str, Metric] = {}
    for metric in metrics:
        name = metric.name.removeprefix(PREFIX)
        if name in found:
            raise ValueError(f"two metrics are called {metric.name}")
        found[name] = metric
    return found
