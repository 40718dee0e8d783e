"""The tables of docs/metrics.md: ``python -m coord_control.metrics.table`` prints them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from coord_control.metrics.metric import Metric, Source
from coord_control.metrics.names import METRICS

__all__ = ["tables"]

_TITLES = {
    (Source.DRIVER, False): "Of a driver",
    (Source.DRIVER, True): "Of a driver, with `?subtasks=N`",
    (Source.EXPORTER, False): "Of the exporter",
    (Source.EXPORTER, True): "Of the exporter, with `?subtasks=N`",
}


def tables() -> Iterator[str]:
    """Yield the lines of all tables, with their titles."""
    for (source, on_request), title in _TITLES.items():
        metrics = [each for each in METRICS.values() if (each.source, each.on_request) == (source, on_request)]
        yield f"### {title}"
        yield ""
        yield "| metric | type | labels | meaning |"
        yield "| --- | --- | --- | --- |"
        yield from _rows(metrics)
        yield ""


def _rows(metrics: Iterable[Metric]) -> Iterator[str]:
    # Without job_name, which nearly all metrics have.
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        alone = "" if metric.is_of_job else " (no `job_name`)"
        yield f"| `{metric.name}` | {metric.kind.value} | {labels}{alone} | {metric.help.replace('|', '/')} |"


if __name__ == "__main__":
    print("\n".join(tables()))
