"""The documentation site: what it is made of. `make check` builds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from coord_control.cli.main import app
from coord_control.control.settings import ControlSettings
from scripts.docs_reference import MODULES, pages, undocumented
from scripts.docs_site import LINK, stage
from tests.places import CHECKOUT


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    stage(folder)
    return folder


def in_navigation(entries: list[Any]) -> list[str]:
    found: list[str] = []
    for entry in entries:
        for value in entry.values():
            found += in_navigation(value) if isinstance(value, list) else [value]
    return found


def test_every_guide_is_in_the_navigation_once_and_everything_in_it_is_there(staged: Path) -> None:
    named = in_navigation(yaml.safe_load((CHECKOUT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    assert len(named) == len(set(named))
    assert [name for name in named if not (staged / name).is_file()] == []
    guides = [*staged.glob("docs/*.md"), *staged.glob("docs/operations/*.md"), *staged.glob("reference/*.md")]
    assert len(guides) > 30
    assert {str(page.relative_to(staged)) for page in guides} <= set(named)


def test_no_link_of_a_page_leads_nowhere(staged: Path) -> None:
    links = [
        (page, match.group(2))
        for page in staged.rglob("*.md")
        for match in LINK.finditer(page.read_text(encoding="utf-8"))
        if "://" not in match.group(2)
    ]
    assert len(links) > 200
    broken = [(page.name, target) for page, target in links if not (page.parent / target).exists()]
    assert broken == []


def test_the_reference_has_every_command_variable_and_error() -> None:
    made = pages()
    commands: Any = typer.main.get_command(app)
    for name, command in commands.commands.items():
        for each in [name, *(f"{name} {one}" for one in getattr(command, "commands", {}))]:
            assert command.hidden or f"`coordctl {each}`" in made["commands.md"]
    for field in ControlSettings.model_fields:
        assert f"COORD_CONTROL_{field.upper()}`" in made["environment.md"] or field == "url"
    for name in ("COORD_CONTROL", "COORD_KUBERNETES_TEMPLATE", "COORD_METRICS", "COORD_RESTORE_FROM"):
        assert f"| `{name}` |" in made["environment.md"]
    assert "| `Fenced` | " in made["errors.md"]
    assert "| `schedules` | list of [ScheduleSpec](#schedulespec) | " in made["component.md"]
    assert made["exit-codes.md"].count("\n| ") >= 12


def test_the_api_names_what_users_import() -> None:
    text = pages()["api/jobs.md"]
    assert "::: coord_control.spark.job.job.Job\n" in text
    assert len(MODULES) > 8
    assert list(undocumented()) == []
