"""Whether the agent can do its work: decides when to try again, and counts the failures of the database.

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
        failures: how often the database failed.
        last_failure: the error of the newest failure.
        last_at: when the database was last used successfully.
    """

    def __init__(self, database: str) -> None:
        """
        Args:
            database: the address of the database, without a password.
        """
        self._database = database
        self._outage = Outage(_FIRST_SECONDS, _LONGEST_SECONDS)
        self._is_lost = False
        self.failures = 0
        self.last_failure = ""
        self.last_at: datetime.datetime | None = None

    @property
    def is_failing(self) -> bool:
        """Whether the last attempt failed, for whatever reason."""
        return self._outage.is_on

    @property
    def is_lost(self) -> bool:
        """Whether the database was away in the last attempt."""
        return self._is_lost

    def is_due(self, now: float) -> bool:
        """Return whether it is time to try; ``now`` is monotonic."""
        return self.seconds_until_due(now) == 0.0

    def seconds_until_due(self, now: float) -> float:
        return self._outage.seconds_until_due(now)

    def worked(self) -> None:
        """Note that the database was used successfully."""
        self._outage.worked()
        if self._is_lost:
            _log.info("= the control database %s is back", self._database, extra={"action": "database_back"})
        self._is_lost = False
        self.last_at = datetime.datetime.now(datetime.UTC)

    def failed(self, error: CoordControlError, now: float, *, is_database: bool = True) -> None:
        """Note that an attempt has failed; logged once per outage.

        Args:
            is_database: whether the database was the cause, and not the job's storage or an error in the agent.
        """
        # Randomized, so that the agents of a fleet do not all try at the same moment.
        is_new = self._outage.failed(now, random.uniform(0.5, 1.0))
        self.last_failure = str(error)
        if not is_database:
            if is_new:
                _log.warning("x %s; the job keeps running, and its agent tries again", error)
            return
        if not self._is_lost:
            _log.warning(
                "x %s; the job keeps running, and records are written when the database is back",
                error,
                extra={"action": "database_away"},
            )
        self._is_lost = True
        self.failures += 1
