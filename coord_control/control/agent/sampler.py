"""Samples of a job: what has changed in its queries and operators since the last sample.

Threads: the agent's.
"""

from __future__ import annotations

import datetime
import math
from typing import Final

from coord_control.control.agent.buffer import Sampled
from coord_control.control.backlog import backlog
from coord_control.control.progress import lag_seconds, state_rows
from coord_control.protocol.status import JobStatus, OperatorStatus, QueryStatus
from coord_control.storage.records import OperatorSample, QuerySample
from coord_control.storage.samples import RESOLUTIONS

__all__ = ["Sampler"]

_FINEST: Final = RESOLUTIONS[0]


class Sampler:
    """Takes samples of one job.

    Args:
        seconds: the minimum interval; rounded up to the resolution of the database.
    """

    def __init__(self, job: str, seconds: float) -> None:
        self._job = job
        self._resolution = _FINEST * max(1, math.ceil(seconds / _FINEST))
        self._slot: int | None = None  # since 1970; the one that is being filled
        self._began: datetime.datetime | None = None
        self._elapsed = 0.0
        self._queries: dict[str, QueryStatus] = {}
        self._operators: dict[str, OperatorStatus] = {}

    def is_due(self, now: datetime.datetime) -> bool:
        """Return whether a time slot is over, or none has begun."""
        return self._slot is None or self._slot_of(now) != self._slot

    def take(self, status: JobStatus, now: datetime.datetime) -> Sampled:
        """Return the samples of the slot that is over; the first call only begins a slot."""
        slot = self._slot_of(now) if self._slot is None else self._slot
        at = datetime.datetime.fromtimestamp(slot * self._resolution, datetime.UTC)
        self._elapsed = (now - (self._began or now)).total_seconds()
        self._slot, self._began = self._slot_of(now), now
        queries = [self._query(old, each, at) for each in status.queries if (old := self._queries.get(each.name))]
        operators = [
            self._operator(before, each, at) for each in status.operators if (before := self._operators.get(each.uid))
        ]
        self._queries = {each.name: each for each in status.queries}
        self._operators = {each.uid: each for each in status.operators}
        return Sampled(tuple(queries), tuple(operators))

    def _slot_of(self, now: datetime.datetime) -> int:
        return int(now.timestamp()) // self._resolution

    def _query(self, before: QueryStatus, now: QueryStatus, at: datetime.datetime) -> QuerySample:
        batches, rows = now.batches - before.batches, now.rows - before.rows
        newest = now.progress.get("batchDuration")
        return QuerySample(
            job=self._job,
            query=now.name,
            at=at,
            resolution_seconds=_FINEST,
            epochs=batches,
            epoch_last=None if now.committed < 0 else now.committed,
            rows=rows,
            rows_per_second=rows / self._elapsed if self._elapsed > 0 else None,
            batch_seconds_avg=(now.batch_seconds - before.batch_seconds) / batches if batches else None,
            batch_seconds_max=float(newest) / 1000 if batches and newest is not None else None,
            state_rows=state_rows(now.progress),
            lag_seconds=lag_seconds(now.progress),
            backlog=backlog(now.progress),
        )

    def _operator(self, before: OperatorStatus, now: OperatorStatus, at: datetime.datetime) -> OperatorSample:
        return OperatorSample(
            job=self._job,
            operator=now.uid,
            at=at,
            resolution_seconds=_FINEST,
            blocked_events=int(_grown(_blocked_events(before), _blocked_events(now))),
            blocked_seconds=_grown(_blocked_seconds(before), _blocked_seconds(now)),
            blocked_now_max=sum(each.blocked for each in now.gateways),
            mailbox_max=sum(each.mailbox for each in now.gateways),
            closed_max=sum(not each.is_open for each in now.gateways),
            events_down=now.totals.events_down - before.totals.events_down,
            events_up=now.totals.events_up - before.totals.events_up,
        )


def _blocked_events(status: OperatorStatus) -> int:
    return sum(gateway.blocked_total for gateway in status.gateways)


def _blocked_seconds(status: OperatorStatus) -> float:
    return sum(gateway.blocked_seconds for gateway in status.gateways)


def _grown(before: float, now: float) -> float:
    # The counter starts again at 0 when its query is restarted.
    return now - before if now >= before else now
