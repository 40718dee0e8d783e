"""Copies the live values of a driver into the control database, with the history of their changes.

The log on the storage has all changes, so nothing is kept here for an outage: after each registration all of them are
written, and from then on those that are new. An accepted change is written before the outcome of its command: who has
seen that finds the value.

Threads: the agent's.
"""

from __future__ import annotations

from coord_control.control.agent.driver_records import live_change_record, live_value_record
from coord_control.control.execution.driver_port import DriverPort
from coord_control.protocol.job_facts import LiveFacts
from coord_control.storage.store import ControlStore

__all__ = ["LiveReporter"]


class LiveReporter:
    """The live values of one driver."""

    def __init__(self, port: DriverPort, store: ControlStore) -> None:
        self._port, self._store = port, store
        # What the database has, or None if that is not known.
        self._written: tuple[LiveFacts, ...] | None = None

    def forget(self) -> None:
        """Write everything again: the driver was registered, perhaps in another database."""
        self._written = None

    def write_changes(self) -> None:
        """Write what was accepted since the last time. Cheap if nothing was.

        Raises:
            DatabaseError, GenerationSuperseded, JobNotFound: nothing was written.
        """
        if self._port.live_versions() != {each.name: each.version for each in self._written or ()}:
            self.write()

    def write(self) -> None:
        """Write what was accepted, and what the queries have seen, if anything is new. May wait for the storage.

        Raises:
            DatabaseError, GenerationSuperseded, JobNotFound: nothing was written.
        """
        found = self._port.live_values()
        # None are known before the first query starts: what an older driver has written stays until then.
        if found == self._written or not (found or self._port.is_ready()):
            return
        known = {each.name: each.version for each in self._written or ()}
        new = [
            live_change_record(change)
            for each in found
            for change in self._port.live_history(each.name)
            if change.version > known.get(each.name, 0)
        ]
        facts = self._port.facts
        self._store.live.save(facts.name, facts.generation, [live_value_record(each) for each in found], new)
        self._written = found
