"""The few kinds of panels that all dashboards are made of, on top of Grafana's own library.

A dashboard is rows of panels, and a panel is queries with a name for each series. Places and numbers of panels are
given here, so that a dashboard's module says nothing but what is shown.

Values and pure functions; single-threaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from grafana_foundation_sdk.builders import common, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    FieldTextAlignment,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    Dashboard,
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    GridPos,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

__all__ = [
    "BAD",
    "GOOD",
    "ID",
    "SOURCE",
    "WARN",
    "WIDTH",
    "Column",
    "Limits",
    "Part",
    "Query",
    "Row",
    "dashboard",
    "graph",
    "number",
    "table_of",
    "variable",
]

#: The uid that deploy/compose gives its data source.
SOURCE: Final = DataSourceRef(type_val="prometheus", uid="prometheus")
GOOD, WARN, BAD = "green", "orange", "red"
WIDTH: Final = 24  #: of a dashboard, in Grafana's units
#: The unit of identifiers, such as the number of a checkpoint or an epoch: "short" would write 12.3 K.
ID: Final = "none"

Panel: TypeAlias = stat.Panel | table.Panel | timeseries.Panel
#: Where a colour begins; the first is for everything below the second.
Limits: TypeAlias = Sequence[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and the legend of its series, in which ``{{label}}`` is the value of a label."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the current value of a query."""

    title: str
    expr: str
    unit: str = "short"
    limits: Limits = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A panel and its size, in Grafana's units."""

    panel: Panel
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Row:
    """A heading and what is below it."""

    title: str
    parts: tuple[Part, ...]


def number(title: str, expr: str, help_: str, *, unit: str = "short", limits: Limits = (), width: int = 4) -> Part:
    """Return a panel with one current number; ``none`` if there is no sample."""
    panel = (
        stat.Panel()
        .unit(unit)
        .no_value("none")
        .graph_mode(BigValueGraphMode.NONE)
        .color_mode(BigValueColorMode.BACKGROUND if limits else BigValueColorMode.VALUE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(_thresholds(limits or ((0, "text"),)))
        .with_target(_query(Query(expr), 0).instant())
    )
    return Part(panel.title(title).description(help_), width, 4)


def graph(title: str, *queries: Query, help_: str, unit: str = "short", stacked: bool = False, width: int = 8) -> Part:
    """Return a panel with lines over time."""
    panel = (
        timeseries.Panel()
        .unit(unit)
        .min(0)
        .fill_opacity(30 if stacked else 8)
        .show_points(VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    for index, query in enumerate(queries):
        panel.with_target(_query(query, index).range())
    return Part(panel.title(title).description(help_), width, 8)


def table_of(
    title: str, labels: Sequence[str], *columns: Column, help_: str, width: int = WIDTH, height: int = 8
) -> Part:
    """Return a table with a row for each set of these labels, and a column for each query."""
    panel = table.Panel().align(FieldTextAlignment.AUTO)
    for index, column in enumerate(columns):
        panel.with_target(_query(Query(column.expr), index).instant().format(PromQueryFormat.TABLE))
    # With one query Grafana calls its values "Value", with several "Value #A", "Value #B", ...
    names = ["Value"] if len(columns) == 1 else [f"Value #{_letter(index)}" for index in range(len(columns))]
    for column in columns:
        panel.override_by_name(column.title, _properties(column))
    order = {name: index for index, name in enumerate((*labels, *names))}
    renamed = {name: column.title for name, column in zip(names, columns, strict=True)}
    organize = {"excludeByName": {"Time": True}, "indexByName": order, "renameByName": renamed}
    panel.with_transformation(DataTransformerConfig(id_val="merge", options={}))
    panel.with_transformation(DataTransformerConfig(id_val="organize", options=organize))
    return Part(panel.title(title).description(help_), width, height)


def variable(name: str, label: str, query: str, *, all_: bool = True) -> builders.QueryVariable:
    """Return a variable of the dashboard, with all values of a query to choose from.

    Args:
        all_: whether several can be chosen, and all of them are at first.
    """
    made = (
        builders.QueryVariable(name)
        .label(label)
        .query({"query": query, "refId": "A"})
        .datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    return made.multi(True).include_all(True).all_value(".*") if all_ else made


def dashboard(
    title: str, uid: str, help_: str, variables: Iterable[builders.QueryVariable], rows: Iterable[Row]
) -> Dashboard:
    """Put rows of panels together, each panel at its place."""
    made = (
        builders.Dashboard(title)
        .uid(uid)
        .description(help_)
        .tags(["coord-control"])
        .readonly()
        .time("now-1h", "now")
        .refresh("10s")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(_siblings())
    )
    for each in variables:
        made.with_variable(each)
    top, count = 0, 0
    for row in rows:
        count += 1
        made.with_row(builders.Row(row.title).id(count).grid_pos(GridPos(h=1, w=WIDTH, x=0, y=top)))
        top += 1
        left = tallest = 0
        for part in row.parts:
            if left + part.width > WIDTH:
                left, top, tallest = 0, top + tallest, 0
            count += 1
            place = GridPos(h=part.height, w=part.width, x=left, y=top)
            made.with_panel(part.panel.id(count).datasource(SOURCE).grid_pos(place))
            left, tallest = left + part.width, max(tallest, part.height)
        top += tallest
    return made.build()


def _siblings() -> builders.DashboardLink:
    link = builders.DashboardLink("Streaming jobs").type(DashboardLinkType.DASHBOARDS).tags(["coord-control"])
    return link.keep_time(True)


def _query(query: Query, index: int) -> Dataquery:
    made = Dataquery().ref_id(_letter(index)).expr(query.expr).datasource(SOURCE)
    return made.legend_format(query.legend) if query.legend else made


def _letter(index: int) -> str:
    return chr(ord("A") + index)


def _thresholds(limits: Limits) -> builders.ThresholdsConfig:
    (_, lowest), *others = limits
    # Grafana's own way to say: from minus infinity.
    steps = [Threshold(value=None, color=lowest), *(Threshold(value=value, color=color) for value, color in others)]
    return builders.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def _properties(column: Column) -> list[DynamicConfigValue]:
    properties = [DynamicConfigValue(id_val="unit", value=column.unit)]
    if column.limits:
        properties.append(DynamicConfigValue(id_val="thresholds", value=_thresholds(column.limits).build()))
        properties.append(DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}))
    return properties
