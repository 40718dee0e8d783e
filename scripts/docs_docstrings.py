"""Docstrings as Markdown: the references of Sphinx and its literal blocks, as the API pages can show them."""

from __future__ import annotations

import re
from typing import Any, Final

import griffe

__all__ = ["Plain", "as_markdown"]

_REFERENCE: Final = re.compile(r":(?:class|meth|func|mod|attr|data|exc):`(~?)([^`]+)`")


class Plain(griffe.Extension):
    """Rewrites each docstring before it is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """Return a docstring as Markdown."""
    return re.sub(r"::$", ":", _REFERENCE.sub(_name, text), flags=re.MULTILINE)


def _name(match: re.Match[str]) -> str:
    is_short, target = match.groups()
    return f"`{target.rpartition('.')[2] if is_short else target}`"
