"""The connection type ``coord_control``: an Airflow connection whose address is that of the control database.

Threads: any. In a triggerer, which must not block its event loop, use :meth:`CoordControlHook.aclient`.
"""

from __future__ import annotations

from typing import Any, Final

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from coord_control.airflow.connection_address import database_url
from coord_control.airflow.provider import CONNECTION_TYPE
from coord_control.control.client.control_client import ControlClient
from coord_control.control.settings import ControlSettings
from coord_control.errors import CoordControlError

__all__ = ["DEFAULT_CONNECTION", "CoordControlHook"]

#: The connection that is used when none is named; it need not exist.
DEFAULT_CONNECTION: Final = "coord_control_default"


class CoordControlHook(BaseHook):
    """Opens clients of the control database that a connection names.

    A connection without a host and a database, and the default connection if it does not exist, stand for the
    environment of the process: ``COORD_CONTROL``, or else the user's embedded database.

    Args:
        conn_id: the connection.
    """

    conn_name_attr = "conn_id"
    default_conn_name = DEFAULT_CONNECTION
    conn_type = CONNECTION_TYPE
    hook_name = "coord-control"

    def __init__(self, conn_id: str = DEFAULT_CONNECTION, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conn_id = conn_id

    def get_conn(self) -> ControlClient:
        """Return a client whose requests are those of Airflow's user."""
        return self.client()

    def client(self, actor: str | None = None) -> ControlClient:
        """Return a client. Close it, or use it as a context manager.

        Args:
            actor: who makes the requests, for the audit trail; defaults to the user of this process.

        Raises:
            AirflowNotFoundException: there is no such connection.
            ControlSettingsInvalid, DatabaseUrlInvalid, DatabaseDriverMissing: its address is invalid.
            NoControlPlane: the environment switches the control plane off.
        """
        try:
            connection = self.get_connection(self.conn_id)
        except AirflowNotFoundException:
            self._check_optional()
            connection = None
        return _client(connection, actor)

    async def aclient(self, actor: str | None = None) -> ControlClient:
        """Do the same as :meth:`client`, without blocking the event loop."""
        try:
            connection = await self.aget_connection(self.conn_id)
        except AirflowNotFoundException:
            self._check_optional()
            connection = None
        return _client(connection, actor)

    def test_connection(self) -> tuple[bool, str]:
        """Read the database; return whether that was possible, and the number of jobs or the problem."""
        try:
            with self.client() as client:
                return True, f"{len(client.jobs())} jobs in {client.url}"
        except CoordControlError as error:
            return False, str(error)

    def _check_optional(self) -> None:
        if self.conn_id != DEFAULT_CONNECTION:
            raise AirflowNotFoundException(
                f"there is no connection {self.conn_id!r}; add one of type {CONNECTION_TYPE}, or leave conn_id out to "
                "use COORD_CONTROL"
            )


def _client(connection: Connection | None, actor: str | None) -> ControlClient:
    url = None
    if connection is not None:
        url = database_url(
            host=connection.host,
            port=connection.port,
            login=connection.login,
            database=connection.schema,
            options=connection.extra_dejson,
        )
    values = {"password": connection.password} if connection is not None and connection.password else {}
    return ControlClient(actor=actor, settings=ControlSettings.load(url, **values))
