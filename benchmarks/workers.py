"""Worker processes that receive events as a real subtask does, but for Spark around them.

Each uses the product's own connection and models, in the order of :mod:`coord_control.spark.worker.subtask`: hello,
parse the inputs into models, acknowledge."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from typing import Self

from pydantic import BaseModel

from benchmarks.rig import OPERATOR, attempt
from coord_control.protocol.messages import Acknowledge, Hello
from coord_control.spark.wire.connection import DriverAddress, shared
from coord_control.spark.worker.model_codec import EventTypes

__all__ = ["Workers"]


class Workers:
    """Worker processes, each with some of the subtasks. Use it in a ``with`` block."""

    def __init__(
        self, address: DriverAddress, subtasks: int, processes: int, models: Sequence[type[BaseModel]]
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Pipe] = []
        self._processes = []
        for number in range(processes):
            ours, theirs = context.Pipe()
            own = range(number, subtasks, processes)
            process = context.Process(target=_serve, args=(theirs, address, own, tuple(models)), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def begin(self, epoch: int) -> None:
        """Let every subtask run its part of an epoch; return when the first of them has its inputs."""
        for pipe in self._pipes:
            pipe.send(epoch)
        wait(self._pipes)

    def finish(self) -> tuple[int, float]:
        """Wait for the end of the epoch; returns how many events were received, and when the last was parsed."""
        for pipe in self._pipes:
            pipe.recv()  # that its first subtask has its inputs
        received, parsed_at = zip(*(pipe.recv() for pipe in self._pipes), strict=True)
        return sum(received), max(parsed_at)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join()


def _serve(pipe: Pipe, address: DriverAddress, subtasks: range, models: Sequence[type[BaseModel]]) -> None:
    down = EventTypes(OPERATOR, "down", models)
    while True:
        try:
            epoch = pipe.recv()
        except EOFError:
            return
        received, parsed_at = 0, 0.0
        for subtask in subtasks:
            who = attempt(address.generation, subtask, epoch, epoch * 1000 + subtask)
            driver = shared(address)
            inputs = driver.hello(Hello(who)).inputs
            if subtask == subtasks.start:
                pipe.send(None)
            events = down.decode(inputs)
            # One clock for all processes of a machine.
            received, parsed_at = received + len(events), time.monotonic()
            del inputs, events
            driver.acknowledge(Acknowledge(who, None))
        pipe.send((received, parsed_at))
