"""How many subtasks one driver serves: hello and ack per second, an epoch of 10,000, and the cost of idle ones.

Everything in the driver is real except Spark (:mod:`benchmarks.rig`); the subtasks are in another process
(:mod:`benchmarks.load`). *Changing*: each subtask has an input event, a new state and an event for the coordinator, so
each begin and each ack is durable before it is answered. *Idle*: nothing changes, so nothing is written.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final

import psutil
from pydantic import BaseModel

from benchmarks.load import Epoch, Load
from benchmarks.report import Goal, at_least, at_most, main, median
from benchmarks.rig import Rig
from coord_control.coordinators import StatefulCoordinator

_CONNECTIONS: Final = 256  # a cluster with as many cores, which needs 40 waves of tasks for 10,000 subtasks
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
    subtasks, epochs = (200, 2) if quick else (_SUBTASKS, _EPOCHS)
    # In a separate process: memory that epochs have used and released would hide what connections take.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        connecting, connected = pool.submit(_connections, subtasks).result()
    before = _rss()
    with Rig.running(Counter(Counted()), subtasks, down=[Note], up=[Note]) as rig, Load(rig.address) as load:
        load.connect(_CONNECTIONS)
        numbers = _Numbers(rig, load, subtasks)
        numbers.epoch(is_changing=True)  # every subtask has a state and every code path has been taken
        memory = _rss() - before
        idle = [numbers.epoch(is_changing=False) for _ in range(epochs)]
        changing = [numbers.epoch(is_changing=True) for _ in range(epochs)]
    goals = [
        at_least("hello+ack pairs, idle", subtasks / median([s for s, _ in idle]), 10_000, "1/s"),
        at_most("changing epoch of 10,000 subtasks", median([s for s, _ in changing]), 1.5, "s"),
        at_most("10,000 idle subtasks", memory / _MIB, 100, "MiB"),
    ]
    return goals, {
        "connections": _CONNECTIONS,
        "subtasks": subtasks,
        "idle": _summary(idle, subtasks),
        "changing": _summary(changing, subtasks),
        "group_commits": rig.runtime.writer.writes,
        "idle_subtasks_mib": round(memory / _MIB, 1),
        "idle_connections": subtasks,
        "idle_connections_mib": round(connected / _MIB, 1),
        "connecting_seconds": round(connecting, 2),
    }


def _connections(count: int) -> tuple[float, int]:
    """Open idle connections; return how many seconds that took, and how many bytes they use in the driver."""
    with Rig.running(Counter(Counted()), 1) as rig, Load(rig.address) as load:
        load.connect(1)
        before = _rss()
        return load.connect(count), _rss() - before


class _Numbers:
    def __init__(self, rig: Rig, load: Load, subtasks: int) -> None:
        self._rig, self._load, self._subtasks = rig, load, subtasks
        self._epoch = 0

    def epoch(self, *, is_changing: bool) -> tuple[float, float]:
        """Run one epoch; return its seconds, and the CPU seconds of the driver in that time."""
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
