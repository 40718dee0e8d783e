"""Every piece of Python in the pages compiles, and the names of ours in it exist; every link leads somewhere."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Final

import pytest

import coord_control
from tests.docs_kit import Block, blocks, name_of, pages, prose

OURS: Final = ("coord_control", "dagster_defs", "examples")

_LINK: Final = re.compile(r"(?<!\!)\[[^\]\n]*\]\(([^)\s]+)\)|!\[[^\]\n]*\]\(([^)\s]+)\)")
_HEADING: Final = re.compile(r"^#+ +(.*?)\s*$", re.MULTILINE)


def snippets() -> list[Block]:
    return [block for page in pages() for block in blocks(page) if block.language in {"python", "py"}]


def problems(text: str) -> Iterator[str]:
    """What is wrong with a snippet: names that do not exist, arguments that nothing takes.

    Raises:
        SyntaxError: it is not Python.
    """
    tree = ast.parse(textwrap.dedent(text))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS:
            module = importlib.import_module(node.module or "")
            # Listed names count: those of coord_control.airflow cannot be loaded without Airflow.
            known = [each.name for each in node.names if each.name in getattr(module, "__all__", ())]
            names = [each.name for each in node.names if each.name not in known]
            yield from (f"{node.module}.{name}" for name in names if not hasattr(module, name))
        elif isinstance(node, ast.Attribute) and _is(node.value, "cc") and not hasattr(coord_control, node.attr):
            yield f"cc.{node.attr}"
    kinds = dict(_bound(tree))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = node.func.value
        kind = coord_control if _is(owner, "cc") else kinds.get(owner.id) if isinstance(owner, ast.Name) else None
        if kind is not None:
            yield from _call_problems(kind, node.func.attr, node)


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _bound(tree: ast.AST) -> Iterator[tuple[str, Any]]:
    """Names that are bound to an object of one of our classes, with the class."""
    for node in ast.walk(tree):
        pairs: list[tuple[ast.expr | None, ast.expr]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.With):
            pairs = [(item.optional_vars, item.context_expr) for item in node.items]
        for target, value in pairs:
            if isinstance(target, ast.Name) and isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
                kind = getattr(coord_control, value.func.attr, None) if _is(value.func.value, "cc") else None
                if inspect.isclass(kind):
                    yield target.id, kind


def _call_problems(owner: Any, name: str, call: ast.Call) -> Iterator[str]:
    function = getattr(owner, name, None)
    if function is None:
        yield f"{owner.__name__}.{name}"
        return
    taken = inspect.signature(function).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken.values()):
        return
    for keyword in call.keywords:
        if keyword.arg is not None and keyword.arg not in taken:
            yield f"{owner.__name__}.{name}({keyword.arg}=)"


@pytest.mark.parametrize("block", snippets(), ids=str)
def test_a_snippet_compiles_and_names_what_exists(block: Block) -> None:
    assert not list(problems(block.text))


def test_there_are_snippets() -> None:
    assert len(snippets()) > 5


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("cc.Jobb('x')", ["cc.Jobb", "coord_control.Jobb"]),
        ("from coord_control.errors import Fence", ["coord_control.errors.Fence"]),
        ("with cc.ControlClient() as client:\n    client.trigger('x')", ["ControlClient.trigger"]),
        ("cc.CheckpointOptions(interval=3)", ["coord_control.CheckpointOptions(interval=)"]),
        ("job = cc.Job('x', spark, root=root)\njob.trigger_savepoint(name='x')", ["Job.trigger_savepoint(name=)"]),
        ("cc.ControlClient(url).stop('x', grace_seconds=3)", []),
    ],
)
def test_the_check_finds_what_does_not_exist(text: str, found: list[str]) -> None:
    assert list(problems(text)) == found


# --- links -----------------------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in _HEADING.findall(text):
        slug = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")
        count = sum(1 for each in found if re.fullmatch(rf"{re.escape(slug)}(-\d+)?", each))
        found.add(f"{slug}-{count}" if count else slug)
    return found


def test_every_link_within_the_project_leads_somewhere() -> None:
    broken = []
    for page in pages():
        for match in _LINK.finditer(prose(page)):
            target = match[1] or match[2]
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            place = (page.parent / path).resolve() if path else page
            if not place.exists():
                broken.append(f"{name_of(page)}: {target}: there is no such file")
            elif anchor and place.suffix == ".md" and anchor not in anchors(prose(place)):
                broken.append(f"{name_of(page)}: {target}: {path or 'the page'} has no such heading")
    assert not broken


def test_anchors_are_those_of_github() -> None:
    text = "# What happens when ...\n## `coordctl run`\n## In production\n## In production\n"
    assert anchors(text) == {"what-happens-when-", "coordctl-run", "in-production", "in-production-1"}
