"""Where metrics are served: ``HOST:PORT``, ``:PORT`` of the loopback interface, or ``none``.

Metrics contain the names of jobs, queries and operators, and need no password. So by default only this machine can read
them; if the user chooses another address, the network must restrict access.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final, Self

from coord_control.errors import MetricsAddressInvalid
from coord_control.listen_address import LOOPBACK, split_address

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
        port: the port, or 0 for any free one.
        is_named: whether the user has chosen the address. Otherwise another port is used if this one is taken.
    """

    host: str = LOOPBACK
    port: int = DRIVER_PORT
    is_named: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``HOST:PORT`` or ``:PORT``; an IPv6 host in brackets.

        Raises:
            MetricsAddressInvalid: the text is not an address.
        """
        found = split_address(text)
        if found is None:
            raise MetricsAddressInvalid(text)
        return cls(*found, is_named=True)

    @classmethod
    def of_driver(cls, given: str | None) -> Self | None:
        """Return where a driver serves its metrics, or None if it does not.

        Args:
            given: the program's setting; defaults to ``COORD_METRICS``, or else to port 9404 of the loopback interface.

        Raises:
            MetricsAddressInvalid: the setting is not an address.
        """
        text = given if given is not None else os.environ.get(METRICS_VARIABLE) or None
        if text is None:
            return cls()
        return None if text.strip().lower() == _OFF else cls.parse(text)

    def seen_from_elsewhere(self, host: str) -> Address:
        """Return the address for clients that reach this machine as ``host``: one cannot connect to 0.0.0.0."""
        return Address(host, self.port, self.is_named) if self.host in _ALL else self

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
