"""Small charts for a job's page: the durations of its checkpoints, and the gateways of an operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from coord_control.control.wording import human_seconds
from coord_control.storage.records import (
    CheckpointKind,
    CheckpointRecord,
    CheckpointState,
    GatewayRecord,
    Percentiles,
)
from coord_control.ui.scales import AxisTick, Scale, seconds_scale

__all__ = ["MOST_GATEWAYS", "Column", "DurationChart", "GatewayCell", "Gateways", "durations_of", "gateways_of"]

MOST_GATEWAYS: Final = 200

_WIDTH: Final = 720.0
_HEIGHT: Final = 190.0
_LEFT: Final = 64.0
_RIGHT: Final = 676.0
_TOP: Final = 14.0
_FOOT: Final = 166.0
_STEPS: Final = 4
_WIDEST: Final = 22.0

_CELL: Final = 16.0
_GAP: Final = 3.0
_ACROSS: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One checkpoint; ``kind`` is a class of the style sheet: ``completed``, ``savepoint`` or ``failed``."""

    checkpoint: int
    kind: str
    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationChart:
    """The newest checkpoints that have ended, oldest first.

    Attributes:
        marks: the percentiles, as lines.
    """

    width: float
    height: float
    left: float
    right: float
    foot: float
    scale: Scale
    columns: tuple[Column, ...]
    marks: tuple[AxisTick, ...]
    description: str


def durations_of(checkpoints: Sequence[CheckpointRecord], spread: Percentiles) -> DurationChart | None:
    """Draw durations; return None if no checkpoint has finished yet.

    Args:
        checkpoints: newest first; those in progress are left out.
        spread: the percentiles of the durations.
    """
    ended = [each for each in reversed(checkpoints) if each.duration_seconds is not None]
    if not ended:
        return None
    longest = max(each.duration_seconds or 0.0 for each in ended)
    scale = seconds_scale(longest, _FOOT, _TOP, steps=_STEPS)
    pitch = min((_RIGHT - _LEFT) / len(ended), _WIDEST)
    columns = tuple(_column(each, _LEFT + index * pitch, pitch, scale) for index, each in enumerate(ended))
    failed = sum(each.kind == "failed" for each in columns)
    return DurationChart(
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        right=_RIGHT,
        foot=_FOOT,
        scale=scale,
        columns=columns,
        marks=_marks(spread, scale),
        description=f"{len(ended)} checkpoints, from {ended[0].id} to {ended[-1].id}; {failed} failed; the longest "
        f"took {human_seconds(longest)}.",
    )


def _column(one: CheckpointRecord, x: float, pitch: float, scale: Scale) -> Column:
    kind = "completed" if one.kind is CheckpointKind.CHECKPOINT else "savepoint"
    if one.state is CheckpointState.FAILED:
        kind = "failed"
    y = min(scale.at(one.duration_seconds or 0.0), _FOOT - 2)
    return Column(
        checkpoint=one.id,
        kind=kind,
        x=round(x + pitch * 0.12, 1),
        y=y,
        width=round(pitch * 0.76, 1),
        height=round(_FOOT - y, 1),
        text=f"{one.kind.value} {one.id}: {one.state.value}, {human_seconds(one.duration_seconds)}",
    )


def _marks(spread: Percentiles, scale: Scale) -> tuple[AxisTick, ...]:
    known = (("p50", spread.p50), ("p99", spread.p99))
    marks = [AxisTick(scale.at(value), name) for name, value in known if value is not None and value <= scale.highest]
    near = len(marks) == 2 and abs(marks[0].at - marks[1].at) < 12
    return (AxisTick(marks[1].at, "p50, p99"),) if near else tuple(marks)


@dataclass(frozen=True, slots=True)
class GatewayCell:
    """One gateway; ``kind`` is a class of the style sheet: ``open``, ``closed`` or ``blocked``."""

    kind: str
    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateways:
    """The first gateways of an operator, a square for each.

    Attributes:
        notable: all gateways that are closed or hold events, not only those that are drawn.
    """

    size: float
    width: float
    height: float
    cells: tuple[GatewayCell, ...]
    left_out: int
    notable: tuple[GatewayRecord, ...]


def gateways_of(gateways: Sequence[GatewayRecord]) -> Gateways:
    """Draw the gateways of one operator."""
    shown = gateways[:MOST_GATEWAYS]
    pitch = _CELL + _GAP
    rows = (len(shown) + _ACROSS - 1) // _ACROSS
    cells = [
        GatewayCell(_kind(each), index % _ACROSS * pitch, index // _ACROSS * pitch, _gateway_text(each))
        for index, each in enumerate(shown)
    ]
    return Gateways(
        size=_CELL,
        width=min(len(shown), _ACROSS) * pitch,
        height=rows * pitch,
        cells=tuple(cells),
        left_out=len(gateways) - len(shown),
        notable=tuple(each for each in gateways if each.blocked or not each.is_open),
    )


def _kind(gateway: GatewayRecord) -> str:
    if gateway.blocked:
        return "blocked"
    return "open" if gateway.is_open else "closed"


def _gateway_text(gateway: GatewayRecord) -> str:
    return f"subtask {gateway.subtask}: {'open' if gateway.is_open else 'closed'}, {gateway.blocked:,} events blocked"
