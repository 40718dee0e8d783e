"""What holds for every command of the application."""

from __future__ import annotations

import re
from typing import Any

import click
import pytest
import typer

from coord_control.cli.main import app
from tests.cli_kit import call


def _names(group: typer.Typer, prefix: str = "") -> list[str]:
    """All commands, those of groups with the group's name before them."""
    names = [f"{prefix}{command.name}" for command in group.registered_commands]
    for each in group.registered_groups:
        assert each.typer_instance is not None
        names += _names(each.typer_instance, f"{prefix}{each.name} ")
    return sorted(names)


_COMMANDS = _names(app)
_ROOT: Any = typer.main.get_command(app)


#: An event has three stages that can be waited for; an answer is awaited for seconds, and its pages have a size.
_OF_THEIR_OWN = {("event send", "--wait"), ("ask", "--timeout"), ("ask", "--limit"), ("savepoint state", "--limit")}


def _options(name: str) -> list[click.Option]:
    command = _ROOT
    for word in name.split():
        command = command.commands[word]
    return [each for each in command.params if getattr(each, "param_type_name", "") == "option" and each.name != "help"]


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_option_has_an_environment_variable_that_the_help_shows(name: str) -> None:
    shown = call(*name.split(), "--help").stdout

    assert _options(name)
    for option in _options(name):
        variable = option.envvar
        assert isinstance(variable, str)
        assert variable.startswith("COORD_")
        assert variable in shown


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_option_has_a_help_text(name: str) -> None:
    assert all(option.help for option in _options(name))


@pytest.mark.parametrize("name", _COMMANDS)
def test_the_help_at_80_columns_shows_whole_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = call(*name.split(), "--help").stdout

    # The choices of an option are one word.
    assert all(len(line) <= 80 or len(line.split()) <= 2 for line in shown.splitlines())
    for option in _options(name):
        assert {option.envvar, *option.opts, *option.secondary_opts} <= set(re.split(r"[^\w-]+", shown))


def test_every_command_is_listed_with_its_first_sentence() -> None:
    shown = call("--help").stdout

    assert set(_ROOT.commands) <= set(shown.split())
    assert "..." not in shown.partition("Options:")[2]


def test_without_a_command_the_five_that_matter_are_shown() -> None:
    result = call()

    assert result.exit_code == 0
    shown = re.findall(r"^  coordctl (\w+(?: create)?)", result.stdout, re.MULTILINE)
    assert shown == ["run", "watch", "savepoint create", "restore", "set"]
    assert set(shown) <= set(_COMMANDS)
    assert "coordctl --help" in result.stdout


@pytest.mark.parametrize("flag", ["--control", "--json", "--key", "--wait", "--timeout", "--yes", "--force", "--limit"])
def test_what_several_commands_take_is_one_option(flag: str) -> None:
    commands = [name for name in _COMMANDS if (name, flag) not in _OF_THEIR_OWN]
    found = {(each.envvar, each.help) for name in commands for each in _options(name) if flag in each.opts}

    assert len(found) == 1


def test_the_version_is_shown_without_a_command() -> None:
    result = call("--version")

    assert result.exit_code == 0
    assert result.stdout.startswith("coordctl ")


@pytest.mark.parametrize(("option", "command"), [("--control", "upgrade"), ("--sample=1", "savepoint show")])
def test_an_option_before_the_command_is_said_to_belong_behind_it(option: str, command: str) -> None:
    result = call(option, "x", *command.split())

    assert result.exit_code == 2
    assert "after the command, as in: coordctl " in result.output
    assert f"{command} {option.partition('=')[0]} ..." in result.output


def test_an_option_that_no_command_has_is_no_option() -> None:
    result = call("--contrl", "x", "jobs")

    assert result.exit_code == 2
    assert "No such option: --contrl" in result.output


def test_an_option_that_is_no_duration_is_a_usage_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    script = tmp_path_factory.mktemp("script") / "script.py"
    script.write_text("")

    result = call("run", "--grace", "soon", str(script))

    assert result.exit_code == 2
    assert "is not a duration" in result.output
