"""Whether a query has read everything that its sources had when it was asked to; pure, from what Spark reports.

A query is drained with the first of these:

| for a query                         | when                                                                           |
| ----------------------------------- | ------------------------------------------------------------------------------ |
| whose sources all report how far    | a committed batch has read, in every partition, up to where they reached when  |
| they reach, in numbers (Kafka)      | the first batch after the request was planned                                  |
| of any kind                         | a trigger after the request has found no new data                              |
| that has ended by itself            | at once                                                                        |

Files, Delta tables and most other sources report nothing that can be compared: only the second rule is left for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coord_control.control.backlog import is_comparable, records_between
from coord_control.ids import Epoch

__all__ = ["QueryDrain"]


class QueryDrain:
    """The draining of one query.

    Args:
        committed: its last commit at the request. The batch after it may have been planned by then; the one after that
            was not.

    Attributes:
        is_drained: whether it has read what there was.
        left: how many records it has not read of what there was, or None if that is not known.
    """

    def __init__(self, committed: Epoch) -> None:
        self.is_drained = False
        self.left: int | None = None
        self._first = committed + 2
        self._targets: Sequence[Any] = ()

    def heard(self, progress: Mapping[str, Any], committed: Epoch) -> None:
        """Take up a progress report of Spark.

        Args:
            committed: the last commit that is known.
        """
        epoch = progress.get("batchId", -1)
        sources = progress.get("sources") or ()
        if not self._targets and epoch >= self._first:
            latest = [source.get("latestOffset") for source in sources]
            self._targets = latest if all(map(is_comparable, latest)) else ()
        if self._targets and epoch <= committed:
            ends = [source.get("endOffset") for source in sources]
            self.left = sum(records_between(end, to) for end, to in zip(ends, self._targets, strict=True))
            self.is_drained = self.is_drained or self.left == 0

    def found_nothing(self) -> None:
        """A trigger after the request has found no new data, or the query has ended by itself."""
        self.is_drained = True
