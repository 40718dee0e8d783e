"""How long a savepoint through Dagster takes, against an empty asset of the same deployment.

A real ``dagster dev`` (webserver, daemon, code server, run workers), and a real Spark job with an operator of four
subtasks. Both assets are in one code location: what a run costs anyway (its worker and its step are new processes,
which import the code location) is the same for both. They are materialized through GraphQL, in turns; a run counts
from its creation until its end, by Dagster's clock, and each savepoint is compared with the empty run just before it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import coord_control as cc
from benchmarks import checkpoint_queries as queries
from benchmarks.report import Goal, at_most, main, median
from benchmarks.session import session
from tests.dagster_dev_kit import DagsterDev, dagster_dev

__all__ = ["dagster_savepoint"]

_GOAL: Final = 1.15
_PAIRS: Final = 12
_JOB: Final = "idle"
_EMPTY, _SAVEPOINT = "empty", f"{_JOB}/savepoint"
_CODE: Final = f"""
    import dagster as dg
    from coord_control.dagster import ControlPlaneSpec, StreamingJobSpec, build_streaming_definitions

    @dg.asset
    def {_EMPTY}() -> None:
        pass

    defs = dg.Definitions.merge(
        build_streaming_definitions(ControlPlaneSpec(jobs=[StreamingJobSpec(name="{_JOB}", queries=[])])),
        dg.Definitions(assets=[{_EMPTY}]),
    )
"""
_EVENTS: Final = """query($id: ID!) { logs: logsForRun(runId: $id) { ... on EventConnection { events {
    ... on MessageEvent { eventType timestamp }
} } } }"""
#: What a run goes through: a part ends with the first event of its kind.
_PARTS: Final = {
    "worker starts": "RUN_START",
    "step's process starts": "STEP_START",
    "asset is made": "STEP_SUCCESS",
    "run ends": "RUN_SUCCESS",
}


def dagster_savepoint(quick: bool) -> tuple[list[Goal], dict[str, Any]]:
    """Runs that take a savepoint, and runs that do nothing, in turns."""
    pairs = 1 if quick else _PAIRS
    with tempfile.TemporaryDirectory(prefix="coord-bench-") as name:
        folder = Path(name)
        os.environ["COORD_CONTROL"] = f"sqlite:///{folder}/control.db"
        with session() as spark, cc.Job(_JOB, spark, root=str(folder / "jobs")) as job:
            queries.start_idle(spark, job, str(folder / "rows"))
            with dagster_dev(folder / "dagster", _CODE, {}) as server:
                runs = _runs(server, pairs)
                taken = len(server.materializations(_SAVEPOINT))
    assert taken == pairs + 1, "each run has taken one"
    empty, savepoint = runs[_EMPTY], runs[_SAVEPOINT]
    ratios = [mine["seconds"] / theirs["seconds"] for mine, theirs in zip(savepoint, empty, strict=True)]
    numbers = {
        "pairs": pairs,
        "ratios": [round(each, 3) for each in ratios],
        "median_seconds": {what: round(median([run["seconds"] for run in those]), 3) for what, those in runs.items()},
        "seconds": {what: [round(run["seconds"], 3) for run in those] for what, those in runs.items()},
        "median_parts_seconds": {
            what: {part: round(median([run[part] for run in those]), 3) for part in _PARTS}
            for what, those in runs.items()
        },
    }
    return [at_most("savepoint run, against an empty one", median(ratios), _GOAL, "x")], numbers


def _runs(server: DagsterDev, pairs: int) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {_EMPTY: [], _SAVEPOINT: []}
    for _ in range(pairs + 1):
        for asset, those in found.items():
            those.append(_run(server, asset))
    return {asset: those[1:] for asset, those in found.items()}  # the first ones find cold files


def _run(server: DagsterDev, asset: str) -> dict[str, float]:
    run = server.wait_run(server.materialize(asset))
    assert run.status == "SUCCESS", "\n".join(server.messages(run.id))
    assert run.ended is not None
    events = server.ask(_EVENTS, id=run.id)["logs"]["events"]
    moments = {each["eventType"]: float(each["timestamp"]) / 1000 for each in reversed(events)}
    found, before = {"seconds": run.ended - run.created}, run.created
    for part, event in _PARTS.items():
        found[part], before = moments[event] - before, moments[event]
    return found


if __name__ == "__main__":
    sys.exit(main("dagster_savepoint", dagster_savepoint))
