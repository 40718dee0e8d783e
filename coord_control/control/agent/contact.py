"""Whether the database can be reached: decides when to try again, and counts failures.

The database may be unavailable for any length of time. Each failure lengthens the wait before the next attempt, up to a
limit that is short enough for an operator who is bringing it back.

Threads: changed by the agent's thread; the numbers may be read by any.
"""

from __future__ import annotations

import datetime
import logging
import random
from typing import Final

from coord_control.errors import CoordControlError
from coord_control.protocol.outage import Outage

__all__ = ["Contact"]

_log = logging.getLogger("coord_control.control")

_FIRST_SECONDS: Final = 0.25
_LONGEST_SECONDS: Final = 8.0


class Contact:
    """The contact with one database.

    Attributes:
        failures: total number of failed attempts.
        last_failure: the error of the newest one.
        last_at: when the database was last used successfully.
        is_lost: whether the last attempt failed.
    """

    def __init__(self, database: str) -> None:
        """
        Args:
            database: the address of the database, without a password.
        """
        self._database = database
        self._outage = Outage(_FIRST_SECONDS, _LONGEST_SECONDS)
        self.failures = 0
        self.last_failure = ""
        self.last_at: datetime.datetime | None = None

    @property
    def is_lost(self) -> bool:
        return self._outage.is_on

    def is_due(self, now: float) -> bool:
        """Return whether it is time to try; ``now`` is monotonic."""
        return self.seconds_until_due(now) == 0.0

    def seconds_until_due(self, now: float) -> float:
        return self._outage.seconds_until_due(now)

    def worked(self) -> None:
        """Note that the database was used successfully."""
        if self._outage.worked():
            _log.info("= the control database %s is back", self._database, extra={"action": "database_back"})
        self.last_at = datetime.datetime.now(datetime.UTC)

    def failed(self, error: CoordControlError, now: float) -> None:
        """Note that an attempt has failed; logged once per outage."""
        # Randomized, so that the agents of a fleet do not all try at the same moment.
        if self._outage.failed(now, random.uniform(0.5, 1.0)):
            _log.warning(
                "x %s; the job keeps running, and records are written when the database is back",
                error,
                extra={"action": "database_away"},
            )
        self.failures += 1
        self.last_failure = str(error)
