"""Who owns the simulated job, by the real claims: one driver, also where a create looks first and writes later.

Each driver has a clock (:mod:`.clocks`), so whatever compares the times of two drivers decides at random.
The one time of another driver that the code here gets to see is ``claimed_at`` in its claim: records of epochs and
restores hold none. It must decide nothing, and a mutation that lets it decide who is superseded is caught.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Final
from unittest import mock

from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.generations import LEASE_SECONDS, Claim, ClaimRecord
from coord_control.durable.job_folder.holder import Holder
from coord_control.errors import JobRunning
from coord_control.ids import Generation
from tests.simulation.clocks import Clock
from tests.simulation.dice import Dice
from tests.simulation.memory_files import MemoryFiles
from tests.simulation.values import Violation

__all__ = ["Claims"]

_FOLDER: Final = "/job/generations"
_HOLDER: Final = Holder(host="simulated", boot=None, namespace=None, processes=())


@dataclass(slots=True)
class Claims:
    """All claims of a history.

    Args:
        seed: draws the clocks.

    Attributes:
        passed: how many seconds have really passed; no driver can see it.
        begun: how many claims there were, whether they came to their end or not.
    """

    seed: int
    passed: float = 0.0
    begun: int = 0
    owned: list[Claim] = field(default_factory=list)
    clocks: dict[Generation, Clock] = field(default_factory=dict)
    superseded: dict[Generation, float] = field(default_factory=dict)  #: when a newer driver owned the job

    def claim(self, files: MemoryFiles) -> Claim:
        """Claim the next generation as one driver, with a new clock.

        Raises:
            Violation: another driver owns the same generation, or is current as well.
        """
        self.begun += 1
        clock = Clock.drawn(Dice(self.seed + self.begun))
        with self._calendar(clock):
            mine = generations.claim(
                files, _FOLDER, _HOLDER, sleep=lambda seconds: None, clock=lambda: clock.seconds(self.passed)
            )
        if any(other.generation == mine.generation for other in self.owned):
            raise Violation(f"fencing: generation {mine.generation} has two owners")
        self.owned.append(mine)
        self.clocks[mine.generation] = clock
        newest = max(each.generation for each in self.owned)  # another one, if that was claimed in between
        current = [each.generation for each in self.owned if each.is_current()]
        if current != [newest]:
            raise Violation(f"fencing: {current} are current, {newest} is the newest")
        for each in self.owned:
            if each.generation != newest:
                self.superseded.setdefault(each.generation, self.passed)
        return mine

    def newest(self, files: MemoryFiles) -> Generation:
        """Return the newest generation that was claimed, by whomever."""
        found = generations.newest_claim(files, _FOLDER)
        return generations.NO_GENERATION if found is None else found[0].generation

    def command(self, files: MemoryFiles, dead: Generation) -> Claim | None:
        """Claim as a command on the storage of a job without a driver. None: a driver came first, it is left alone.

        Args:
            dead: whoever has claimed this generation, or an older one, is known to be dead.
        """

        def leave_alone(record: ClaimRecord, is_released: bool) -> None:
            if record.is_driver and record.generation > dead:
                raise JobRunning("simulated", record.generation, _HOLDER.host, is_known=True)

        try:
            return generations.claim(files, _FOLDER, _HOLDER, look_at=leave_alone, sleep=lambda seconds: None)
        except JobRunning:
            return None

    def answered(self, generation: Generation) -> None:
        """A driver has answered a subtask, other than by refusing it.

        Raises:
            Violation: it was superseded longer ago, by its own clock, than any check may be old.
        """
        if generation not in self.superseded:
            return
        clock = self.clocks[generation]
        ago = clock.seconds(self.passed) - clock.seconds(self.superseded[generation])
        if ago > LEASE_SECONDS:
            raise Violation(f"fencing: driver {generation} answers {ago:g} s after it was superseded")

    @contextlib.contextmanager
    def _calendar(self, clock: Clock) -> Iterator[None]:
        # What the driver that claims now takes for the date. A rival may come in between, with a date of its own.
        date = SimpleNamespace(now=lambda zone: clock.date(self.passed))
        with mock.patch.object(generations, "datetime", SimpleNamespace(datetime=date, UTC=datetime.UTC)):
            yield
