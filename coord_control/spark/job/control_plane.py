"""The agent of a job, from its database's address to its end: all that a job has to know of the control plane.

Threads: those of the job's start and end.
"""

from __future__ import annotations

import logging
import os
from typing import Self

from coord_control.control.agent.agent import Agent
from coord_control.control.settings import ControlSettings
from coord_control.driver_process import LOG_FILE_VARIABLE, SUPERVISED_VARIABLE
from coord_control.durable.job_folder.generations import Claim
from coord_control.errors import CoordControlError, Fenced, JobStopRequested, SupervisorLost
from coord_control.exit_codes import NO_RESTART, exit_code_of
from coord_control.metrics.snapshot import AgentSnapshot
from coord_control.spark.job.agent_port import AgentPort
from coord_control.spark.process import shutdown
from coord_control.storage.records import AgentMetrics, JobState
from coord_control.storage.store import ControlStore

__all__ = ["ControlPlane"]

_log = logging.getLogger("coord_control.control")


class ControlPlane:
    """The control plane of one job in one driver."""

    def __init__(self, settings: ControlSettings, store: ControlStore) -> None:
        self._settings = settings
        self._store = store
        self._agent: Agent | None = None

    @classmethod
    def of(cls, settings: ControlSettings) -> Self:
        """Return the control plane; the database is not connected to yet.

        Raises:
            ControlSettingsInvalid, DatabaseUrlInvalid, DatabaseDriverMissing: the settings cannot be used.
        """
        return cls(settings, ControlStore(settings.open_database("coord-control driver")))

    @property
    def address(self) -> str:
        """The address of its database, with the password that it may contain."""
        return self._settings.url

    def start(self, port: AgentPort) -> None:
        """Begin, and wait a moment for the database.

        Raises:
            JobStopRequested: a stop was requested that the last driver did not survive; the job has to end.
            JobRootMismatch: the job's name has the history of another folder; the job has to end.
        """
        self._agent = Agent(
            port,
            self._store,
            self._settings,
            is_supervised=_is_supervised,
            log_file=os.environ.get(LOG_FILE_VARIABLE),
        )
        found = self._agent.start()
        if found is None:
            return
        error = JobStopRequested(port.facts.name, found.requested_by, found.requested_at.isoformat(timespec="seconds"))
        _log.warning("x %s", error, extra={"action": "stop_requested", "job": port.facts.name})
        raise error

    def metrics(self) -> AgentMetrics | None:
        """Return the agent's metrics of the database, or None if it was not started."""
        return None if self._agent is None else self._agent.metrics()

    def snapshot(self) -> AgentSnapshot | None:
        """Return all the agent's numbers, or None if it was not started. Any thread."""
        if (agent := self._agent) is None:
            return None
        return AgentSnapshot(
            is_connected=agent.is_connected,
            numbers=agent.metrics(),
            outcomes=agent.outcomes(),
            under_way=agent.commands_under_way,
        )

    def close(self, claim: Claim, error: Exception | None, lost_supervisor: SupervisorLost | None) -> None:
        """Record that the job has ended and released its claim, and give commands their outcomes.

        Args:
            error: what has ended the job.
            lost_supervisor: the job's end began because of that.
        """
        if self._agent is None:
            return
        error = error or _abandoned(lost_supervisor, self._agent)
        self._agent.close(
            JobState.ENDED if error is None else JobState.FAILED,
            _end_reason(error),
            is_clean=_has_ended_cleanly(claim),
            is_fenced=isinstance(error, Fenced),
            is_final=error is not None and (not _is_supervised() or exit_code_of(error) in NO_RESTART),
        )


def _is_supervised() -> bool:
    return bool(os.environ.get(SUPERVISED_VARIABLE)) and shutdown.lost_supervisor() is None


def _abandoned(lost_supervisor: SupervisorLost | None, agent: Agent) -> SupervisorLost | None:
    """Return the loss of the supervisor if the job would run on, or be started again, without it."""
    if agent.is_restarting:
        return shutdown.lost_supervisor()  # also a later one: no process starts the next driver
    return None if agent.is_stopping else lost_supervisor


def _end_reason(error: Exception | None) -> str:
    if error is None:
        return "stopped"
    return str(error) if isinstance(error, CoordControlError) else f"{type(error).__name__}: {error}"


def _has_ended_cleanly(claim: Claim) -> bool:
    try:
        return claim.has_ended_cleanly(claim.generation)
    except CoordControlError:
        return False
