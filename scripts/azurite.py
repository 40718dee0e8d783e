"""Fetches Azurite, the emulator of Azure's Blob Storage, for tests: ``python -m scripts.azurite``.

npm brings a pinned version into the cache of :mod:`scripts.connectors`, once. Several processes may do so at the same
time.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from scripts.connectors import ConnectorsMissing, cache

__all__ = ["azurite", "fetch"]

_VERSION: Final = "3.37.0"
_INSTALL: Final = "install it with: apt-get install nodejs npm (dnf install nodejs, brew install node)"


def azurite() -> Path:
    """Return the script that Node.js runs.

    Raises:
        ConnectorsMissing: it is not in the cache.
    """
    script = _folder() / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not script.is_file():
        raise ConnectorsMissing(f"{script} is not there; fetch it with: make azurite")
    return script


def fetch() -> None:
    """Fetch it if it is not in the cache.

    Raises:
        ConnectorsMissing: there is no npm, or it cannot fetch it.
    """
    target = _folder()
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():
            return
        npm = shutil.which("npm")
        if npm is None:
            raise ConnectorsMissing(f"there is no npm on the PATH; {_INSTALL}")
        draft = target.with_name(f"{target.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        (draft / "package.json").write_text("{}", encoding="utf-8")  # npm would look for one in the folders above
        command = [npm, "install", "--no-audit", "--no-fund", f"azurite@{_VERSION}"]
        done = subprocess.run(command, cwd=draft, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ConnectorsMissing(f"npm could not fetch Azurite: {done.stderr.strip()[-500:]}")
        draft.rename(target)


def _folder() -> Path:
    return cache() / f"azurite-{_VERSION}"


if __name__ == "__main__":
    try:
        fetch()
    except ConnectorsMissing as error:
        sys.exit(f"error: {error}")
