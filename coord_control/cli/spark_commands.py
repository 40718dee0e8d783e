"""Runs Spark for commands in a separate process, so that only commands that need it start a JVM.

Threading: the command's thread.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict

import typer

from coord_control.durable.restore.shuffle_partitions import StateToRepartition
from coord_control.environment import require_spark
from coord_control.ids import QueryName
from coord_control.spark.states.state_request import StateRequest, StateRows

__all__ = ["read_state", "repartition_states"]


def repartition_states(states: Sequence[StateToRepartition]) -> dict[QueryName, str]:
    """Have Spark repartition states.

    Returns:
        The reason of the refusal, by query; empty if all states were repartitioned.

    Raises:
        typer.BadParameter: Spark could not be run.
    """
    answer = _answer("coord_control.spark.process.repartition", json.dumps([asdict(state) for state in states]))
    refused: dict[str, str] = json.loads(answer)
    return {QueryName(query): reason for query, reason in refused.items()}


def read_state(request: StateRequest) -> StateRows:
    """Have Spark read a state of a checkpoint, or compare two.

    Raises:
        PackageMissing: PySpark is not installed.
        typer.BadParameter: Spark could not be run.
    """
    return StateRows.model_validate_json(_answer("coord_control.spark.process.state_rows", request.model_dump_json()))


def _answer(module: str, work: str) -> str:
    """Run a module with work on its standard input, and return the last line that it prints."""
    require_spark("this command")
    done = subprocess.run([sys.executable, "-m", module], input=work, capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise typer.BadParameter(f"Spark could not be run ({last}), and nothing was changed; see coordctl doctor")
    return done.stdout.strip().splitlines()[-1]
