"""Reads what a scrape brings as Prometheus would, and compares it with the table of metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from coord_control.metrics.metric import PREFIX, MetricKind
from coord_control.metrics.names import METRICS

__all__ = ["Scraped", "read", "scraped"]

_TYPES = {
    MetricKind.GAUGE: "gauge",
    MetricKind.COUNTER: "counter",
    MetricKind.HISTOGRAM: "histogram",
    MetricKind.INFO: "gauge",
}


@dataclass(frozen=True)
class _Collector:
    families: tuple[Family, ...]

    def collect(self) -> Iterable[Family]:
        return self.families


@dataclass(frozen=True)
class Scraped:
    """The samples of one scrape."""

    samples: tuple[Sample, ...]

    @property
    def names(self) -> set[str]:
        """Of the table, without the prefix, that have a sample."""
        found = {sample.name.removeprefix(PREFIX) for sample in self.samples if sample.name.startswith(PREFIX)}
        return {_of_table(name) for name in found}

    def get(self, name: str, **labels: str) -> float:
        """The one sample with these labels; ``name`` without the prefix."""
        found = self.all(name, **labels)
        assert len(found) == 1, f"{name} {labels}: {found}"
        return found[0].value

    def all(self, name: str, **labels: str) -> list[Sample]:
        """All samples with these labels."""
        return [
            sample
            for sample in self.samples
            if sample.name == PREFIX + name and labels.items() <= sample.labels.items()
        ]


def scraped(families: Iterable[Family]) -> Scraped:
    """Write families as text and read it back, in both formats."""
    collector = _Collector(tuple(families))
    written = generate_openmetrics(collector).decode()  # type: ignore[no-untyped-call]
    assert list(parse_openmetrics(written))  # type: ignore[no-untyped-call]
    return read(generate_latest(collector).decode())


def read(text: str) -> Scraped:
    """Read the text of a scrape, each metric of which must be as the table says."""
    families = list(text_string_to_metric_families(text))
    ours = [family for family in families if family.name.startswith(PREFIX)]
    for family in ours:
        _check(family)
    samples = tuple(sample for family in families for sample in family.samples)
    keys = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in samples]
    assert len(keys) == len(set(keys)), "a series is there twice"
    return Scraped(samples)


def _check(family: Family) -> None:
    name = family.name.removeprefix(PREFIX)
    metric = METRICS.get(name) or METRICS[f"{name}_total"]  # the parser takes the ending of a counter off
    assert family.type == _TYPES[metric.kind], metric.name
    assert family.documentation == metric.help
    for sample in family.samples:
        labels = set(sample.labels) - ({"le"} if metric.kind is MetricKind.HISTOGRAM else set())
        assert labels == set(metric.label_names), sample


def _of_table(name: str) -> str:
    stems = (name, *(name.removesuffix(end) for end in ("_bucket", "_sum", "_count")))
    return next(stem for stem in stems if stem in METRICS)
