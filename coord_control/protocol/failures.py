"""Why a checkpoint or savepoint came to nothing: a closed set, each reason with all that is decided by it.

Expected failures are values, not exceptions: they are counted, shown, and compared with the tolerance. A reason says

- when it is found, which decides whether it counts against ``tolerable_consecutive_failures`` and whether there is
  something to release: not when no coordinator has been asked (*preflight*);
- whose fault it is, as errors do (None: no one's, it could not be otherwise);
- whether the same request may succeed when it is made again without a change;
- in a sentence what has happened and what to do next.

| ours                               | Flink 2.3                                                                      |
| ---------------------------------- | ------------------------------------------------------------------------------ |
| QUEUE_FULL                         | TOO_MANY_CHECKPOINT_REQUESTS                                                   |
| MIN_PAUSE                          | MINIMUM_TIME_BETWEEN_CHECKPOINTS                                               |
| NOT_RUNNING                        | NOT_ALL_REQUIRED_TASKS_RUNNING, CHECKPOINT_DECLINED_TASK_NOT_READY             |
| KEY_REUSED, LABEL_TAKEN            | none: it has neither labels nor a check of trigger ids                         |
| INVALID_TARGET                     | IO_EXCEPTION; counted there, although it is the request that is wrong          |
| QUERY_RESTARTING                   | CHECKPOINT_COORDINATOR_SUSPEND                                                 |
| QUERY_FAILED                       | JOB_FAILOVER_REGION, TASK_FAILURE, TASK_CHECKPOINT_FAILURE                     |
| JOB_ENDING                         | CHECKPOINT_COORDINATOR_SHUTDOWN, PERIODIC_SCHEDULER_SHUTDOWN                   |
| COORDINATOR_FAILED                 | TRIGGER_CHECKPOINT_FAILURE, CHECKPOINT_ASYNC_EXCEPTION, CHECKPOINT_DECLINED    |
| COORDINATOR_TIMEOUT                | none: it has no such timeout, later checkpoints wait                           |
| EXPIRED                            | CHECKPOINT_EXPIRED                                                             |
| STORAGE_ERROR, DISK_FULL, FENCED   | IO_EXCEPTION                                                                   |
| FILES_PURGED                       | none: its state files are its own                                              |
| FINALISE_FAILED                    | FINALIZE_CHECKPOINT_FAILURE                                                    |
| ABORTED                            | CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER                                    |
| INTERNAL                           | UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE                                   |

CHECKPOINT_SUBSUMED has no counterpart, a younger checkpoint does not end an older one; nor have the reasons of closing
tasks, ended inputs and shared channel files, which have no part in a checkpoint here. Flink does not count a
coordinator that fails its snapshot unless an I/O error caused it. We count it: it is the failure that comes again each
time.

Pure values; any thread.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Final

from coord_control.errors import (
    CoordinatorFailed,
    CoordinatorTimeout,
    Fault,
    Fenced,
    SavepointTargetTaken,
    StateFileMissing,
    StoreError,
    UserDataError,
)

__all__ = ["FailureReason", "reason_of"]


class _Found(enum.Enum):
    """When a failure is found, and with that whether it counts and whether there is something to release."""

    PREFLIGHT = enum.auto()  #: before any coordinator is asked
    OVERTAKEN = enum.auto()  #: the job goes another way; the checkpoint is not to blame
    UNMADE = enum.auto()  #: the checkpoint could not be made: this counts


@dataclass(frozen=True, slots=True, eq=False)  # two reasons with the same rule are two reasons
class _Rule:
    found: _Found
    fault: Fault | None
    _: KW_ONLY
    retry: bool


@enum.unique
class FailureReason(enum.Enum):
    """Why a checkpoint or savepoint failed."""

    _value_: _Rule

    QUEUE_FULL = _Rule(_Found.PREFLIGHT, Fault.USER, retry=True)
    MIN_PAUSE = _Rule(_Found.PREFLIGHT, None, retry=True)
    NOT_RUNNING = _Rule(_Found.PREFLIGHT, None, retry=True)
    KEY_REUSED = _Rule(_Found.PREFLIGHT, Fault.USER, retry=False)
    LABEL_TAKEN = _Rule(_Found.PREFLIGHT, Fault.USER, retry=False)
    INVALID_TARGET = _Rule(_Found.PREFLIGHT, Fault.USER, retry=False)

    QUERY_RESTARTING = _Rule(_Found.OVERTAKEN, None, retry=True)
    QUERY_FAILED = _Rule(_Found.OVERTAKEN, None, retry=True)
    JOB_ENDING = _Rule(_Found.OVERTAKEN, None, retry=True)
    ABORTED = _Rule(_Found.OVERTAKEN, None, retry=True)
    FENCED = _Rule(_Found.OVERTAKEN, Fault.EXTERNAL, retry=False)

    COORDINATOR_FAILED = _Rule(_Found.UNMADE, Fault.USER, retry=True)
    COORDINATOR_TIMEOUT = _Rule(_Found.UNMADE, Fault.USER, retry=True)
    EXPIRED = _Rule(_Found.UNMADE, Fault.EXTERNAL, retry=True)
    STORAGE_ERROR = _Rule(_Found.UNMADE, Fault.EXTERNAL, retry=True)
    DISK_FULL = _Rule(_Found.UNMADE, Fault.EXTERNAL, retry=False)
    FILES_PURGED = _Rule(_Found.UNMADE, Fault.USER, retry=True)
    FINALISE_FAILED = _Rule(_Found.UNMADE, Fault.EXTERNAL, retry=True)
    INTERNAL = _Rule(_Found.UNMADE, Fault.INTERNAL, retry=True)

    @property
    def code(self) -> str:
        """The name in JSON and logs, for example ``queue_full``."""
        return self.name.lower()

    @property
    def sentence(self) -> str:
        """What has happened and what to do next, for people; begins in lower case and has no full stop."""
        return _SENTENCES[self]

    @property
    def fault(self) -> Fault | None:
        """Whose fault it is, or None."""
        return self._value_.fault

    @property
    def retry(self) -> bool:
        """Whether the same request may succeed when it is made again without a change."""
        return self._value_.retry

    @property
    def counts(self) -> bool:
        """Whether it counts against ``tolerable_consecutive_failures``."""
        return self._value_.found is _Found.UNMADE

    @property
    def is_preflight(self) -> bool:
        """Whether it is found before any coordinator is asked."""
        return self._value_.found is _Found.PREFLIGHT


#: What has happened; what to do next.
_SENTENCES: Final = {
    FailureReason.QUEUE_FULL: "too many requests wait already; wait for them to end, abort some, or raise queue_limit",
    FailureReason.MIN_PAUSE: "the last checkpoint ended less than min_pause_seconds ago; leave it to the next period, "
    "or ask for one that is not periodic",
    FailureReason.NOT_RUNNING: "not all queries of the job are running; periodic checkpoints resume when they do, "
    "and other requests wait until then",
    FailureReason.KEY_REUSED: "the key belongs to a request of another kind, label or target; take a new key for a new "
    "request",
    FailureReason.LABEL_TAKEN: "another checkpoint or savepoint of the job has this label; choose another one, or "
    "dispose of the old one first",
    FailureReason.INVALID_TARGET: "the target cannot hold a savepoint; name a folder that does not exist or is empty, "
    "on storage that the driver can write to",
    FailureReason.QUERY_RESTARTING: "a query of the job was restarted meanwhile; ask again when it runs",
    FailureReason.QUERY_FAILED: "a query of the job failed meanwhile; its own error says why; ask again when it runs",
    FailureReason.JOB_ENDING: "the job is ending; ask again when it runs again, or take an offline savepoint",
    FailureReason.ABORTED: "it was aborted on request; ask again to have one",
    FailureReason.FENCED: "a newer driver owns the job and this one stops itself; ask the newer driver",
    FailureReason.COORDINATOR_FAILED: "a coordinator could not give its state; fix the error in the detail",
    FailureReason.COORDINATOR_TIMEOUT: "a coordinator has not given its state within snapshot_timeout_seconds; let it "
    "complete every result without blocking, or raise the timeout",
    FailureReason.EXPIRED: "it was not complete within timeout_seconds; look in its statistics for the query or the "
    "subtask that was slow, or raise the timeout above the longest epoch",
    FailureReason.STORAGE_ERROR: "the storage failed; check that it is reachable and that the driver may write to it",
    FailureReason.DISK_FULL: "the storage is full, or a quota is used up; free some space, retain fewer checkpoints, "
    "or dispose of savepoints",
    FailureReason.FILES_PURGED: "Spark removed files of the boundary epoch before they could be kept; raise "
    "spark.sql.streaming.minBatchesToRetain",
    FailureReason.FINALISE_FAILED: "everything was in place, but its metadata could not be written; check the storage",
    FailureReason.INTERNAL: "a bug in coord-control; the job is not harmed, please report it with the detail",
}

_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
#: What a JVM leaves of the same two, and the quotas of HDFS: they cross the bridge as text.
_NO_SPACE_WORDS: Final = ("No space left on device", "Disk quota exceeded", "DSQuotaExceeded", "NSQuotaExceeded")


def reason_of(error: BaseException) -> FailureReason:
    """Return why a checkpoint fails that met ``error``; the first one in the chain of causes that is known decides."""
    chain = list(_chain(error))
    if any(_says_no_space(each) for each in chain):
        return FailureReason.DISK_FULL
    for each in chain:
        for kind, reason in _REASONS:
            if isinstance(each, kind):
                return reason
    return FailureReason.INTERNAL


_REASONS: Final[tuple[tuple[type[BaseException], FailureReason], ...]] = (
    (Fenced, FailureReason.FENCED),
    (CoordinatorTimeout, FailureReason.COORDINATOR_TIMEOUT),
    (CoordinatorFailed, FailureReason.COORDINATOR_FAILED),
    (UserDataError, FailureReason.COORDINATOR_FAILED),  # for example a state that does not fit its model
    (StateFileMissing, FailureReason.FILES_PURGED),
    (SavepointTargetTaken, FailureReason.INVALID_TARGET),
    (StoreError, FailureReason.STORAGE_ERROR),
    (OSError, FailureReason.STORAGE_ERROR),
)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__


def _says_no_space(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in _NO_SPACE
    return isinstance(error, StoreError) and any(words in str(error) for words in _NO_SPACE_WORDS)
