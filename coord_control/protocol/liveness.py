"""Which records recovery can still ask for: what a compacted epoch store must keep, as one pure function.

Let *k* be the epoch that Spark committed last in the lineage. Recovery (docs/protocol.md, section 6) takes

- per subtask the state of its newest ack with epoch <= k, and its ack of k+1 if Spark has planned k+1;
- per operator the begin record of k+1 if Spark has planned k+1 and there is one; otherwise the newest begin record
  w <= k, the outboxes of the acks of epochs w..k, and the inputs of w of those subtasks that have no ack of w.

Spark keeps its own files for the last ``retain_epochs`` epochs, so *k* may be set back that far, never farther. With
``horizon = committed - retain_epochs`` every k >= horizon - 1 must recover as if nothing had ever been dropped. Above
the horizon everything stays. Below it, per operator, with w the epoch of its newest begin record there (all epochs
count as later than w when there is none):

- the begin record of w: the one that recovery finds when the epochs after it had nothing to write;
- per subtask the newest ack: its state;
- acks of w itself: whether a subtask ran decides about its inputs;
- acks after w with events in their outbox: the coordinator's state in w is older than these events. They do not pile
  up: an epoch after a delivered outbox writes a begin record;
- the newest record of live values: the epochs after it that have none saw the same.

The log of the job's live values holds changes alone. Per value the newest change since each restore stays, because one
that is undone makes those before it count again; and the newest thousand, because a request that is repeated is known
by its key.

A record that a later :class:`~coord_control.protocol.records.RunStarted` voids, or that a later one of the same key
replaces, is never live. Once they are gone a RunStarted says nothing more: none is live.

Dropping is stable: ``live(live(a) + b) == live(a + b)`` while ``committed`` only grows and no run starts from a commit
before ``horizon - 1``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, TypeAlias

from coord_control.ids import NO_EPOCH, Epoch, OperatorUid, SubtaskIndex
from coord_control.protocol.records import Ack, Begin, LiveChanged, LiveFrozen, Record, RunStarted

__all__ = ["complete_from", "horizon", "live"]

_Key: TypeAlias = tuple[OperatorUid | None, SubtaskIndex | None, Epoch]
_OfEpoch: TypeAlias = Begin | Ack | LiveFrozen
_BEFORE_ALL: Final = Epoch(-(2**63))
_AFTER_ALL: Final = Epoch(2**63)
_KEPT_CHANGES: Final = 1000


def horizon(committed: Epoch, retain_epochs: int) -> Epoch:
    """Return the first epoch of which every record is kept."""
    return Epoch(committed - retain_epochs)


def complete_from(first_kept: Epoch) -> Epoch:
    """Return the earliest last commit that recovers exactly when records before a horizon were thinned out."""
    return max(NO_EPOCH, Epoch(first_kept - 1))


def live(records: Sequence[Record], committed: Epoch, retain_epochs: int) -> list[Record]:
    """Return the records that recovery can still ask for, in their order.

    Args:
        records: a query's records in the order of the log.
        committed: the newest epoch known to be committed by Spark; ``NO_EPOCH`` keeps everything that is not void.
        retain_epochs: how many epochs Spark can be set back (``spark.sql.streaming.minBatchesToRetain``).
    """
    changes = [record for record in records if isinstance(record, LiveChanged)]
    return [*_newest_changes(changes), *_thinned(_current(records), horizon(committed, retain_epochs))]


def _newest_changes(changes: Sequence[LiveChanged]) -> list[LiveChanged]:
    kept: list[LiveChanged] = []
    seen: set[tuple[str, int]] = set()
    counts: Counter[str] = Counter()
    for change in reversed(changes):
        counts[change.name] += 1
        if counts[change.name] <= _KEPT_CHANGES or (change.name, change.restore) not in seen:
            kept.append(change)
        seen.add((change.name, change.restore))
    kept.reverse()
    return kept


def _current(records: Sequence[Record]) -> list[_OfEpoch]:
    """Drop what is void or replaced. Backwards, so that the first of its kind to be met is the one that counts."""
    kept: list[_OfEpoch] = []
    seen: set[_Key] = set()
    # The earliest that any run began from which stands later in the log.
    committed = planned = _AFTER_ALL
    for record in reversed(records):
        if isinstance(record, RunStarted):
            committed, planned = min(committed, record.committed), min(planned, record.planned)
            continue
        if isinstance(record, LiveChanged):
            continue
        if isinstance(record, Ack):
            is_void = record.epoch > committed
            key: _Key = (record.operator, record.subtask, record.epoch)
        else:
            is_void = record.epoch > planned
            key = (record.operator if isinstance(record, Begin) else None, None, record.epoch)
        if not is_void and key not in seen:
            seen.add(key)
            kept.append(record)
    kept.reverse()
    return kept


def _thinned(records: Sequence[_OfEpoch], first_kept: Epoch) -> list[Record]:
    floors: dict[OperatorUid, Epoch] = {}
    frozen = _BEFORE_ALL
    newest: dict[tuple[OperatorUid, SubtaskIndex], Epoch] = {}
    for record in records:
        if record.epoch >= first_kept:
            continue
        if isinstance(record, Begin):
            floors[record.operator] = max(record.epoch, floors.get(record.operator, record.epoch))
        elif isinstance(record, LiveFrozen):
            frozen = max(record.epoch, frozen)
        else:
            subtask = (record.operator, record.subtask)
            newest[subtask] = max(record.epoch, newest.get(subtask, record.epoch))

    def is_kept(record: _OfEpoch) -> bool:
        if record.epoch >= first_kept:
            return True
        if isinstance(record, LiveFrozen):
            return record.epoch == frozen
        floor = floors.get(record.operator, _BEFORE_ALL)
        if isinstance(record, Begin) or record.epoch == floor:
            return record.epoch == floor
        is_undelivered = record.epoch > floor and bool(record.outbox)
        return is_undelivered or record.epoch == newest[record.operator, record.subtask]

    return [record for record in records if is_kept(record)]
