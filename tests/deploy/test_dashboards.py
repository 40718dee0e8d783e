"""The dashboards: made by the generator, as Grafana's own models read them, about metrics that exist."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

from coord_control.metrics.metric import PREFIX, MetricKind
from coord_control.metrics.names import METRICS
from scripts.dashboards.__main__ import files
from scripts.dashboards.panels import WIDTH
from tests.deploy_kit import DEPLOY, documents
from tests.prometheus_kit import alert_rules

GRAFANA: Final = DEPLOY / "grafana"
NAMES: Final = sorted(path.name for path in GRAFANA.glob("*.json"))
_ENDS: Final = {MetricKind.HISTOGRAM: ("_bucket", "_sum", "_count")}
#: The unit in which a metric is shown, by the end of its name.
UNITS: Final = {
    r"(_id|_epoch|_generation|_durable_number)$": "none",
    r"_bytes$": "bytes",
    r"_seconds(_bucket)?$": "s",
    r"_seconds_total$": "percentunit",
}


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((GRAFANA / name).read_text(encoding="utf-8"))
    return content


def panels(name: str) -> list[dict[str, Any]]:
    return [panel for panel in read(name)["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """Where a query is, and what it asks."""
    for name in NAMES:
        for panel in panels(name):
            yield from ((f"{name}: {panel['title']}", target["expr"]) for target in panel["targets"])
    yield from ((name, rule["expr"]) for name, rule in alert_rules().items())


def test_they_are_what_the_generator_makes() -> None:
    committed = {name: (GRAFANA / name).read_text(encoding="utf-8") for name in NAMES}
    assert committed == files(), "run: python -m scripts.dashboards"


@pytest.mark.parametrize("name", NAMES)
def test_grafanas_models_read_them_and_lose_nothing(name: str) -> None:
    register_default_plugins()
    again = json.loads(json.dumps(Dashboard.from_json(read(name)), cls=JSONEncoder))
    assert again == read(name)


@pytest.mark.parametrize("name", NAMES)
def test_panels_have_places_of_their_own(name: str) -> None:
    everything = read(name)["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    cells = [
        (panel["gridPos"]["x"] + column, panel["gridPos"]["y"] + line)
        for panel in everything
        for column, line in itertools.product(range(panel["gridPos"]["w"]), range(panel["gridPos"]["h"]))
    ]
    assert len(set(cells)) == len(cells)
    assert max(column for column, _ in cells) < WIDTH


@pytest.mark.parametrize("name", NAMES)
def test_what_is_blocked_comes_first(name: str) -> None:
    first = read(name)["panels"][:8]
    assert first[0]["title"] == "Is anything blocked?"
    assert any("blocked_checkpoint_id" in target["expr"] for panel in first[1:] for target in panel["targets"])


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_says_what_it_shows(name: str) -> None:
    assert [panel["title"] for panel in panels(name) if not panel.get("description", "").endswith((".", "?"))] == []


def shown(panel: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What a panel asks, and the unit in which it writes the answer."""
    queries = [target["expr"] for target in panel["targets"]]
    columns = [
        setting["value"]
        for column in panel["fieldConfig"].get("overrides", ())
        for setting in column["properties"]
        if setting["id"] == "unit"
    ]
    unit = panel["fieldConfig"]["defaults"].get("unit", "")
    yield from zip(queries, columns or [unit] * len(queries), strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_every_unit_is_one_of_grafanas_and_that_of_the_metric(name: str) -> None:
    known = {unit for unit in vars(units).values() if isinstance(unit, str)}
    found = [(panel["title"], expr, unit) for panel in panels(name) for expr, unit in shown(panel)]
    assert {unit for _, _, unit in found} <= known
    wrong = [
        f"{title}: {asked[0]} in {unit}"
        for title, expr, unit in found
        if "changes(" not in expr and (asked := re.findall(rf"{PREFIX}\w+", expr))
        if any(re.search(pattern, asked[0]) and unit != wanted for pattern, wanted in UNITS.items())
    ]
    assert not wrong


def test_they_ask_the_data_source_that_is_provisioned() -> None:
    provisioned = documents(DEPLOY / "compose/grafana/datasource.yaml")[0]["datasources"][0]["uid"]
    asked = {panel["datasource"]["uid"] for name in NAMES for panel in panels(name)}
    assert asked == {provisioned}


def test_every_query_is_about_metrics_and_labels_that_exist() -> None:
    names = {metric.name + end: metric for metric in METRICS.values() for end in _ENDS.get(metric.kind, ("",))}
    unknown = []
    for place, expr in queries():
        for name, selector in re.findall(rf"({PREFIX}\w+)(?:{{([^}}]*)}})?", expr):
            labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", selector or ""))
            known = {*names[name].label_names, "le"} if name in names else set()
            if name not in names or not labels <= known:
                unknown.append(f"{place}: {name} {sorted(labels - known)}")
    assert not unknown


def test_everything_about_blocked_events_is_on_a_dashboard() -> None:
    text = "\n".join(expr for place, expr in queries() if ".json" in place)
    wanted = {name for name, metric in METRICS.items() if "blocked" in name and not metric.on_request}
    assert wanted
    assert sorted(name for name in wanted if not re.search(rf"{PREFIX}{name}(_bucket)?\b", text)) == []
