"""How a query has failed, whether it is started again in place, and when.

Pure values, but for one look at Spark; any thread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pyspark.sql import SparkSession

from coord_control.errors import CommittedElsewhere, CoordControlError, CoordinatorFailed, EpochNotRun, SparkLost
from coord_control.ids import Epoch, QueryName
from coord_control.spark.queries.plan_check import refused

__all__ = ["RestartPolicy", "explained", "may_retry", "not_reported"]


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How a failed query is restarted in place.

    Attributes:
        initial_seconds: the first back-off; each further one is ``multiplier`` times as long, up to
            ``maximum_seconds``.
        max_restarts: how many restarts in a row may fail to commit an epoch before the query fails for good.

    Raises:
        ValueError: a value is out of its range; the message names it.
    """

    initial_seconds: float = 0.2
    maximum_seconds: float = 60.0
    multiplier: float = 2.0
    max_restarts: int = 10

    def __post_init__(self) -> None:
        # No number stands for something else, such as -1 for any number (FLINK-39967).
        least = {"initial_seconds": 0.0, "maximum_seconds": 0.0, "multiplier": 1.0, "max_restarts": 0}
        for name, smallest in least.items():
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= smallest):
                raise ValueError(f"{name} is {value}; it must be a number of at least {smallest:g}")

    def delay(self, restarts: int) -> float:
        """Return the seconds to wait before the restart that follows ``restarts`` fruitless ones."""
        try:
            return min(self.initial_seconds * self.multiplier**restarts, self.maximum_seconds)
        except OverflowError:
            return self.maximum_seconds


def may_retry(error: BaseException) -> bool:
    """Return whether the same query may do better when it is started again."""
    if isinstance(error, SparkLost):  # without Spark nothing runs in this driver
        return False
    # What a coordinator raised decides, as it does for a subtask.
    if isinstance(error, CoordinatorFailed) and isinstance(error.__cause__, CoordControlError):
        return error.__cause__.retry
    return not isinstance(error, CoordControlError) or error.retry


def not_reported(name: QueryName, epoch: Epoch, failure: BaseException | None, *, is_again: bool) -> CoordControlError:
    """Return why an epoch was committed that no run of this driver has reported.

    Args:
        failure: the error of the run, if it failed.
        is_again: the epoch was begun before this run.
    """
    if failure is None:
        return CommittedElsewhere(name, epoch)
    # Spark's own message can be no more than "Exception thrown in awaitResult".
    innermost = failure
    while isinstance(cause := getattr(innermost, "_cause", None), BaseException):
        innermost = cause
    if "STATE_STORE_COMMIT_VALIDATION_FAILED" in str(innermost):
        return EpochNotRun(name, epoch, is_again=is_again)
    said = [str(error).partition("\n")[0] for error in (failure, innermost)]
    return CommittedElsewhere(name, epoch, said[0] if innermost is failure else f"{said[0]} ({said[1]})")


def explained(error: Exception, name: QueryName, spark: SparkSession) -> Exception:
    """Return the error of a query, or one that says more: that Spark itself is gone, or refuses the plan for good."""
    # Asked, not guessed: py4j has many ways to fail when the JVM is gone, and none may be retried in place.
    try:
        is_gone = spark.sparkContext._jsc.sc().isStopped()
    except Exception:
        is_gone = True
    if not is_gone:
        return refused(name, error) or error
    lost = SparkLost(error)
    lost.__cause__ = error
    return lost
