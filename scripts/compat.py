"""Runs tests/compat on another PySpark: ``python -m scripts.compat RELEASE [PYTEST ARGUMENTS]``.

``scripts/compat.toml`` pins the releases. Each gets a folder outside the checkout, next to the jars of connectors, into
which pip installs it once; ``COORD_COMPAT_CACHE`` names another place. The folder comes first on the path of modules:
drivers, Python workers and command lines of the tests take that PySpark from there, and everything else from the
environment of the checkout. ``all`` runs every release, one after the other.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["cache", "installed", "main", "releases"]

_PINNED: Final = Path(__file__).with_suffix(".toml")
_CHECKOUT: Final = Path(__file__).resolve().parents[1]
_ALL: Final = "all"
#: Of older releases, which leave sockets to the garbage collector, and compare versions with what setuptools will
#: remove.
_WARNINGS: Final = ("DeprecationWarning", "pytest.PytestUnraisableExceptionWarning")


def releases() -> dict[str, str]:
    """Return the pinned version of each release."""
    return dict(_pinned()["pyspark"])


def _pinned() -> dict[str, dict[str, str]]:
    return tomllib.loads(_PINNED.read_text(encoding="utf-8"))


def cache() -> Path:
    """Return the folder of the installed releases, which may not exist yet."""
    named = os.environ.get("COORD_COMPAT_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "coord-control" / "spark"


def installed(release: str) -> Path:
    """Return the folder with a release; install it there, unless it was.

    Raises:
        subprocess.CalledProcessError: pip could not install it, and has said why.
    """
    pinned = _pinned()
    wanted = {"pyspark": pinned["pyspark"][release], **pinned["packages"]}
    names = [f"{name}=={version}" for name, version in wanted.items()]
    folder = cache() / "-".join([release, *wanted.values()])
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            print(f"Installing {', '.join(names)} into {folder}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as name:
                draft = Path(name) / "packages"
                _install(draft, names)
                shutil.move(draft, folder)
    return folder


def _install(folder: Path, names: Sequence[str]) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--root-user-action=ignore", "--target", str(folder), *names], check=True)


def main(argv: Sequence[str]) -> int:
    """Run the tests and return pytest's exit code, the first one that is not 0."""
    wanted = argv[0] if argv else ""
    if wanted != _ALL and wanted not in releases():
        print(f"usage: make compat SPARK=RELEASE, one of {', '.join([*releases(), _ALL])}", file=sys.stderr)
        return 2
    codes = [_run(release, argv[1:]) for release in (releases() if wanted == _ALL else [wanted])]
    return next((code for code in codes if code), 0)


def _run(release: str, arguments: Sequence[str]) -> int:
    folder = installed(release)
    print(f"PySpark {releases()[release]}", file=sys.stderr, flush=True)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    quiet = [part for name in _WARNINGS for part in ("-W", f"ignore::{name}")]
    # The arguments may name single tests.
    named = any(not each.startswith("-") and Path(each.partition("::")[0]).exists() for each in arguments)
    everything = ["-m", "slow or not slow"]  # `make test` leaves some out, which it shows elsewhere
    command = [sys.executable, "-m", "pytest", *quiet, *everything, *arguments, *([] if named else ["tests/compat"])]
    return subprocess.run(command, cwd=_CHECKOUT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
