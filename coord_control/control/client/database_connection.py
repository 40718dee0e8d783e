"""A client's way to the database: connected when it is first used, asked again for a while when it does not answer.

Everything that goes through :meth:`Connection.call` may be done twice, because a connection that breaks does not tell
whether a transaction was committed: reads can, and requests carry a key by which the second one finds the first.

Threads: any; the pool below hands out connections.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from coord_control.control.settings import ControlSettings
from coord_control.errors import DatabaseUnavailable
from coord_control.storage.store import ControlStore

__all__ = ["Connection"]

_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 2.0

T = TypeVar("T")


class Connection:
    """The database of one client.

    Args:
        application: what the server's list of connections shows.
        sleep, clock: for tests; seconds.

    Raises:
        NoControlPlane, ControlSettingsInvalid, DatabaseUrlInvalid, DatabaseDriverMissing: there is nothing to use.
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
        """The address without a password."""
        return self._database.display_url

    def call(self, action: Callable[[ControlStore], T]) -> T:
        """Do something with the database; again, with growing pauses, while it cannot be reached.

        Raises:
            DatabaseUnavailable: that lasted longer than ``retry_seconds``.
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
        """Give all connections back. May be called twice; another call opens new ones."""
        self._database.close()
