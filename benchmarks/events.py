"""Events from ``context.send`` in the driver to parsed models in ``subtask.events``, per second.

The driver is real but for Spark (:mod:`benchmarks.rig`): one FIFO inbox, a begin record on the disk for every epoch,
sockets. The coordinator sends from its own thread, round robin to four subtasks, while the two worker processes of the
epoch before still parse; that is what a job does whose epochs follow each other. *alone* is one epoch by itself:
nothing overlaps.

Events per second depend on the machine, and on what else it does. So each round also measures a yardstick: the CPU
time that pydantic takes to dump the same events and to parse them again, one by one and nothing else, in the driver's
process. Both goals are ratios to it. The first stands for ten times Flink 2.3: on the two quiet cores where Flink sent
55,600 events a second at its best, the yardstick was 1.8 us, and ten times 55,600 a second are 1.0 event in 1.8 us.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel

from benchmarks.report import Goal, at_least, at_most, main, median
from benchmarks.rig import Rig
from benchmarks.workers import Workers
from coord_control.coordinators import StatefulCoordinator

_SUBTASKS: Final = 4
_PROCESSES: Final = 2
_EVENTS: Final = 100_000  #: in one epoch
_EPOCHS: Final = 20
_ROUNDS: Final = 5


class Threshold(BaseModel):
    carrier: str
    minutes: float
    version: int


class Empty(BaseModel):
    pass


class Sender(StatefulCoordinator[Empty]):
    """Sends events, to each subtask in turn."""

    def send(self, events: Sequence[Threshold], sent: threading.Event) -> None:
        send, parallelism = self.context.send, self.context.parallelism
        for number, event in enumerate(events):
            send(number % parallelism, event)
        sent.set()


def events(quick: bool) -> tuple[list[Goal], dict[str, Any]]:
    """Events per second from context.send to subtask.events."""
    count, epochs, rounds = (2_000, 3, 1) if quick else (_EVENTS, _EPOCHS, _ROUNDS)
    sender = Sender(Empty())
    with (
        Rig.running(sender, _SUBTASKS, down=[Threshold]) as rig,
        Workers(rig.address, _SUBTASKS, _PROCESSES, [Threshold]) as workers,
    ):
        flow = _Flow(sender, workers, count)
        flow.alone()  # every code path has been taken once
        alone = [flow.alone() for _ in range(epochs)]
        flowing, yardstick = [], []
        for _ in range(rounds):
            yardstick.append(flow.yardstick())
            flowing.append(flow.flowing(epochs))
        flow.check()
    speeds = [rate * unit for (rate, _), unit in zip(flowing, yardstick, strict=True)]
    costs = [cpu / unit for (_, cpu), unit in zip(flowing, yardstick, strict=True)]
    goals = [
        at_least("events, epoch after epoch", median(speeds), 1.0, "in the time to dump and parse one"),
        at_most("driver's CPU per event", median(costs), 1.0, "x to dump and parse it"),
    ]
    return goals, {
        "subtasks": _SUBTASKS,
        "worker_processes": _PROCESSES,
        "events_per_epoch": count,
        "flowing_per_second": [round(rate) for rate, _ in flowing],
        "flowing_driver_cpu_us_per_event": round(1e6 * median([cpu for _, cpu in flowing]), 2),
        "dump_and_parse_cpu_us_per_event": round(1e6 * median(yardstick), 2),
        "events_in_yardstick": [round(speed, 3) for speed in speeds],
        "driver_cpu_against_yardstick": [round(cost, 3) for cost in costs],
        "alone_per_second": round(median([count / (sent + delivered) for sent, delivered in alone])),
        "alone_send_seconds": round(median([sent for sent, _ in alone]), 4),
        "alone_deliver_seconds": round(median([delivered for _, delivered in alone]), 4),
        "group_commits": rig.runtime.writer.writes,
    }


class _Flow:
    def __init__(self, sender: Sender, workers: Workers, events: int) -> None:
        self._sender, self._workers = sender, workers
        # Some models, sent again and again: making them is the user's work, and many of them would keep the garbage
        # collector busy.
        models = [Threshold(carrier="UA", minutes=0.5 * number, version=number) for number in range(100)]
        self._events = models * (events // len(models))
        self._epoch = 0
        self._sent = 0
        self._received = 0

    def alone(self) -> tuple[float, float]:
        """Send everything, then run one epoch; returns the seconds of both."""
        began = time.monotonic()
        self._send().wait()
        sent = time.monotonic()
        self._begin()
        return sent - began, self._finish() - sent

    def flowing(self, epochs: int) -> tuple[float, float]:
        """Send for the next epoch while this one runs; returns events per second, and the driver's CPU seconds."""
        began, cpu = time.monotonic(), time.process_time()
        self._send().wait()
        for _ in range(epochs - 1):
            self._begin()
            sent = self._send()
            self._finish()
            sent.wait()
        self._begin()
        count = epochs * len(self._events)
        return count / (self._finish() - began), (time.process_time() - cpu) / count

    def yardstick(self) -> float:
        """CPU seconds that pydantic takes to dump and parse one event."""
        began = time.process_time()
        for event in self._events:
            Threshold.model_validate_json(event.model_dump_json())
        return (time.process_time() - began) / len(self._events)

    def check(self) -> None:
        """Run one more epoch: everything that was sent must have arrived by then, once."""
        self._begin()
        self._finish()
        assert self._received == self._sent, f"{self._sent} events were sent, {self._received} received"

    def _send(self) -> threading.Event:
        sent = threading.Event()
        self._sender.context.call_soon(self._sender.send, self._events, sent)
        self._sent += len(self._events)
        return sent

    def _begin(self) -> None:
        self._workers.begin(self._epoch)
        self._epoch += 1

    def _finish(self) -> float:
        received, parsed_at = self._workers.finish()
        self._received += received
        return parsed_at


if __name__ == "__main__":
    sys.exit(main("events", events))
