"""Many simulated jobs: ``python -m tests.simulation.run --seeds 10000``.

Every seed is a job with its own shape, its own schedule and its own faults, played by
:mod:`tests.simulation`. A seed that breaks a rule is shortened and printed, one line per event. The
same seed gives the same history on every machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from typing import Final

from tests.simulation.histories import (
    DEFAULT_STEPS,
    Failure,
    explain,
    run_seed,
    shorten,
    watch_seed,
)
from tests.simulation.statistics import Statistics

__all__ = ["main", "run_seeds"]

_PROCESSES: Final = 2
_CHUNK: Final = 50  # seeds per task of a process
_MAX_EXPLAINED: Final = 3  # the first few say enough


def run_seeds(seeds: Iterable[int], steps: int = DEFAULT_STEPS) -> tuple[Statistics, list[Failure]]:
    """Run several histories in this process; returns what they went through, and those that broke a rule."""
    total, failures = Statistics(), []
    for seed in seeds:
        statistics, failure = run_seed(seed, steps)
        total.add(statistics)
        if failure is not None:
            failures.append(failure)
    return total, failures


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code, 1 when a rule was broken."""
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        return _one(options.seed, options.steps, show=options.history)
    began = time.perf_counter()
    total, failures = _many(range(options.start, options.start + options.seeds), options.steps)
    seconds = time.perf_counter() - began
    if options.json:
        found = [{"seed": failure.seed, "message": failure.message} for failure in failures]
        summary = {"seeds": options.seeds, "start": options.start, "seconds": round(seconds, 1)}
        print(json.dumps({**summary, **asdict(total), "failures": found}))
    else:
        for failure in failures[:_MAX_EXPLAINED]:
            print(explain(shorten(failure)), end="\n\n")
        print(f"{options.seeds} seeds in {seconds:.0f} s ({options.seeds / seconds:.0f} seeds/s)")
        for name, value in asdict(total).items():
            print(f"  {name.replace('_', ' '):20} {value:>12,}")
        print(f"  {'rules broken':20} {len(failures):>12,}  {[failure.seed for failure in failures[:20]] or ''}")
    return 1 if failures else 0


def _one(seed: int, steps: int, *, show: bool) -> int:
    if show:
        message = watch_seed(seed, steps, print)
        print(f"broken: {message}" if message is not None else "nothing was broken")
        return 0 if message is None else 1
    statistics, failure = run_seed(seed, steps)
    print(explain(shorten(failure)) if failure is not None else f"nothing was broken: {statistics}")
    return 0 if failure is None else 1


def _many(seeds: range, steps: int) -> tuple[Statistics, list[Failure]]:
    total, failures = Statistics(), []
    chunks = [seeds[first : first + _CHUNK] for first in range(0, len(seeds), _CHUNK)]
    with ProcessPoolExecutor(_PROCESSES) as pool:
        for statistics, found in pool.map(run_seeds, chunks, [steps] * len(chunks)):
            total.add(statistics)
            failures += found
    return total, failures


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many (default: %(default)s)")
    parser.add_argument("--start", type=int, default=0, help="the first one (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=DEFAULT_STEPS, help="of each history (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--history", action="store_true", help="with --seed: print everything that happens, in full")
    parser.add_argument("--json", action="store_true", help="print one line for machines")
    return parser


if __name__ == "__main__":
    sys.exit(main())
