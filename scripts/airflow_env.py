"""Makes the environment in which tests run Airflow: ``python -m scripts.airflow_env [--optional]``.

``scripts/airflow_env.txt`` pins every package. They are installed once, from the index that pip is configured with,
into a virtual environment in a cache outside the checkout; ``COORD_AIRFLOW_CACHE`` names another folder. Several
processes may do so at the same time. The product itself is not installed there: tests put the checkout on the path.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

__all__ = ["AirflowMissing", "cache", "fetch", "python"]

_PINNED: Final = Path(__file__).with_suffix(".txt")
_DONE: Final = "complete"


class AirflowMissing(Exception):
    """Airflow is not there, or cannot be had; the message names the reason and the next step."""


def cache() -> Path:
    """Return the folder of the environments, which may not exist yet."""
    named = os.environ.get("COORD_AIRFLOW_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "coord-control" / "airflow"


def python() -> Path:
    """Return the interpreter of the environment.

    Raises:
        AirflowMissing: the environment was not made.
    """
    folder = _folder()
    if not (folder / _DONE).is_file():
        raise AirflowMissing(f"its environment is not in {cache()}; make it with: make airflow")
    return folder / "bin" / "python"


def fetch() -> bool:
    """Make the environment if it is not in the cache, and return whether it was made.

    Raises:
        AirflowMissing: pip cannot install a package.
    """
    folder = _folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / _DONE).is_file():
            return False
        print(f"Installing Airflow into {folder} (about a minute)", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        # --no-deps: the file names everything, and the resolver would look at each package once more.
        command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--root-user-action=ignore", "--requirement", str(_PINNED)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            output = done.stderr.strip().splitlines()
            cause = next((line for line in output if line.startswith("ERROR")), f"exit code {done.returncode}")
            raise AirflowMissing(f"pip could not install it: {cause}")
        (folder / _DONE).touch()
        return True


def _folder() -> Path:
    # Scripts of an environment name its path, so it is made where it stays.
    version = ".".join(map(str, sys.version_info[:2]))
    return cache() / f"{hashlib.sha256(_PINNED.read_bytes()).hexdigest()[:12]}-{version}"


def main(*, optional: bool) -> int:
    """Make the environment, and return the exit code: with ``optional`` a failure is only reported."""
    try:
        fetch()
    except AirflowMissing as error:
        print(f"Airflow is not tested: {error}" if optional else f"error: {error}", file=sys.stderr)
        return 0 if optional else 1
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--optional", action="store_true", help="say in one line why there is no Airflow, and succeed")
    sys.exit(main(**vars(parser.parse_args())))
