"""Chooses the subtasks that a scrape includes individually: the most blocked ones, up to a fixed number.

Each subtask takes several series in Prometheus's memory for the whole retention time. A job with ten thousand subtasks
must not be able to fill it, whatever the scrape requests.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeVar

__all__ = ["MAX_SUBTASKS", "choose"]

#: The limit for all operators together, in one scrape of one target.
MAX_SUBTASKS: Final = 1000


class _Gateway(Protocol):
    @property
    def subtask(self) -> int: ...

    @property
    def blocked(self) -> int: ...

    @property
    def blocked_seconds(self) -> float: ...


G = TypeVar("G", bound=_Gateway)


def choose(operators: Iterable[tuple[str, str, Sequence[G]]], limit: int) -> tuple[list[tuple[str, str, G]], int]:
    """Choose the ``limit`` subtasks with most blocked events now, then with the longest blocked time so far.

    Args:
        operators: query, operator, gateways of each.
        limit: capped at :data:`MAX_SUBTASKS`.

    Returns:
        query, operator and gateway of each, in order, and how many were left out.
    """
    every = [(query, uid, gateway) for query, uid, gateways in operators for gateway in gateways]
    limit = min(limit, MAX_SUBTASKS)
    worst = heapq.nsmallest(limit, range(len(every)), key=lambda place: (*_rank(every[place][2]), place))
    return [every[place] for place in sorted(worst)], len(every) - len(worst)


def _rank(gateway: _Gateway) -> tuple[int, float]:
    return -gateway.blocked, -gateway.blocked_seconds
