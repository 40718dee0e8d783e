"""What the storage does to one simulated driver: it dies around a durable step, or the step fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coord_control.errors import StoreUnavailable
from tests.simulation.memory_files import Crash
from tests.simulation.statistics import Statistics

__all__ = ["StorageFaults"]


@dataclass(slots=True)
class StorageFaults:
    """Counts down over the points before and after each durable step; None: never."""

    statistics: Statistics
    dies_at: int | None = None  #: counts down over the points before and after each durable step
    fails_at: int | None = None
    meets_at: int | None = None  #: counts down to where another driver comes in between
    meet: Callable[[], None] | None = None
    died: bool = False

    def before_write(self, path: str) -> None:
        self._pass(f"before writing {path}", path)

    def after_write(self, path: str) -> None:
        self.statistics.writes += 1
        self._pass(f"after writing {path}", path)

    def _pass(self, where: str, path: str) -> None:
        if self.meets_at is not None:
            self.meets_at -= 1
            if self.meets_at <= 0 and self.meet is not None:
                self.meets_at = None
                self.meet()
        if self.dies_at is not None:
            self.dies_at -= 1
            if self.dies_at <= 0:
                self.dies_at, self.died = None, True
                raise Crash(where)
        if self.fails_at is not None:
            self.fails_at -= 1
            if self.fails_at <= 0:
                self.fails_at = None
                raise StoreUnavailable(path, "write", "simulated")
