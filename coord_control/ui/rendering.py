"""Renders templates: all external text is escaped, and values are formatted for people.

Invisible characters, and those that change the writing direction, are escaped as on a terminal: a label must not be
able to look like something else.

Threads: any; the environment does not change.
"""

from __future__ import annotations

import enum
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from coord_control.control.client.command_wait import progress_text
from coord_control.control.measure import Measure, Place, shown
from coord_control.control.measures import CHECKPOINT, OPERATOR, QUERY, SUBTASK, operator_parts, query_parts
from coord_control.control.wording import human_bytes, human_seconds, human_time, plain, state_text
from coord_control.ui.live_section import shown_value

__all__ = ["page"]

_FOLDER: Final = Path(__file__).parent / "templates"

#: The columns of tables of measures.
_COLUMNS: Final[dict[str, Sequence[Measure[Any]]]] = {
    "checkpoint": shown(CHECKPOINT, Place.PAGE),
    "query": shown(QUERY, Place.PAGE),
    "operator": shown(OPERATOR, Place.PAGE),
    "subtask": shown(SUBTASK, Place.PAGE),
    "summary": shown(CHECKPOINT, Place.SUMMARY),
}

#: The states that are shown as good, bad or busy; all others are neutral.
_MOODS: Final = {
    "running": "good",
    "completed": "good",
    "failed": "bad",
    "refused": "bad",
    "expired": "bad",
    "in_progress": "busy",
    "starting": "busy",
    "stopping": "busy",
    "restarting": "busy",
    "paused": "busy",
    "pending": "busy",
    "claimed": "busy",
}


def page(template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a page rendered from a template."""
    text = _environment.get_template(template).render(now=datetime.now(UTC), **values)
    return HTMLResponse(text, status_code=status)


def _shown(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, enum.Enum):
        value = value.value
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _age(moment: datetime | None, now: datetime) -> str:
    if moment is None:
        return ""
    seconds = max(0.0, (now - moment).total_seconds())
    return f"{seconds:.0f} s" if seconds < 60 else human_seconds(seconds)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _as_entered(text: str) -> Markup:
    # For inputs: what is shown there is sent again, so nothing in it may be replaced.
    return escape(text)


def _mood(state: str) -> str:
    return "bad" if state.startswith("lost") else _MOODS.get(state, "calm")


def _made() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"columns": _COLUMNS, "query_parts": query_parts, "operator_parts": operator_parts}
    environment.filters |= {
        "age": _age,
        "as_entered": _as_entered,
        "as_json": shown_value,
        "bytes": lambda size: "" if size is None else human_bytes(round(size)),
        "mood": _mood,
        "number": _number,
        "progress": progress_text,
        "quoted": shlex.quote,
        "seconds": human_seconds,
        "state": state_text,
        "time": human_time,
        "words": lambda text: str(_shown(text)).replace("_", " "),
    }
    return environment


_environment: Final = _made()
