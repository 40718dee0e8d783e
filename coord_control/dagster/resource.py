"""The control plane as a Dagster resource."""

from __future__ import annotations

import dagster as dg

import coord_control as cc
from coord_control.control.settings import ControlSettings

__all__ = ["RESOURCE_KEY", "ControlPlaneResource"]

#: The resource key that the assets, jobs, sensors and schedules of this package require.
RESOURCE_KEY = "control_plane"


class ControlPlaneResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Opens clients of the control database. A client connects when it is first used.

    Attributes:
        database: The database URL. If empty, ``COORD_CONTROL`` or else the user's embedded database is used.
        retry_seconds: How long a client keeps trying to connect. Defaults to ``COORD_CONTROL_RETRY_SECONDS``.
    """

    database: str = ""
    retry_seconds: float | None = None

    def client(self, actor: str, *, retry_seconds: float | None = None) -> cc.ControlClient:
        """Return a client. Close it, or use it as a context manager.

        Args:
            actor: who makes the requests, for the audit trail.
            retry_seconds: overrides the resource's setting for this client.

        Raises:
            ControlSettingsInvalid: the URL or the environment is invalid.
            NoControlPlane: the control plane is switched off.
        """
        patience = self.retry_seconds if retry_seconds is None else retry_seconds
        values = {} if patience is None else {"retry_seconds": patience}
        return cc.ControlClient(actor=actor, settings=ControlSettings.load(self.database or None, **values))
