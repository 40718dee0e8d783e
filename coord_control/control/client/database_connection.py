"""A client's connection to the database: opened on first use, with retries while the database cannot be reached.

Everything that goes through :meth:`DatabaseConnection.call` may run twice, because after a broken connection it is
unknown whether a transaction was committed. Reads are repeatable, and a repeated request finds the first one by its
key.

Threads: any; the pool below hands out connections.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from coord_control.control.settings import ControlSettings
from coord_control.errors import DatabaseUnavailable
from coord_control.storage.store import ControlStore

__all__ = ["DatabaseConnection"]

_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 2.0

T = TypeVar("T")


class DatabaseConnection:
    """The database of one client.

    Args:
        application: the name to show in the server's list of connections.
        sleep, clock: for tests; in seconds.

    Raises:
        NoControlPlane, ControlSettingsInvalid, DatabaseUrlInvalid, DatabaseDriverMissing: no database can be used.
    """

    def __init__(
        self,
        settings: ControlSettings,
        *,
        application: str,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self._database = settings.open_database(application)
        self._store = ControlStore(self._database)
        self._sleep, self._clock = sleep, clock

    @property
    def display_url(self) -> str:
        """Return the address without a password."""
        return self._database.display_url

    def call(self, action: Callable[[ControlStore], T]) -> T:
        """Run an action on the database; retry it, with growing pauses, while the database cannot be reached.

        Raises:
            DatabaseUnavailable: the database could not be reached for ``retry_seconds``.
        """
        give_up = self._clock() + self.settings.retry_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return action(self._store)
            except DatabaseUnavailable:
                if self._clock() + pause > give_up:
                    raise
            self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def close(self) -> None:
        """Close all connections. May be called twice; a later call opens new ones."""
        self._database.close()
