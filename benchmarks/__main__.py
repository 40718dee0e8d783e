"""Run all benchmarks, one after the other, each in a process of its own: ``python -m benchmarks [--quick]``."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

NAMES: Final = (
    "endpoint",
    "events",
    "overhead",
    "recovery",
    "checkpoints",
    "history",
    "agent",
    "scale",
    "dagster_sensor",
    "dagster_savepoint",
    "metrics",
)


def main() -> int:
    """Returns 1 when a goal of any of them is missed."""
    codes = [subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *sys.argv[1:]]).returncode for name in NAMES]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
