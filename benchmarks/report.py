"""The report of every benchmark: its numbers as JSON, its goals, and a one-line summary."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import pyspark

__all__ = ["Benchmark", "Goal", "at_least", "at_most", "main", "median"]


@dataclass(frozen=True, slots=True)
class Goal:
    """A promised number, and its measured value."""

    name: str
    measured: float
    relation: str  #: ``<=`` or ``>=``
    promised: float
    unit: str

    @property
    def is_met(self) -> bool:
        return self.measured <= self.promised if self.relation == "<=" else self.measured >= self.promised

    def __str__(self) -> str:
        verdict = "met" if self.is_met else "MISSED"
        return f"{self.name} {self.measured:,.4g} {self.relation} {self.promised:,.6g} {self.unit}: {verdict}"


def at_most(name: str, measured: float, promised: float, unit: str) -> Goal:
    return Goal(name, measured, "<=", promised, unit)


def at_least(name: str, measured: float, promised: float, unit: str) -> Goal:
    return Goal(name, measured, ">=", promised, unit)


#: Measures, quickly or properly, and returns the goals and all numbers behind them.
Benchmark: TypeAlias = Callable[[bool], tuple[Sequence[Goal], dict[str, Any]]]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def main(name: str, benchmark: Benchmark) -> int:
    """Run one benchmark from the command line; return the exit code: 1 if a goal is missed.

    With ``--quick`` it only shows that it runs: a few seconds are too short to judge anything.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=benchmark.__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs; nothing is judged")
    is_quick = parser.parse_args().quick
    goals, numbers = benchmark(is_quick)
    document = {
        "benchmark": name,
        "quick": is_quick,
        "goals": [{**asdict(goal), "met": goal.is_met} for goal in goals],
        "numbers": numbers,
        "machine": _machine(),
    }
    print(json.dumps(document, indent=2), flush=True)
    if is_quick:
        print(f"{name}: ran (quick, not judged)", file=sys.stderr)
        return 0
    is_met = all(goal.is_met for goal in goals)
    print(f"{name}: {'met' if is_met else 'MISSED'} ({'; '.join(map(str, goals))})", file=sys.stderr)
    return 0 if is_met else 1


def _machine() -> dict[str, Any]:
    return {
        "cpus": os.cpu_count(),
        "load_1m": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "system": platform.platform(),
    }
