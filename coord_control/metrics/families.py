"""Collects samples into the families that Prometheus reads; the metrics are defined in the table.

A sample whose value is None (unknown) is left out, and so is a family without samples.

Single-threaded; one object per scrape.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TypeAlias, assert_never

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family

from coord_control.metrics.metric import PREFIX, Metric, MetricKind
from coord_control.metrics.names import METRICS
from coord_control.protocol.durations import BOUNDS, Durations

__all__ = ["Families", "Family", "Of"]

_Numbers: TypeAlias = GaugeMetricFamily | CounterMetricFamily
_BOUNDS = (*map(str, BOUNDS), "+Inf")


class Families:
    """The families of one scrape."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[str, Family] = {}

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """Add a number; ``name`` without the prefix, ``labels`` in the order of the table."""
        if value is None:
            return
        family = self._family(name)
        assert isinstance(family, _Numbers), f"{name} is no plain number"
        family.add_metric(labels, value)

    def durations(self, name: str, durations: Durations, *labels: str) -> None:
        """Add a histogram."""
        family = self._family(name)
        assert isinstance(family, HistogramMetricFamily), f"{name} is no histogram"
        counted = itertools.accumulate(durations.counts)
        family.add_metric(labels, list(zip(_BOUNDS, counted, strict=True)), durations.seconds)

    def info(self, name: str, *labels: str) -> None:
        """Add an info metric; labels as in the table."""
        family = self._family(name)
        assert isinstance(family, InfoMetricFamily), f"{name} is no text"
        family.add_metric((), dict(zip(METRICS[name].label_names, labels, strict=True)))

    def of(self, *labels: str) -> Of:
        """Return an object that adds samples which all begin with these labels."""
        return Of(self, labels)

    def collect(self) -> Iterator[Family]:
        """Return all families."""
        yield from self._found.values()

    def _family(self, name: str) -> Family:
        family = self._found.get(name)
        if family is None:
            family = self._found[name] = _family(METRICS[name])
        return family


class Of:
    """Adds samples whose first labels are given: those of a job, a query or an operator."""

    __slots__ = ("_families", "_labels")

    def __init__(self, families: Families, labels: tuple[str, ...]) -> None:
        self._families, self._labels = families, labels

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """Add a number, see :meth:`Families.add`."""
        self._families.add(name, value, *self._labels, *labels)

    def durations(self, name: str, durations: Durations, *labels: str) -> None:
        """Add a histogram, see :meth:`Families.durations`."""
        self._families.durations(name, durations, *self._labels, *labels)

    def info(self, name: str, *labels: str) -> None:
        """Add an info metric, see :meth:`Families.info`."""
        self._families.info(name, *self._labels, *labels)

    def of(self, *labels: str) -> Of:
        """Return an object with more labels."""
        return Of(self._families, (*self._labels, *labels))


def _family(metric: Metric) -> Family:
    assert metric.name.startswith(PREFIX), metric.name
    match metric.kind:
        case MetricKind.GAUGE:
            return GaugeMetricFamily(metric.name, metric.help, labels=metric.label_names)
        case MetricKind.COUNTER:
            return CounterMetricFamily(metric.name, metric.help, labels=metric.label_names)
        case MetricKind.HISTOGRAM:
            return HistogramMetricFamily(metric.name, metric.help, labels=metric.label_names)
        case MetricKind.INFO:
            return InfoMetricFamily(metric.name.removesuffix("_info"), metric.help)
        case _:
            assert_never(metric.kind)
