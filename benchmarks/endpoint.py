"""How many subtasks one driver serves: hello and ack per second, an epoch of 10,000, and what idle ones cost.

Everything of the driver is real but Spark (:mod:`benchmarks.rig`); the subtasks are in another process
(:mod:`benchmarks.load`). *Changing*: each subtask has an input event, a new state and an event for the coordinator, so
each begin and each ack is durable before it is answered. *Idle*: nothing changes, so nothing is written.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from typing import Any, Final

import psutil
from pydantic import BaseModel

from benchmarks.load import Epoch, Load
from benchmarks.report import Goal, at_least, at_most, main, median
from benchmarks.rig import Rig
from coord_control.coordinators import StatefulCoordinator

_CONNECTIONS: Final = 64  # a cluster with 64 cores
_SUBTASKS: Final = 10_000
_EPOCHS: Final = 7
_MIB: Final = 1 << 20


class Note(BaseModel):
    value: int = 0


class Counted(BaseModel):
    notes: int = 0


class Counter(StatefulCoordinator[Counted]):
    """Counts what the subtasks send; the count is its state."""

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Note) -> None:
        self.state.notes += 1


def endpoint(quick: bool) -> tuple[list[Goal], dict[str, Any]]:
    """Hello and ack pairs per second, an epoch of 10,000 subtasks, memory."""
    subtasks, epochs, many = (200, 2, 100) if quick else (_SUBTASKS, _EPOCHS, _SUBTASKS)
    with Rig.running(Counter(Counted()), subtasks, down=[Note], up=[Note]) as rig, Load(rig.address) as load:
        # First of all: later, memory that epochs have used and given back would hide what connections take.
        before = _rss()
        connecting = load.connect(many)
        connected = _rss()
        numbers = _Numbers(rig, load, subtasks)
        numbers.epoch(is_changing=True)  # every subtask has a state and every code path has been taken
        memory = _rss() - connected
        idle = [numbers.epoch(is_changing=False) for _ in range(epochs)]
        changing = [numbers.epoch(is_changing=True) for _ in range(epochs)]
    rates = {name: subtasks / median([s for s, _ in run]) for name, run in (("idle", idle), ("changing", changing))}
    goals = [
        at_least("hello+ack pairs, idle", rates["idle"], 10_000, "1/s"),
        at_least("hello+ack pairs, changing", rates["changing"], 10_000, "1/s"),
        at_most("epoch of 10,000 subtasks", median([seconds for seconds, _ in changing]), 1.5, "s"),
        at_most("10,000 idle subtasks", memory / _MIB, 100, "MiB"),
    ]
    return goals, {
        "connections": _CONNECTIONS,
        "subtasks": subtasks,
        "idle": _summary(idle, subtasks),
        "changing": _summary(changing, subtasks),
        "group_commits": rig.runtime.writer.writes,
        "idle_subtasks_mib": round(memory / _MIB, 1),
        "idle_connections": many,
        "idle_connections_mib": round((connected - before) / _MIB, 1),
        "connecting_seconds": round(connecting, 2),
    }


class _Numbers:
    def __init__(self, rig: Rig, load: Load, subtasks: int) -> None:
        self._rig, self._load, self._subtasks = rig, load, subtasks
        self._epoch = 0

    def epoch(self, *, is_changing: bool) -> tuple[float, float]:
        """Run one epoch; returns its seconds, and the CPU seconds of the driver in that time."""
        if is_changing:
            self._rig.coordinator.context.broadcast(Note(value=self._epoch))
        began = time.process_time()
        seconds = self._load.run(Epoch(self._epoch, self._subtasks, _CONNECTIONS, is_changing))
        self._epoch += 1
        return seconds, time.process_time() - began


def _summary(epochs: list[tuple[float, float]], subtasks: int) -> dict[str, Any]:
    return {
        "epoch_seconds": [round(seconds, 3) for seconds, _ in epochs],
        "pairs_per_second": round(subtasks / median([seconds for seconds, _ in epochs])),
        "pairs_per_driver_cpu_second": round(subtasks / median([cpu for _, cpu in epochs])),
    }


def _rss() -> int:
    gc.collect()
    return int(psutil.Process(os.getpid()).memory_info().rss)


if __name__ == "__main__":
    sys.exit(main("endpoint", endpoint))
