"""Periodic maintenance of the database: expire commands, roll up samples, remove old records.

Every agent may do it; the storage makes sure that only one does at a time. It may take long, so it has its own thread
and heartbeats continue; it is never urgent, so it is skipped while the database is unavailable.

Threads: :meth:`Upkeep.look` runs on the agent's thread; the work runs on a separate one.
"""

from __future__ import annotations

import logging
import random
import threading
from typing import Final

from coord_control.control.settings import ControlSettings
from coord_control.errors import CoordControlError
from coord_control.storage.retention import prune
from coord_control.storage.store import ControlStore

__all__ = ["Upkeep"]

_log = logging.getLogger("coord_control.control")

#: The maximum delay before an expired command is marked.
_EXPIRE_SECONDS: Final = 15.0
_ROLL_UP_SECONDS: Final = 60.0
_PRUNE_SECONDS: Final = 900.0


class Upkeep:
    """The maintenance by one agent."""

    def __init__(self, store: ControlStore, settings: ControlSettings) -> None:
        self._store = store
        self._policy = settings.retention()
        self._thread: threading.Thread | None = None
        self._next = 0.0
        self._rolled_up = 0.0
        self._pruned = 0.0

    def look(self, now: float) -> None:
        """Start the work that is due; ``now`` is monotonic."""
        if now < self._next or (self._thread is not None and self._thread.is_alive()):
            return
        # Randomized, so that jobs that start together do not do it at the same time.
        self._next = now + _EXPIRE_SECONDS * random.uniform(0.8, 1.2)
        self._thread = threading.Thread(target=self._run, args=(now,), name="coord-upkeep", daemon=True)
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Wait until the current work has finished."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self, now: float) -> None:
        try:
            self._store.commands.expire_due()
            if now - self._rolled_up >= _ROLL_UP_SECONDS:
                self._rolled_up = now
                self._store.samples.roll_up()
            if now - self._pruned >= _PRUNE_SECONDS:
                self._pruned = now
                prune(self._store.database, self._policy)
        except CoordControlError as error:  # the agent reports outages of the database; the next run tries again
            _log.debug("= upkeep of the control database: %s", error)
        except Exception:
            _log.exception("x internal error in the upkeep of the control database; please report it")
