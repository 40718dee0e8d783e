"""Where metrics are served: ``HOST:PORT``, ``:PORT`` of the loopback interface, or ``none``.

Metrics name jobs, queries and operators, and need no password. So nobody but this machine sees them unless the user
names another address, and then the network has to keep strangers out.

Values; any thread.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final, Self

from coord_control.errors import MetricsAddressInvalid
from coord_control.listening import LOOPBACK, split_address

__all__ = ["DRIVER_PORT", "EXPORTER_PORT", "METRICS_VARIABLE", "Address"]

METRICS_VARIABLE: Final = "COORD_METRICS"  #: where the driver of a job serves its metrics, or ``none``
DRIVER_PORT: Final = 9404
EXPORTER_PORT: Final = 9405

_ALL: Final = ("0.0.0.0", "::")
_OFF: Final = "none"


@dataclass(frozen=True, slots=True)
class Address:
    """An address to listen at.

    Attributes:
        port: 0: any free one.
        is_named: the user has chosen it: nothing else will do. Otherwise a port that is taken is no matter.
    """

    host: str = LOOPBACK
    port: int = DRIVER_PORT
    is_named: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``HOST:PORT`` or ``:PORT``; an IPv6 host in brackets.

        Raises:
            MetricsAddressInvalid: it is something else.
        """
        found = split_address(text)
        if found is None:
            raise MetricsAddressInvalid(text)
        return cls(*found, is_named=True)

    @classmethod
    def of_driver(cls, given: str | None) -> Self | None:
        """Where a driver serves its metrics.

        Args:
            given: what the program says; None: what ``COORD_METRICS`` says, or port 9404 of the loopback interface.

        Returns:
            None: nowhere.

        Raises:
            MetricsAddressInvalid: it is no address.
        """
        text = given if given is not None else os.environ.get(METRICS_VARIABLE) or None
        if text is None:
            return cls()
        return None if text.strip().lower() == _OFF else cls.parse(text)

    def seen_from_elsewhere(self, host: str) -> Address:
        """Where a client finds it that reaches this machine as ``host``: nobody connects to all addresses."""
        return Address(host, self.port, self.is_named) if self.host in _ALL else self

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
