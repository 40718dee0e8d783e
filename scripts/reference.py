"""Makes the API reference from the docstrings of the public modules: ``python scripts/reference.py [FOLDER]``.

There is one page per module of :data:`MODULES`, with search; they can be opened from the disk. Every warning is an
error: otherwise the reference would silently lose content over time. Needs neither network nor Java.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pdoc

#: The public modules, packages first.
MODULES: Final = (
    "coord_control",
    "coord_control.coordinators",
    "coord_control.errors",
    "dagster_defs",
    "coord_control.control.client.control_client",
    "coord_control.control.commands",
    "coord_control.control.settings",
    "coord_control.exit_codes",
    "coord_control.protocol.scheduler.checkpoint_options",
    "coord_control.protocol.failures",
    "coord_control.protocol.statistics",
    "coord_control.protocol.status",
    "coord_control.storage.records",
)


def undocumented() -> Iterator[str]:
    """Yield the public names of the modules, and public methods of their classes, that have no docstring."""
    for name in MODULES:
        module = pdoc.doc.Module(_loaded(name))
        if not module.docstring:
            yield name
        for member in module.members.values():
            own = [member, *(member.own_members if isinstance(member, pdoc.doc.Class) else ())]
            yield from (f"{name}:{each.qualname}" for each in own if _is_public(each) and not _says_something(each))


def _is_public(member: pdoc.doc.Doc[Any]) -> bool:
    return not any(part.startswith("_") for part in member.qualname.split("."))


def _says_something(member: pdoc.doc.Doc[Any]) -> bool:
    if isinstance(member, pdoc.doc.Class):  # an inherited or a dataclass's generated docstring does not count
        text = member.obj.__dict__.get("__doc__") or ""
        return bool(text) and not text.startswith(f"{member.name}(")
    # Fields are documented by their class, and constants have comments.
    return bool(member.docstring) or isinstance(member, pdoc.doc.Variable)


def generate(folder: Path) -> None:
    """Write the reference into ``folder``."""
    pdoc.render.configure(docformat="google", show_source=False, footer_text="coord-control")
    wanted: list[str] = []
    for name in MODULES:
        wanted.append(name)
        if hasattr(_loaded(name), "__path__"):
            wanted.append(rf"!{re.escape(name)}\..+")  # no submodules, except those listed after it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdoc.pdoc(*wanted, output_directory=folder)


def _loaded(name: str) -> ModuleType:
    """Return a module after loading its lazy public names."""
    module = importlib.import_module(name)
    for each in getattr(module, "__all__", ()):
        setattr(module, each, getattr(module, each))
    return module


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code, 1 if a public name has no docstring."""
    parser = argparse.ArgumentParser(description="Make the API reference.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("build/docs"), help="where it goes")
    folder: Path = parser.parse_args(arguments).folder
    os.environ["COORD_CONTROL"] = "none"  # loading modules must not open the user's database
    silent = list(undocumented())
    if silent:
        print("these have no docstring:", *silent, sep="\n  ", file=sys.stderr)
        return 1
    generate(folder)
    print(f"{(folder / 'index.html').resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
