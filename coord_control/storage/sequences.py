"""Numbers in commit order: a row with a number becomes visible before any row with a higher one.

A sequence of PostgreSQL would not do: it assigns numbers without waiting, so a transaction with a lower number may
commit later. Here the number is a row, which a transaction locks until it ends; the next transaction gets its number
after that. A failed transaction returns its number. To keep the lock short, the number is taken last; a transaction
that holds it waits for no other lock, so it cannot cause a deadlock.

Threads: any; within a transaction.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import select, update

from coord_control.storage import tables
from coord_control.storage.database import Transaction

__all__ = ["newest_sequence", "take_sequence"]

_CHANGES: Final = "changes"

_counters = tables.counters.c


def take_sequence(transaction: Transaction) -> int:
    """Return the next number for a change; the transaction must not wait for a lock after this."""
    taken = (
        update(tables.counters)
        .where(_counters.name == _CHANGES)
        .values(value=_counters.value + 1)
        .returning(_counters.value)
    )
    number: int = transaction.execute(taken).scalar_one()
    return number


def newest_sequence(transaction: Transaction) -> int:
    """Return the highest visible number; all lower ones are visible too."""
    number: int = transaction.execute(select(_counters.value).where(_counters.name == _CHANGES)).scalar_one()
    return number
