"""The numbers of control events that checkpoints and savepoints on the storage contain.

The control database gives numbers, and an operator skips those that its state contains already. A database that is
new, or was restored from an old dump, does not know all that were given. The state of the coordinator does not either,
after a restore of an older checkpoint. An event that got a number again would be lost with a restore of a newer one, so
numbers begin above all that are stored.

Threads: read on a separate thread, because there may be many; asked by the agent's thread.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

from coord_control.control.execution.checkpoint_execution import catalog_of
from coord_control.control.execution.driver_port import DriverPort
from coord_control.errors import CheckpointNotFound, DamagedRecord, StoreError, UnsupportedFormat

__all__ = ["StoredNumbers"]

_log = logging.getLogger("coord_control.control")


class StoredNumbers:
    """The highest number of each operator of a job; read once, when it is first asked for.

    Args:
        wake: called when there is an answer, or another try is due.
    """

    def __init__(self, port: DriverPort, wake: Callable[[], None]) -> None:
        self._port = port
        self._wake = wake
        self._found: dict[str, int] | None = None
        self._thread: threading.Thread | None = None

    def highest(self, operator: str) -> int | None:
        """Return the highest number, 0 if there is none, or None if it is not known yet."""
        if self._found is not None:
            return self._found.get(operator, 0)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._read, name="coord-numbers", daemon=True)
            self._thread.start()
        return None

    def _read(self) -> None:
        found: dict[str, int] = {}
        job, catalog = self._port.facts.name, catalog_of(self._port)
        try:
            for entry in catalog.entries():
                # One that was removed meanwhile, or is damaged, cannot be restored.
                with contextlib.suppress(CheckpointNotFound, DamagedRecord, UnsupportedFormat):
                    operators = catalog.read(entry).operators if entry.is_completed else {}
                    for uid, snapshot in operators.items():
                        found[uid] = max(found.get(uid, 0), snapshot.applied_events.get(job, 0))
            self._found = found
        except StoreError as error:
            _log.warning("= job %s: control events wait for the numbers that checkpoints contain: %s", job, error)
        self._wake()
