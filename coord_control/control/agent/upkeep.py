"""What somebody has to do for the database now and then: expire, roll up, remove what is old.

Every agent may do it, and the storage sees to it that one at a time does. It may take long, so it has a thread of its
own and the heartbeats go on; it is never urgent, so it is left out while the database is away.

Threads: :meth:`Upkeep.look` belongs to the agent's; the work runs on a thread of its own.
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

#: A command that nobody took shows as expired at most this much later.
_EXPIRE_SECONDS: Final = 15.0
_ROLL_UP_SECONDS: Final = 60.0
_PRUNE_SECONDS: Final = 900.0


class Upkeep:
    """The upkeep that one agent does."""

    def __init__(self, store: ControlStore, settings: ControlSettings) -> None:
        self._store = store
        self._policy = settings.retention()
        self._thread: threading.Thread | None = None
        self._next = 0.0
        self._rolled_up = 0.0
        self._pruned = 0.0

    def look(self, now: float) -> None:
        """Begin what is due; ``now`` is monotonic."""
        if now < self._next or (self._thread is not None and self._thread.is_alive()):
            return
        # Jobs that start together must not do it together.
        self._next = now + _EXPIRE_SECONDS * random.uniform(0.8, 1.2)
        self._thread = threading.Thread(target=self._run, args=(now,), name="coord-upkeep", daemon=True)
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Let it finish what it does."""
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
        except CoordControlError as error:  # the agent says when the database is away; the next one tries again
            _log.debug("= upkeep of the control database: %s", error)
        except Exception:
            _log.exception("x the upkeep of the control database met an error of its own; please report it")
