from __future__ import annotations

import re
from pathlib import Path

import pytest

from coord_control.metrics.metric import PREFIX, Metric, MetricKind, Source, by_name, gauge
from coord_control.metrics.names import METRICS
from coord_control.metrics.table import tables

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"
EVERY = pytest.mark.parametrize("metric", METRICS.values(), ids=list(METRICS))

#: Words that would be a unit that is not a base unit, or say what the type says already.
FORBIDDEN = {
    "ms",
    "millis",
    "milliseconds",
    "minutes",
    "hours",
    "kb",
    "mb",
    "kib",
    "mib",
    "percent",
    "gauge",
    "counter",
}


@EVERY
def test_names_are_lower_case_words_with_the_prefix(metric: Metric) -> None:
    assert re.fullmatch(PREFIX + r"[a-z][a-z0-9]*(_[a-z0-9]+)*", metric.name)
    assert not FORBIDDEN & set(metric.name.split("_"))


@EVERY
def test_the_end_of_a_name_says_what_it_is(metric: Metric) -> None:
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    assert metric.name.endswith("_info") == (metric.kind is MetricKind.INFO)
    if metric.kind is MetricKind.HISTOGRAM:
        assert metric.name.endswith("_duration_seconds")


@EVERY
def test_units_stand_at_the_end(metric: Metric) -> None:
    words = metric.name.removesuffix("_total").split("_")
    for unit in ("seconds", "bytes"):
        assert unit not in words[:-1]
    if metric.name.endswith("_timestamp_seconds") or "duration" in words or "age" in words:
        assert words[-1] == "seconds"


@EVERY
def test_every_metric_has_help_of_one_line_that_is_a_sentence(metric: Metric) -> None:
    assert metric.help.endswith(".")
    assert "\n" not in metric.help
    assert metric.help[0].isupper() or metric.help[0].isdigit()


@EVERY
def test_help_can_be_read_without_the_help_of_another_metric(metric: Metric) -> None:
    # Prometheus and Grafana show the help of one metric, and not of those around it in the table.
    assert not re.match(
        r"(Its?|Their|Those|These|From then|How long( it took)?[.;]|For how long[.;]|When it)\b", metric.help
    )
    assert not re.search(r"\b(of these|in them|since then|below|above the)\b", metric.help)


@EVERY
def test_labels_are_words_and_none_is_reserved(metric: Metric) -> None:
    assert not {"job", "instance", "le", "quantile"} & set(metric.label_names)
    assert len(set(metric.label_names)) == len(metric.label_names)
    assert ("subtask" in metric.labels) <= metric.on_request


@EVERY
def test_what_the_exporter_says_of_jobs_has_names_of_its_own(metric: Metric) -> None:
    of_fleet = metric.name.startswith(f"{PREFIX}fleet_")
    of_exporter = metric.name.startswith((f"{PREFIX}exporter_", f"{PREFIX}database_"))
    assert (of_fleet or of_exporter) == (metric.source is Source.EXPORTER)
    assert not (of_exporter and metric.is_of_job)


def test_two_metrics_cannot_have_one_name() -> None:
    with pytest.raises(ValueError, match="two metrics are named coord_control_x"):
        by_name([gauge("x", "X."), gauge("x", "Y.")])


def test_no_name_is_that_of_another_without_its_ending() -> None:
    # In OpenMetrics a counter x_total is the family x, and a histogram x owns x_count, x_sum and x_bucket.
    families = [name.removesuffix("_total").removesuffix("_info") for name in METRICS]
    assert len(set(families)) == len(families)
    owned = {f"{name}_{end}" for name in families for end in ("count", "sum", "bucket", "created")}
    assert not owned & METRICS.keys()


def test_the_document_has_the_table_of_the_code() -> None:
    written = DOCUMENT.read_text(encoding="utf-8")
    table = "\n".join(tables()).rstrip("\n")
    assert written.rstrip("\n").endswith(table), "python -m coord_control.metrics.table prints what it has to end with"


def test_every_metric_that_the_document_names_is_one_of_the_table() -> None:
    named = set(re.findall(r"coord_control_([a-z0-9_]*[a-z0-9])\b(?!\.)", DOCUMENT.read_text(encoding="utf-8")))
    derived = {f"{name}_{end}" for name in METRICS for end in ("bucket", "sum", "count")}
    assert named - derived - {"fleet"} <= METRICS.keys()
