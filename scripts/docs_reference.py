"""The pages of the documentation that are made from the code: commands, errors, exit codes, variables, YAML and API."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import typer
import typer.cli

from scripts.docs_docstrings import as_markdown

__all__ = ["MODULES", "pages", "undocumented"]

_ROOT: Final = Path(__file__).resolve().parent.parent

#: The public modules, by the title of their page.
MODULES: Final = {
    "Jobs": "coord_control",
    "Coordinators": "coord_control.coordinators",
    "Client": "coord_control.control.client.control_client",
    "Commands and their results": "coord_control.control.commands",
    "Settings of the control plane": "coord_control.control.settings",
    "Records of the control database": "coord_control.storage.records",
    "Options of checkpoints": "coord_control.protocol.scheduler.checkpoint_options",
    "Failures of checkpoints": "coord_control.protocol.failures",
    "Statistics": "coord_control.protocol.statistics",
    "Status": "coord_control.protocol.status",
    "Dagster": "dagster_defs",
}
_DRIVER_VARIABLE: Final = re.compile(r'^\w+_VARIABLE: Final = "(\w+)"  #: (.*)$', re.MULTILINE)


def pages() -> dict[str, str]:
    """Return the Markdown of every page, by its file name."""
    api = {f"api/{_slug(title)}.md": _api_page(title, name) for title, name in MODULES.items()}
    index = "".join(f"- [{title}](api/{_slug(title)}.md): `{name}`\n" for title, name in MODULES.items())
    return {
        "commands.md": _commands(),
        "component.md": _component(),
        "environment.md": _environment(),
        "errors.md": _errors(),
        "exit-codes.md": _document("Exit codes", "coord_control.exit_codes"),
        "api.md": f"# API\n\nWhat a program may import. Everything else may change without notice.\n\n{index}",
        **api,
    }


def undocumented() -> Iterator[str]:
    """Yield the public names of the modules, and public methods of their classes, that have no docstring."""
    for name in (*MODULES.values(), "coord_control.errors", "coord_control.exit_codes"):
        module = importlib.import_module(name)
        if not module.__doc__:
            yield name
        for each in _public(module):
            found = getattr(module, each)
            if inspect.isclass(found) and not _own_docstring(found):
                yield f"{name}:{each}"
            elif inspect.isfunction(found) and not found.__doc__:
                yield f"{name}:{each}"
            if inspect.isclass(found):
                yield from (f"{name}:{each}.{method}" for method in _silent_methods(found))


def _public(module: ModuleType) -> list[str]:
    return [each for each in getattr(module, "__all__", ()) if not each.startswith("_")]


def _own_docstring(found: type) -> bool:
    text = found.__dict__.get("__doc__") or ""
    return bool(text) and not text.startswith(f"{found.__name__}(")  # as the one that a dataclass gets


def _silent_methods(found: type) -> Iterator[str]:
    for name, member in vars(found).items():
        function = getattr(member, "__func__", member)
        if not name.startswith("_") and inspect.isfunction(function) and not inspect.getdoc(getattr(found, name)):
            yield name


def _slug(title: str) -> str:
    return title.lower().replace(" ", "-")


def _document(title: str, name: str) -> str:
    return f"# {title}\n\n{inspect.cleandoc(importlib.import_module(name).__doc__ or '')}\n"


def _api_page(title: str, name: str) -> str:
    module = importlib.import_module(name)
    parts = [f"# {title}\n\n`{name}`: {as_markdown(inspect.cleandoc(module.__doc__ or ''))}\n"]
    for each in _public(module):
        found: Any = getattr(module, each)
        if inspect.isclass(found) or inspect.isfunction(found):
            parts.append(f"::: {found.__module__}.{found.__qualname__}\n    options:\n      heading_level: 2\n")
    return "\n".join(parts)


def _commands() -> str:
    from coord_control.cli.main import app

    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="coordctl")
    text = typer.cli.get_docs_for_click(obj=command, ctx=context, name="coordctl")
    return str(text)


def _environment() -> str:
    from coord_control.control.settings import ControlSettings
    from coord_control.launch.kubernetes_job import TEMPLATE

    meanings = _attributes(ControlSettings)
    rows = []
    for name, field in ControlSettings.model_fields.items():
        variable = "COORD_CONTROL" if name == "url" else f"COORD_CONTROL_{name.upper()}"
        default = "" if field.default is None or field.is_required() or name == "url" else f"{field.default:g}"
        rows.append(f"| `{variable}` | {meanings[name]} | {default} |")
    rows.append(f"| `{TEMPLATE}` | The file of the Job from which Dagster's launcher for Kubernetes makes others | |")
    source = (_ROOT / "coord_control" / "driver_process.py").read_text(encoding="utf-8")
    metrics = (_ROOT / "coord_control" / "metrics" / "address.py").read_text(encoding="utf-8")
    driver = [f"| `{name}` | {text} |" for name, text in _DRIVER_VARIABLE.findall(metrics + source)]
    return "\n".join(
        (
            "# Environment variables",
            "",
            "Every option of `coordctl` can be given by a variable as well: [the commands](commands.md) name it.",
            "",
            "## Drivers, clients and Dagster",
            "",
            "| variable | meaning | default |",
            "| --- | --- | --- |",
            *rows,
            "",
            "## Drivers alone",
            "",
            "`coordctl run` sets those that pass on its options. A driver that is started otherwise may be given",
            "them by hand.",
            "",
            "| variable | meaning |",
            "| --- | --- |",
            *driver,
            "",
        )
    )


def _errors() -> str:
    import coord_control.errors as errors

    parts = [
        "# Errors",
        "",
        "Every error of the package, by name. All of them are `coord_control.errors.CoordControlError`s: `fault` says",
        "who can mend it, and `retry` whether the same action may succeed when it is repeated.",
        "",
        "| error | meaning | fault | retry |",
        "| --- | --- | --- | --- |",
    ]
    for name in sorted(_public(errors)):
        found = getattr(errors, name)
        if inspect.isclass(found) and issubclass(found, errors.CoordControlError):
            text = " ".join((found.__doc__ or "").split("\n\n")[0].split()).replace("|", r"\|")
            parts.append(f"| `{name}` | {text} | {found.fault.value} | {'yes' if found.retry else 'no'} |")
    return "\n".join(parts) + "\n"


def _component() -> str:
    from coord_control.dagster import spec
    from dagster_defs import StreamingJobComponent

    schema = spec.ControlPlaneSpec.model_json_schema()
    parts = [
        "# YAML of the Dagster component",
        "",
        "What stands in a `defs.yaml` below `type: dagster_defs.StreamingJobComponent`. [Dagster](../docs/dagster.md)",
        "says how it is used. Each value may also be a template of Dagster, such as `{{ env.JOBS_DATABASE }}`.",
        "",
        "## attributes",
        "",
        *_fields(schema, _attributes(spec.ControlPlaneSpec)),
    ]
    parts += [f"| `{name}` | string | {text} | |" for name, text in _attributes(StreamingJobComponent).items()]
    for name, each in schema.get("$defs", {}).items():
        if each.get("properties"):
            found = getattr(spec, name)
            said = inspect.cleandoc(found.__doc__ or "").partition("\n\n")[0]
            parts += ["", f"## {name}", "", said, "", *_fields(each, _attributes(found))]
    return "\n".join(parts) + "\n"


def _attributes(found: type) -> dict[str, str]:
    """Return what a class's docstring says of its attributes, by name."""
    _, _, section = inspect.cleandoc(found.__doc__ or "").partition("Attributes:\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n     +.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()).replace("|", r"\|") for name, text in entries}


def _fields(schema: dict[str, Any], meanings: dict[str, str]) -> Iterator[str]:
    yield "| field | type | meaning | default |"
    yield "| --- | --- | --- | --- |"
    required = schema.get("required", ())
    for name, each in schema.get("properties", {}).items():
        default = each.get("default")
        shown = (
            "**required**" if name in required else "" if not default or isinstance(default, dict) else f"`{default}`"
        )
        yield f"| `{name}` | {_type(each)} | {meanings.get(name, '')} | {shown} |"


def _type(each: dict[str, Any]) -> str:
    if "$ref" in each:
        name = each["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in each:
        return " or ".join(dict.fromkeys(_type(one) for one in each["anyOf"] if one.get("type") != "null"))
    if each.get("type") == "array":
        return f"list of {_type(each.get('items', {}))}"
    if "enum" in each:
        return " or ".join(f"`{one}`" for one in each["enum"])
    return str(each.get("type", ""))
