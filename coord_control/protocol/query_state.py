"""Where a query of a job stands, what is wanted of it, and what follows when a run of it has ended.

```
running ----- pause -----> paused
running <----- run ------- paused
running, paused ---------- retry ----> restarting (retry: again)
running <------------------ run ------ restarting
```

From each of these three it may be stopped, or fail for good; only a running one finishes. An end is final.

What is wanted of a query (:class:`Wish`) is set by any thread, and waits until the query's thread comes to it: a stop
overrides a pause, and stays. When a run of Spark has ended, wish and :class:`RunEnd` together say what follows:

|          | run       | pause     | stop      |
| -------- | --------- | --------- | --------- |
| told     | runs on   | pauses    | stops     |
| finished | finishes  | finishes  | stops     |
| failed   | restarts  | restarts  | stops     |
| fatal    | fails     | fails     | fails     |

Only the query's thread changes its state; any thread may read it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from coord_control.errors import InvalidTransition

__all__ = [
    "FOLLOWS",
    "TRANSITIONS",
    "WISHES",
    "QueryInput",
    "QueryState",
    "RunEnd",
    "Wish",
    "WishInput",
    "next_state",
    "shall_wait",
]


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


class Wish(enum.Enum):
    """What is wanted of a query."""

    RUN = "run"
    PAUSE = "pause"  #: no epoch may begin, for now
    STOP = "stop"


class WishInput(enum.Enum):
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"


class RunEnd(enum.Enum):
    """How a run of Spark has ended."""

    REQUESTED = "requested"  #: at the end of its epoch, on request
    FINISHED = "finished"  #: without an error, by itself
    FAILED = "failed"  #: another start may help
    FATAL = "fatal"  #: another start does not help


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

#: Every pair: a stop stays, whatever comes later.
WISHES: Final[Mapping[tuple[Wish, WishInput], Wish]] = {
    (Wish.RUN, WishInput.PAUSE): Wish.PAUSE,
    (Wish.RUN, WishInput.RESUME): Wish.RUN,
    (Wish.RUN, WishInput.STOP): Wish.STOP,
    (Wish.PAUSE, WishInput.PAUSE): Wish.PAUSE,
    (Wish.PAUSE, WishInput.RESUME): Wish.RUN,
    (Wish.PAUSE, WishInput.STOP): Wish.STOP,
    (Wish.STOP, WishInput.PAUSE): Wish.STOP,
    (Wish.STOP, WishInput.RESUME): Wish.STOP,
    (Wish.STOP, WishInput.STOP): Wish.STOP,
}

#: Every pair.
FOLLOWS: Final[Mapping[tuple[Wish, RunEnd], QueryInput]] = {
    (Wish.RUN, RunEnd.REQUESTED): QueryInput.RUN,
    (Wish.RUN, RunEnd.FINISHED): QueryInput.FINISH,
    (Wish.RUN, RunEnd.FAILED): QueryInput.RETRY,
    (Wish.RUN, RunEnd.FATAL): QueryInput.FAIL,
    (Wish.PAUSE, RunEnd.REQUESTED): QueryInput.PAUSE,
    (Wish.PAUSE, RunEnd.FINISHED): QueryInput.FINISH,
    (Wish.PAUSE, RunEnd.FAILED): QueryInput.RETRY,
    (Wish.PAUSE, RunEnd.FATAL): QueryInput.FAIL,
    (Wish.STOP, RunEnd.REQUESTED): QueryInput.STOP,
    (Wish.STOP, RunEnd.FINISHED): QueryInput.STOP,
    (Wish.STOP, RunEnd.FAILED): QueryInput.STOP,  # what was not committed is run again by the next driver
    (Wish.STOP, RunEnd.FATAL): QueryInput.FAIL,
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


def shall_wait(wish: Wish, *, has_paused: bool) -> bool:
    """Return whether a query whose run has ended must not run again yet.

    Args:
        has_paused: whether it paused before: then its last epoch may be the last one of a savepoint, also when it has
            failed since. One that fails before it pauses runs its epoch again first.
    """
    return has_paused and wish is Wish.PAUSE
