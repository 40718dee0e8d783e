"""Whether the database can be reached: one place that decides when to try again, and counts.

The database may be away for as long as it likes. Each failure makes the next try wait longer, up to a bound that is
short enough for people who watch a database come back.

Threads: the agent's changes it; the numbers may be read by any.
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
    """The way to one database.

    Attributes:
        failures: tries that have failed, in all.
        last_failure: why the newest one did.
        last_at: when something was last written or read.
        is_lost: the last try has failed.
    """

    def __init__(self, database: str) -> None:
        """``database``: its address, without a password."""
        self._database = database
        self._outage = Outage(_FIRST_SECONDS, _LONGEST_SECONDS)
        self.failures = 0
        self.last_failure = ""
        self.last_at: datetime.datetime | None = None

    @property
    def is_lost(self) -> bool:
        return self._outage.is_on

    def is_due(self, now: float) -> bool:
        """Whether it may be tried; ``now`` is monotonic."""
        return self.seconds_until_due(now) == 0.0

    def seconds_until_due(self, now: float) -> float:
        return self._outage.seconds_until_due(now)

    def worked(self) -> None:
        """Something was written or read."""
        if self._outage.worked():
            _log.info("= the control database %s is back", self._database, extra={"action": "database_back"})
        self.last_at = datetime.datetime.now(datetime.UTC)

    def failed(self, error: CoordControlError, now: float) -> None:
        """A try has failed; said once per outage."""
        # Not all agents of a fleet at the same moment.
        if self._outage.failed(now, random.uniform(0.5, 1.0)):
            _log.warning(
                "x %s; the job runs on, and what happens is written when it is back",
                error,
                extra={"action": "database_away"},
            )
        self.failures += 1
        self.last_failure = str(error)
