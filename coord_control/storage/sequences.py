"""Numbers in the order of commits: what has a number is visible to everybody before a higher one is.

A sequence of PostgreSQL would not do: it gives its numbers out without waiting, and a transaction with a lower one may
commit later. Here the number is a row. Whoever takes one holds the row until the transaction is over; the next one
gets its number after that. A transaction that fails gives its number back. To keep others from waiting for long, it is
taken last, and a transaction that holds it waits for nobody: there is no deadlock through it.

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
    """Return the next number for a change; nothing that could wait may come after it in the transaction."""
    taken = (
        update(tables.counters)
        .where(_counters.name == _CHANGES)
        .values(value=_counters.value + 1)
        .returning(_counters.value)
    )
    number: int = transaction.execute(taken).scalar_one()
    return number


def newest_sequence(transaction: Transaction) -> int:
    """Return the highest number that is visible; every lower one is, too."""
    number: int = transaction.execute(select(_counters.value).where(_counters.name == _CHANGES)).scalar_one()
    return number
