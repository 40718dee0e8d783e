"""Draws a dashboard without Grafana: its panels, at their places, with what a Prometheus answers to their queries.

It shows what the queries bring and how the panels lie, not how Grafana would draw them: all lines are steps, and there
are no thresholds.

Threads: the caller's.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

__all__ = ["Ask", "Series", "drawing", "queries"]

#: Labels and points: seconds since 1970, and the number as text.
Series: TypeAlias = Mapping[str, Any]
#: Answers a query with its series over a range of time.
Ask: TypeAlias = Callable[[str], Sequence[Series]]

_COLUMN: Final = 52  # pixels; a dashboard has 24
_ROW: Final = 34
_COLORS: Final = ("#3274d9", "#e0752d", "#299c46", "#a352cc", "#c4162a", "#5195ce", "#96a015", "#8f3bb8")
_STYLE: Final = """
body { margin: 0; background: #f4f5f5; font: 12px sans-serif; color: #24292e; }
.page { position: relative; margin: 8px; }
.panel { position: absolute; box-sizing: border-box; background: #fff; border: 1px solid #dcdcde; border-radius: 3px;
  padding: 6px 8px; overflow: hidden; }
.row { background: none; border: none; font-weight: bold; padding: 8px 0; }
h2 { font-size: 12px; margin: 0 0 4px; font-weight: 600; }
.stat { font-size: 28px; text-align: center; margin-top: 12px; color: #299c46; }
.legend { white-space: nowrap; } .legend i { display: inline-block; width: 9px; height: 3px; margin: 0 3px 2px 8px; }
table { border-collapse: collapse; } td, th { padding: 1px 10px 1px 0; text-align: left; }
"""


def queries(panel: Mapping[str, Any], choices: Mapping[str, str]) -> list[str]:
    """Return the queries of a panel for these values of the dashboard's variables."""
    found = []
    for target in panel.get("targets", ()):
        expr: str = target["expr"]
        for placeholder, value in choices.items():
            expr = expr.replace(placeholder, value)
        found.append(expr)
    return found


def drawing(dashboard: Mapping[str, Any], ask: Ask, choices: Mapping[str, str], rows: int) -> str:
    """Return an HTML page with the panels of the first rows of a dashboard.

    Args:
        choices: the values of its variables, by placeholder (``$job``).
        rows: how many units of the grid are drawn, from the top.
    """
    panels = [panel for panel in dashboard["panels"] if panel["gridPos"]["y"] + panel["gridPos"]["h"] <= rows]
    drawn = "".join(_panel(panel, [ask(query) for query in queries(panel, choices)]) for panel in panels)
    size = f"width:{24 * _COLUMN}px;height:{rows * _ROW}px"
    title = html.escape(str(dashboard["title"]))
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>"
        f"<div class=page style='{size}'>{drawn}</div></html>"
    )


def _panel(panel: Mapping[str, Any], answers: Sequence[Sequence[Series]]) -> str:
    place = panel["gridPos"]
    width, height = place["w"] * _COLUMN - 8, place["h"] * _ROW - 8
    style = f"left:{place['x'] * _COLUMN}px;top:{place['y'] * _ROW}px;width:{width}px;height:{height}px"
    unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit") or "none"
    kind, content = "panel", ""
    match panel["type"]:
        case "row":
            kind = "panel row"
        case "stat":
            content = _stat([each for series in answers for each in series], unit)
        case "table":
            content = _table(panel, answers)
        case "timeseries":
            lines = [
                (_legend(target.get("legendFormat"), each["metric"]), points)
                for target, series in zip(panel["targets"], answers, strict=True)
                for each in series
                if (points := _points(each))
            ]
            content = _plot(lines, unit, width - 18, height - 60)
        case other:
            raise ValueError(f"no way to draw a panel of type {other}")
    return f"<div class='{kind}' style='{style}'><h2>{html.escape(panel['title'])}</h2>{content}</div>"


def _stat(series: Sequence[Series], unit: str) -> str:
    last = [points[-1][1] for each in series if (points := _points(each))]
    return f"<div class=stat>{_number(last[-1], unit) if last else 'no data'}</div>"


def _table(panel: Mapping[str, Any], answers: Sequence[Sequence[Series]]) -> str:
    """Merge the answers by their labels; columns have the order and the names of the panel's transformations."""
    [organize] = [each["options"] for each in panel["transformations"] if each["id"] == "organize"]
    rows: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    for target, series in zip(panel["targets"], answers, strict=True):
        for each in series:
            row = rows.setdefault(tuple(sorted(each["metric"].items())), dict(each["metric"]))
            row[f"Value #{target['refId']}"] = row["Value"] = _number(float(each["values"][-1][1]), "none")
    columns = sorted(organize["indexByName"], key=organize["indexByName"].__getitem__)
    head = "".join(f"<th>{html.escape(organize['renameByName'].get(each, each))}</th>" for each in columns)
    cells = ["".join(f"<td>{html.escape(row.get(each, ''))}</td>" for each in columns) for row in rows.values()]
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{each}</tr>' for each in cells)}</table>" if rows else "no data"


def _legend(form: str | None, labels: Mapping[str, str]) -> str:
    text = form or " ".join(value for key, value in labels.items() if key not in ("job", "job_name", "instance"))
    for key, value in labels.items():
        text = text.replace("{{" + key + "}}", value)
    return text or "value"


def _plot(lines: Sequence[tuple[str, Sequence[tuple[float, float]]]], unit: str, width: int, height: int) -> str:
    if not lines:
        return "no data"
    times = [at for _, points in lines for at, _ in points]
    top = max(value for _, points in lines for _, value in points) or 1.0
    begin, span = min(times), max(max(times) - min(times), 1.0)
    drawn, legend = [], []
    for index, (name, points) in enumerate(lines):
        color = _COLORS[index % len(_COLORS)]
        path = _steps([((at - begin) / span * width, height - max(value, 0.0) / top * height) for at, value in points])
        drawn.append(f"<path d='{path}' fill=none stroke='{color}' stroke-width=1.5 />")
        legend.append(f"<span class=legend><i style='background:{color}'></i>{html.escape(name)}</span>")
    return (
        f"<div>{_number(top, unit)}</div><svg width={width} height={height}>"
        f"<line x1=0 x2={width} y1={height} y2={height} stroke='#dcdcde' />{''.join(drawn)}</svg>"
        f"<div>{''.join(legend[:4])}{' …' if len(legend) > 4 else ''}</div>"
    )


def _steps(points: Sequence[tuple[float, float]]) -> str:
    (x, y), *rest = points
    return f"M{x:.1f},{y:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in rest)


def _points(series: Series) -> list[tuple[float, float]]:
    found = [(float(at), float(value)) for at, value in series["values"]]
    return [(at, value) for at, value in found if math.isfinite(value)]


def _number(value: float, unit: str) -> str:
    shown = value * 100 if unit == "percentunit" else value
    suffix = {"percentunit": " %", "s": " s", "bytes": " B", "eps": " events/s", "ops": " /s", "rowsps": " rows/s"}
    return f"{shown:,.3g}{suffix.get(unit, '')}" if abs(shown) < 1000 else f"{shown:,.0f}{suffix.get(unit, '')}"
