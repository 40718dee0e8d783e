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
from coord_control.ids import QueryName

__all__ = ["repartition_states"]


def repartition_states(states: Sequence[StateToRepartition]) -> dict[QueryName, str]:
    """Have Spark repartition states.

    Returns:
        The reason of the refusal, by query; empty if all states were repartitioned.

    Raises:
        typer.BadParameter: Spark could not be run.
    """
    command = [sys.executable, "-m", "coord_control.spark.process.repartition"]
    work = json.dumps([asdict(state) for state in states])
    done = subprocess.run(command, input=work, capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise typer.BadParameter(f"Spark could not be run ({last}), and nothing was changed; see coordctl doctor")
    refused: dict[str, str] = json.loads(done.stdout.strip().splitlines()[-1])
    return {QueryName(query): reason for query, reason in refused.items()}
