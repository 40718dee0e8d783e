"""What the protocol core keeps of a query: what was declared, and where its run stands.

Single-threaded; owned by the protocol core.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from coord_control.ids import NO_EPOCH, Epoch, OperatorUid, QueryName, RunId
from coord_control.protocol.operator import OperatorSpec
from coord_control.protocol.records import RunStarted

__all__ = ["QueryInCore"]

# Of a query, whose names are remembered.
_ENDED_RUNS: Final = 100


@dataclass(slots=True)
class QueryInCore:
    """A query of the job and, while it runs, its operators."""

    name: QueryName
    query_id: str
    specs: dict[OperatorUid, OperatorSpec]
    running: bool = False
    committed: Epoch = NO_EPOCH
    starts: int = 0
    # The newest will do: the older ones' task attempts are below the floor.
    ended_runs: deque[RunId] = field(default_factory=lambda: deque(maxlen=_ENDED_RUNS))
    attempt_floor: int = -1  #: task attempts up to this one belong to ended runs
    unfinished: Epoch | None = None  #: in the middle of which the run before, that has ended, had subtasks
    rerun: RunStarted | None = None  #: to be durable before an attempt of the epoch that is run again is answered
