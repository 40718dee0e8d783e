"""Live values: which value a query sees in an epoch, decided once and before anything of the epoch has run.

A value belongs to the job. A change is *accepted* when its record is durable, and *in force* in a query from the next
epoch that the query plans. When Spark plans an epoch, the query *freezes* the accepted values for it: that record is
durable before the answer, so every task, retry and replay of the epoch sees the same, and so does a driver that runs
it again after a crash.

Cost rule: an epoch whose values are those of the newest record writes nothing. So a planned epoch without a record saw
what the newest record before it says; or it was never asked, and then any values will do, these as well.

Single-threaded; owned by the protocol core.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from coord_control.errors import LiveValuesRefused
from coord_control.ids import Epoch, QueryName
from coord_control.protocol.records import LiveFrozen, LiveInForce, LiveValue
from coord_control.protocol.recovery import Facts, History

__all__ = ["JobLive", "LiveEpochs", "QueryLive", "Values", "frozen_in", "recover_live"]

Values: TypeAlias = Mapping[str, LiveInForce]


@dataclass(frozen=True, slots=True)
class QueryLive:
    """The live values of one query, for people.

    Attributes:
        next_epoch: what is accepted now is in force from there on.
        values: of the newest epoch that has asked, by name; empty if none has.
    """

    next_epoch: Epoch
    values: Values


class LiveEpochs:
    """The live values of one query in one run.

    Args:
        facts: what is durable of the query.
    """

    def __init__(self, facts: Facts) -> None:
        self._newest = facts.planned  # the epoch that the answers are for
        self._values: Values = {}
        self._is_open = facts.planned > facts.committed  # whether that epoch may have been answered
        if (record := recover_live(facts)) is not None:
            self._values = record.values

    def freeze(self, epoch: Epoch, accepted: Mapping[str, LiveValue]) -> tuple[Values, LiveFrozen | None] | None:
        """Return the values of an epoch that is being planned, and what must be durable before they are used.

        Args:
            accepted: the values of the job, all durable.

        Returns:
            None: the epoch is over.
        """
        if epoch < self._newest or (epoch == self._newest and not self._is_open):
            return None
        fixed = self._values if epoch == self._newest and self._is_open else {}
        # What was declared since the epoch was planned has no value in it yet.
        values = {name: fixed.get(name) or self._in_force(name, value, epoch) for name, value in accepted.items()}
        self._newest, self._is_open = epoch, True
        if values.items() <= self._values.items():
            return self._values, None
        self._values = {**fixed, **values}
        return self._values, LiveFrozen(epoch, self._values)

    def status(self) -> QueryLive:
        """Return what is in force, for people."""
        return QueryLive(Epoch(self._newest + 1), self._values)

    def _in_force(self, name: str, value: LiveValue, epoch: Epoch) -> LiveInForce:
        before = self._values.get(name)
        if before is not None and before.version == value.version and before.value == value.value:
            return before
        return LiveInForce(value.version, value.value, epoch)


class JobLive:
    """The live values of one job: what is accepted, and what its queries see."""

    def __init__(self) -> None:
        self._accepted: dict[str, LiveValue] = {}
        self._queries: dict[QueryName, LiveEpochs] = {}

    def start_run(self, query: QueryName, facts: Facts) -> None:
        """Begin a run of a query with what is durable of it."""
        self._queries[query] = LiveEpochs(facts)

    def changed(self, name: str, value: LiveValue) -> None:
        """Take a value that is durable in the log of the job."""
        self._accepted[name] = value

    def freeze(self, query: QueryName, epoch: Epoch) -> tuple[Values, LiveFrozen | None]:
        """Return the values of an epoch that is being planned, and what must be durable before they are used.

        Raises:
            LiveValuesRefused: the epoch is over.
        """
        if (found := self._queries[query].freeze(epoch, self._accepted)) is None:
            raise LiveValuesRefused(query, epoch, "it is over")
        return found

    def status(self) -> dict[QueryName, QueryLive]:
        """Return what is in force in the queries that have used a live value."""
        found = {query: live.status() for query, live in self._queries.items()}
        return {query: live for query, live in found.items() if live.values}


def recover_live(facts: Facts) -> LiveFrozen | None:
    """Return the newest record that counts: what Spark's last planned epoch saw. None: no epoch has asked."""
    frozen = History.of(facts.records).frozen
    newest = max((epoch for epoch in frozen if epoch <= facts.planned), default=None)
    return None if newest is None else frozen[newest]


def frozen_in(facts: Facts) -> Values | None:
    """Return the values of the epoch that Spark has planned and not committed, or None if there are none.

    They are part of a cut of the query: a restore runs that epoch again.
    """
    record = recover_live(facts) if facts.planned > facts.committed else None
    return None if record is None else record.values
