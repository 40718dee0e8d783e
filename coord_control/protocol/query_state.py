"""Where a query of a job stands, and what may come next.

```
running ----- pause -----> paused
running <----- run ------- paused
running, paused ---------- retry ----> restarting (retry: again)
running <------------------ run ------ restarting
```

From each of these three it may be stopped, or fail for good; only a running one finishes. An end is final.

Only the query's thread changes its state; any thread may read it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from coord_control.errors import InvalidTransition

__all__ = ["TRANSITIONS", "QueryInput", "QueryState", "next_state"]


class QueryState(enum.Enum):
    """The state of a query."""

    RUNNING = "running"
    RESTARTING = "restarting"
    PAUSED = "paused"  #: between two epochs, until a savepoint has been taken or has failed
    STOPPED = "stopped"  #: on request
    FINISHED = "finished"  #: by itself: its trigger has no more data to process
    FAILED = "failed"

    @property
    def is_active(self) -> bool:
        """Whether the query runs, pauses, or will run again by itself."""
        return self in (QueryState.RUNNING, QueryState.RESTARTING, QueryState.PAUSED)


class QueryInput(enum.Enum):
    RUN = "run"  #: Spark runs it again
    PAUSE = "pause"  #: its epoch has ended, and no other is to begin
    RETRY = "retry"  #: its run has failed, or could not begin; it will be started again
    STOP = "stop"  #: it has ended, and was asked to
    FINISH = "finish"  #: it has ended, and was not asked to
    FAIL = "fail"  #: an error that another start does not help, or one start too many


#: Every legal pair. A pair that is not here raises and changes nothing.
TRANSITIONS: Final[Mapping[tuple[QueryState, QueryInput], QueryState]] = {
    (QueryState.RUNNING, QueryInput.RUN): QueryState.RUNNING,  # the pause was over before it began
    (QueryState.RUNNING, QueryInput.PAUSE): QueryState.PAUSED,
    (QueryState.RUNNING, QueryInput.RETRY): QueryState.RESTARTING,
    (QueryState.RUNNING, QueryInput.STOP): QueryState.STOPPED,
    (QueryState.RUNNING, QueryInput.FINISH): QueryState.FINISHED,
    (QueryState.RUNNING, QueryInput.FAIL): QueryState.FAILED,
    (QueryState.PAUSED, QueryInput.RUN): QueryState.RUNNING,
    (QueryState.PAUSED, QueryInput.RETRY): QueryState.RESTARTING,  # a coordinator has failed, or Spark has not begun
    (QueryState.PAUSED, QueryInput.STOP): QueryState.STOPPED,
    (QueryState.PAUSED, QueryInput.FAIL): QueryState.FAILED,
    (QueryState.RESTARTING, QueryInput.RUN): QueryState.RUNNING,
    (QueryState.RESTARTING, QueryInput.RETRY): QueryState.RESTARTING,  # the start has failed as well
    (QueryState.RESTARTING, QueryInput.STOP): QueryState.STOPPED,
    (QueryState.RESTARTING, QueryInput.FAIL): QueryState.FAILED,
}


def next_state(state: QueryState, input_: QueryInput) -> QueryState:
    """Return where ``input_`` leads from ``state``.

    Raises:
        InvalidTransition: nowhere.
    """
    try:
        return TRANSITIONS[state, input_]
    except KeyError:
        raise InvalidTransition("query", state, input_) from None
