"""The settings of the control plane: the address of the control database, timeouts and retention.

One class for the client, the command line and the driver, so that a machine is configured once: every field is an
environment variable ``COORD_CONTROL_...``; the address is ``COORD_CONTROL``. Put the password into
``COORD_CONTROL_PASSWORD`` or into a file named by ``COORD_CONTROL_PASSWORD_FILE``, because the address shows up in
process lists and logs. The file is read when the database is opened, and its content is not stored elsewhere.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from pydantic import AliasChoices, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from coord_control.errors import ControlSettingsInvalid, NoControlPlane

# SQLAlchemy takes half a second to import, and a job whose control plane is switched off does not need it.
if TYPE_CHECKING:
    from coord_control.storage.database import Database
    from coord_control.storage.retention import RetentionPolicy

__all__ = ["NO_CONTROL", "ControlSettings", "absolute_url", "default_url", "state_folder"]

#: The address that switches the control plane off.
NO_CONTROL: Final = "none"

_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(gt=0)]


def state_folder() -> Path:
    """Return the user's folder for the embedded database and the logs of detached jobs; it may not exist yet."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "coord-control"


def default_url() -> str:
    """Return the address of the user's embedded database."""
    return f"sqlite:///{state_folder() / 'control.db'}"


def absolute_url(url: str) -> str:
    """Return a database URL with an absolute path, for a process with another working directory."""
    scheme, separator, path = url.partition(":///")
    if not scheme.startswith("sqlite") or not separator:
        return url
    return f"{scheme}:///{Path(path).expanduser().absolute()}"


class ControlSettings(BaseSettings):
    """The control plane settings of this process; times are in seconds.

    Attributes:
        url: the database, ``sqlite:///path`` or ``postgresql://user@host/name``, or ``none`` for no control plane.
        password: the password of the database, if it is not part of the address.
        password_file: a file that contains the password; read when the database is opened.
        heartbeat_seconds: the interval of a driver's heartbeats.
        lease_seconds: how long after its last heartbeat a job still counts as running.
        sample_seconds: how often epochs and gateways are sampled.
        poll_min_seconds: how often an agent polls SQLite for commands shortly after one.
        poll_max_seconds: ... and when it has been idle for a while.
        expiry_seconds: when a command expires that no driver has claimed.
        retry_seconds: how long a client tries to reach the database before it raises an error.
        history_days: older checkpoints, commands, recoveries and audit entries are removed.
        history_checkpoints: the maximum number of checkpoints kept per job.
        history_commands: the maximum number of finished commands kept per job.
    """

    model_config = SettingsConfigDict(env_prefix="COORD_CONTROL_", frozen=True, extra="ignore", populate_by_name=True)

    url: str = Field(default_factory=default_url, validation_alias=AliasChoices("url", "COORD_CONTROL"))
    password: SecretStr | None = None
    password_file: Path | None = None
    heartbeat_seconds: _Seconds = 2.0
    lease_seconds: _Seconds = 10.0
    sample_seconds: _Seconds = 5.0
    poll_min_seconds: _Seconds = 0.025
    poll_max_seconds: _Seconds = 0.05
    expiry_seconds: _Seconds = 600.0
    retry_seconds: _Seconds = 15.0
    history_days: _Seconds = 90.0
    history_checkpoints: _Count = 100_000
    history_commands: _Count = 100_000

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.lease_seconds < 2 * self.heartbeat_seconds:
            raise ValueError(
                f"a lease of {self.lease_seconds:g} s is over after one heartbeat that is late (they come every "
                f"{self.heartbeat_seconds:g} s); take at least two heartbeats"
            )
        if self.poll_max_seconds < self.poll_min_seconds:
            raise ValueError("poll_max_seconds is shorter than poll_min_seconds")
        return self

    @classmethod
    def load(cls, url: str | None = None, **values: Any) -> Self:
        """Read the environment; ``url`` and ``values`` take precedence over it.

        Raises:
            ControlSettingsInvalid: a value is invalid.
        """
        given = values if url is None else {**values, "url": url}
        try:
            return cls(**given)
        except ValidationError as error:
            problems = [f"{'.'.join(map(str, each['loc'])) or 'settings'}: {each['msg']}" for each in error.errors()]
            raise ControlSettingsInvalid(problems) from None  # the values may hold a secret

    @property
    def is_off(self) -> bool:
        """Return whether the control plane is switched off."""
        return self.url.strip().lower() == NO_CONTROL

    def retention(self) -> RetentionPolicy:
        """Return how much history to keep."""
        from coord_control.storage.retention import RetentionPolicy

        return RetentionPolicy(
            history=timedelta(days=self.history_days),
            checkpoints=self.history_checkpoints,
            commands=self.history_commands,
        )

    def open_database(self, application: str) -> Database:
        """Return the database, which connects when it is first used.

        Args:
            application: the name to show in the server's list of connections.

        Raises:
            NoControlPlane: the control plane is switched off.
            ControlSettingsInvalid: the password file cannot be read.
            DatabaseUrlInvalid, DatabaseDriverMissing: the address is invalid, or its driver is not installed.
        """
        if self.is_off:
            raise NoControlPlane
        from coord_control.storage.database import Database

        return Database(self.url, application=application, password=self._secret())

    def _secret(self) -> str | None:
        if self.password is not None:
            return self.password.get_secret_value()
        if self.password_file is None:
            return None
        try:
            return self.password_file.read_text().rstrip("\r\n")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ControlSettingsInvalid([f"the password file {self.password_file} cannot be read: {reason}"]) from None
