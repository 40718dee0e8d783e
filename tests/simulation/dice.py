"""A random number generator that is cheap to make: every step of a history has one of its own.

The steps of a recorded history draw the same numbers whatever is left out before them: so it can be made short.
"""

from __future__ import annotations

import random
from typing import Final

__all__ = ["Dice"]

_MASK: Final = (1 << 64) - 1


class Dice(random.Random):
    """splitmix64 under the usual verbs of :class:`random.Random`; deterministic on every machine and Python."""

    def seed(self, a: object = 0, version: int = 2) -> None:
        assert isinstance(a, int), "a history is named by a number"
        self._state = a & _MASK

    def getrandbits(self, k: int, /) -> int:
        assert 0 <= k <= 64
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return (mixed ^ (mixed >> 31)) >> (64 - k)

    def random(self) -> float:
        return self.getrandbits(53) / (1 << 53)
