"""Who owns the simulated job, by the real claims: one driver, also where a create looks first and writes later.

One clock for all drivers; it only moves when the history says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.generations import LEASE_SECONDS, Claim
from coord_control.durable.job_folder.holder import Holder
from coord_control.ids import Generation
from tests.simulation.memory_files import MemoryFiles
from tests.simulation.values import Violation

__all__ = ["Claims"]

_FOLDER: Final = "/job/generations"
_HOLDER: Final = Holder(host="simulated", boot=None, namespace=None, processes=())


@dataclass(slots=True)
class Claims:
    """All claims of a history.

    Attributes:
        now: seconds, the same for all drivers.
    """

    now: float = 0.0
    owned: list[Claim] = field(default_factory=list)
    superseded: dict[Generation, float] = field(default_factory=dict)  #: when a newer driver owned the job

    def claim(self, files: MemoryFiles) -> Claim:
        """Claim the next generation as one driver.

        Raises:
            Violation: another driver owns the same generation, or is current as well.
        """
        mine = generations.claim(files, _FOLDER, _HOLDER, sleep=lambda seconds: None, clock=lambda: self.now)
        if any(other.generation == mine.generation for other in self.owned):
            raise Violation(f"fencing: generation {mine.generation} has two owners")
        self.owned.append(mine)
        newest = max(each.generation for each in self.owned)  # another one, if that was claimed in between
        current = [each.generation for each in self.owned if each.is_current()]
        if current != [newest]:
            raise Violation(f"fencing: {current} are current, {newest} is the newest")
        for each in self.owned:
            if each.generation != newest:
                self.superseded.setdefault(each.generation, self.now)
        return mine

    def answered(self, generation: Generation) -> None:
        """A driver has answered a subtask, other than by refusing it.

        Raises:
            Violation: it was superseded longer ago than any check may be old.
        """
        since = self.superseded.get(generation)
        if since is not None and self.now - since > LEASE_SECONDS:
            raise Violation(f"fencing: driver {generation} answers {self.now - since:g} s after it was superseded")
