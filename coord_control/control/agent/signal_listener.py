"""Waits for the database to signal that there are commands for a job.

A signal may be lost, and the database may be away: the agent looks by itself, less often.

Threads: a separate one, which calls back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from coord_control.control.settings import ControlSettings
from coord_control.errors import CoordControlError
from coord_control.storage.database import Database
from coord_control.storage.notify import CommandSignal, for_database

__all__ = ["SignalListener"]

_log = logging.getLogger("coord_control.control")

_WAIT_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 1.0


class SignalListener:
    """The signals of one job.

    Args:
        signalled: called, on the thread of the listener, when there may be commands.
    """

    def __init__(self, database: Database, job: str, settings: ControlSettings, signalled: Callable[[], None]) -> None:
        self._database, self._job, self._settings = database, job, settings
        self._signalled = signalled
        self._signal: CommandSignal | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="coord-agent-signal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop listening; the thread ends by itself."""
        self._closing.set()
        if self._signal is not None:
            self._signal.close()

    def _listen(self) -> None:
        while not self._closing.is_set():
            try:
                if self._signal is None:
                    self._signal = for_database(
                        self._database,
                        self._job,
                        poll_min_seconds=self._settings.poll_min_seconds,
                        poll_max_seconds=self._settings.poll_max_seconds,
                    )
                if self._signal.wait(_WAIT_SECONDS):
                    self._signalled()
            except CoordControlError as error:  # the agent's passes log and count it
                _log.debug("= %s", error)
                self._closing.wait(_RETRY_SECONDS)
            except Exception:
                _log.exception("x internal error in the agent's signal; please report it")
                self._closing.wait(_RETRY_SECONDS)
