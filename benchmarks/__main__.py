"""Run all benchmarks, one after the other, each in its own process: ``python -m benchmarks [--quick]``."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

NAMES: Final = (
    "endpoint",
    "events",
    "overhead",
    "live",
    "shuffle",
    "wake",
    "recovery",
    "checkpoints",
    "history",
    "agent",
    "ask",
    "scale",
    "dagster_sensor",
    "dagster_savepoint",
    "metrics",
    "objects",
)


def main() -> int:
    """Return 1 if any benchmark misses a goal."""
    codes = [subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *sys.argv[1:]]).returncode for name in NAMES]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
