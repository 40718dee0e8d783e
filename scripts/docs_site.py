"""Builds the documentation: ``python -m scripts.docs_site [FOLDER]``.

The pages are the repository's own Markdown files, where they are, so that their links work here as they do in the
repository; and the reference, which is made from the code (scripts/docs_reference.py). Each version is a separate
folder: what an older version has left stays, and the reader can choose among them. Needs neither network nor Java. The
pages can be read from the disk; search and the choice of versions need a server, as the command says.

Every warning is an error, and so is a link to what is not there: otherwise the documentation would silently decay.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from scripts.docs_reference import pages, undocumented

__all__ = ["LINK", "build", "main", "stage"]

_ROOT: Final = Path(__file__).resolve().parent.parent
_STAGE: Final = _ROOT / "build" / "site"
#: What is on the site, besides the reference.
_PAGES: Final = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "deploy/README.md",
)
#: A link in Markdown, with its text, its target and the place in that.
LINK: Final = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def stage(folder: Path) -> None:
    """Put the pages of the site together in ``folder``."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(_ROOT / "docs", folder / "docs")
    for name in _PAGES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(_ROOT / name, folder / name)
    for name, text in pages().items():
        path = folder / "reference" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for page in folder.rglob("*.md"):
        page.write_text(_without_links_to_code(page, folder), encoding="utf-8")


def _without_links_to_code(page: Path, folder: Path) -> str:
    # Source files are not on the site: what links to one names it.
    def replaced(match: re.Match[str]) -> str:
        text, target = match.group(1), match.group(2)
        if "://" in target or (page.parent / target).exists():
            return match.group(0)
        if not (_ROOT / page.relative_to(folder).parent / target).exists():
            raise SystemExit(f"{page.relative_to(folder)}: there is no {target}")
        return text

    return LINK.sub(replaced, page.read_text(encoding="utf-8"))


def build(folder: Path) -> Path:
    """Render the staged pages below ``folder``; return the page to begin with."""
    name = ".".join(version("coord-control").split(".")[:2])
    config = (_ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    generated = _ROOT / "build" / "mkdocs.yml"
    config = config.replace("docs_dir: build/site", "docs_dir: site").replace("paths: [.]", "paths: [..]")
    generated.write_text(f"{config}site_dir: {os.path.relpath(folder / name, generated.parent)}\n", encoding="utf-8")
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "--clean", "-f", str(generated)]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "NO_COLOR": "1"}  # scripts.docs_docstrings is loaded by it
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode or "warning" in (done.stdout + done.stderr).lower():
        raise SystemExit(done.stdout + done.stderr)
    versions = sorted((each.parent.name for each in folder.glob("*/index.html")), reverse=True)
    listing = [{"version": each, "title": each, "aliases": []} for each in versions]
    (folder / "versions.json").write_text(json.dumps(listing), encoding="utf-8")
    start = folder / "index.html"
    start.write_text(f'<meta http-equiv="refresh" content="0; url={name}/index.html">\n', encoding="utf-8")
    return start


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code, 1 if a public name has no docstring."""
    parser = argparse.ArgumentParser(description="Build the documentation.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("build/docs"), help="where it goes")
    folder: Path = parser.parse_args(arguments).folder
    os.environ["COORD_CONTROL"] = "none"  # loading modules must not open the user's database
    if silent := list(undocumented()):
        print("these have no docstring:", *silent, sep="\n  ", file=sys.stderr)
        return 1
    stage(_STAGE)
    start = build(folder.resolve())
    print(f"{start}; with search: {sys.executable} -m http.server -b 127.0.0.1 -d {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
