"""Which events Dagster has already, read from its own event log: the only memory that cannot disagree with it.

Reading takes a query per asset, so only events that may be there are looked up: see :mod:`.tick`.

Threads: one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

import dagster as dg

from coord_control.dagster.feed.dagster_events import AssetFact, Identity, happened_at, identity_in

__all__ = ["Seen"]

#: How far the clock of a driver may be ahead of Dagster's.
_SLACK: Final = timedelta(minutes=10)
_PAGE: Final = 200
_MOST: Final = 20_000  #: the most events to read per asset; each takes about a hundred bytes

_Key = tuple[dg.AssetKey, bool]


class Seen:
    """The events of some assets that Dagster has already.

    Args:
        facts: the events that will be looked up.
    """

    def __init__(self, instance: dg.DagsterInstance, facts: Iterable[AssetFact]) -> None:
        self._instance = instance
        self._since: dict[_Key, datetime] = {}
        self._wanted: dict[_Key, list[Identity]] = defaultdict(list)
        self._found: dict[_Key, list[Identity]] = {}
        for fact in facts:
            key = _key(fact)
            happened = happened_at(fact.change)
            self._since[key] = min(self._since.get(key, happened), happened)
            self._wanted[key].append(fact.identity)

    def skip_new_assets(self) -> None:
        """Find all assets without any events in one query; worthwhile if most facts are going to be looked up."""
        keys = list({asset for asset, _ in self._wanted})
        known = {record.asset_entry.asset_key for record in self._instance.get_asset_records(keys)} if keys else set()
        self._found |= {key: [] for key in self._wanted if key[0] not in known}

    def has(self, fact: AssetFact) -> bool:
        """Return whether Dagster has the event of a fact."""
        key = _key(fact)
        if key not in self._found:
            self._found[key] = self._read(key)
        return any(fact.identity.is_same(identity) for identity in self._found[key])

    def _read(self, key: _Key) -> list[Identity]:
        """Read events of an asset until all wanted ones are found."""
        asset, is_materialization = key
        fetch = self._instance.fetch_materializations if is_materialization else self._instance.fetch_observations
        after = (self._since[key] - _SLACK).timestamp()
        missing, found = list(self._wanted[key]), list[Identity]()
        cursor, looked_at = None, 0
        while missing and looked_at < _MOST:
            page = fetch(dg.AssetRecordsFilter(asset, after_timestamp=after), _PAGE, cursor=cursor, ascending=True)
            for record in page.records:
                event = record.asset_materialization if is_materialization else record.asset_observation
                identity = None if event is None else identity_in(event.metadata)
                if identity is not None:
                    found.append(identity)
                    missing = [each for each in missing if not each.is_same(identity)]
            if not page.has_more:
                break
            cursor, looked_at = page.cursor, looked_at + len(page.records)
        return found


def _key(fact: AssetFact) -> _Key:
    return fact.asset, fact.is_materialization
