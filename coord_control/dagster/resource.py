"""The control plane as a resource of Dagster."""

from __future__ import annotations

import dagster as dg

import coord_control as cc
from coord_control.control.settings import ControlSettings

__all__ = ["RESOURCE_KEY", "ControlPlaneResource"]

#: Under this name the assets, jobs, sensors and schedules of this package ask for it.
RESOURCE_KEY = "control_plane"


class ControlPlaneResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Opens clients of the control database. Nothing is connected before a client is used.

    Attributes:
        database: its address; empty: as ``COORD_CONTROL`` says, or the user's embedded one.
        retry_seconds: how long a client tries to reach it; None: as ``COORD_CONTROL_RETRY_SECONDS`` says.
    """

    database: str = ""
    retry_seconds: float | None = None

    def client(self, actor: str, *, retry_seconds: float | None = None) -> cc.ControlClient:
        """A client; close it, or use it as a context manager.

        Args:
            actor: who asks, for the audit trail.
            retry_seconds: for this client; what nobody waits for should not wait long for a database.

        Raises:
            ControlSettingsInvalid: the address, or the environment, cannot be used.
            NoControlPlane: it says that there is none.
        """
        patience = self.retry_seconds if retry_seconds is None else retry_seconds
        values = {} if patience is None else {"retry_seconds": patience}
        return cc.ControlClient(actor=actor, settings=ControlSettings.load(self.database or None, **values))
