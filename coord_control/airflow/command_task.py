"""A task that sends a request to a job and waits for it: in the triggerer, or in its worker.

    the worker is lost, or the task retried -> the same command (:mod:`.attempts`)
    the triggerer is lost                   -> another one waits for the same command
    a user clears or marks the task         -> the command is cancelled; a checkpoint in progress is aborted
    the request is refused                  -> the task fails, with the cause and the next step

Threads: the task's.
"""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from airflow.sdk import BaseOperator

from coord_control.airflow.attempts import Attempts
from coord_control.airflow.cancelling import cancel
from coord_control.airflow.hook import DEFAULT_CONNECTION, CoordControlHook
from coord_control.airflow.outlet_assets import report_to_outlets
from coord_control.airflow.task_failure import failing
from coord_control.airflow.task_result import Metadata
from coord_control.airflow.triggers import CommandTrigger
from coord_control.control.client.command_wait import result_of
from coord_control.control.client.control_client import ControlClient
from coord_control.control.client.progress_lines import ProgressLines
from coord_control.control.client.request_once import ask_once, newest_request
from coord_control.control.commands import Command
from coord_control.errors import CommandFailed, CommandTimeout
from coord_control.storage.records import CommandRecord

__all__ = ["CommandOperator"]

_TIMEOUT_SECONDS: Final = 600.0


class CommandOperator(BaseOperator):
    """Sends a request to a job once, no matter how often the task runs, and waits for the result.

    Args:
        job: the job.
        conn_id: the connection to the control database.
        timeout_seconds: how long to wait, and how long the request waits for a driver. A request that a driver has
            begun continues after that; a retry waits for it.
        deferrable: wait in the triggerer, without a worker.
        kwargs: those of every operator.
    """

    template_fields: ClassVar[Sequence[str]] = ("job", "conn_id")

    def __init__(
        self,
        *,
        job: str,
        conn_id: str = DEFAULT_CONNECTION,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.conn_id = conn_id
        self.timeout_seconds = timeout_seconds
        self.deferrable = deferrable
        self._waits_for: tuple[ControlClient, str] | None = None  # the command, and what can cancel it

    @abstractmethod
    def command(self) -> Command[Any]:
        """Return the request.

        Raises:
            RequestInvalid: an argument is invalid.
        """

    @abstractmethod
    def metadata(self, client: ControlClient, result: Any) -> Metadata:
        """Return the result of the task."""

    def execute(self, context: Mapping[str, Any]) -> Metadata:
        """Send the request, unless an earlier attempt has, and wait for it."""
        attempts = Attempts(context)
        with failing(), self.client(attempts.actor) as client:
            return self.ask(context, attempts, client)

    def ask(self, context: Mapping[str, Any], attempts: Attempts, client: ControlClient) -> Metadata:
        """Send the request to the driver, unless an earlier attempt has, and wait for it.

        Raises:
            TaskDeferred: the triggerer waits for it.
            CoordControlError: it was refused or has failed.
        """
        self._wait_for_cancelled(attempts, client)
        asked = ask_once(
            client, self.job, attempts.key(), self.command(), self.timeout_seconds, reported=attempts.reported
        )
        command = asked.command
        what = command.kind.words
        if asked.was_known:
            self.log.info(
                "An earlier attempt has sent the request: command %s (%s) is %s", command.id, what, command.state
            )
        else:
            self.log.info("Sent the request to job %s: command %s (%s)", command.job, command.id, what)
        if not command.is_finished:
            command = self._waited(attempts, client, command)
        return self._finished(context, attempts, client, command)

    def resume(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> Metadata:
        """Return the result of the command for which the triggerer has waited."""
        attempts = Attempts(context)
        with failing(), self.client(attempts.actor) as client:
            command = client.command(event["command"])
            if not command.is_finished:
                raise CommandTimeout(command.id, command.kind, command.state, self.timeout_seconds)
            return self._finished(context, attempts, client, command)

    def on_kill(self) -> None:
        """Cancel the command: a user has stopped the task while its worker waits."""
        # Called by a signal handler, which must not ask the worker's supervisor for a connection.
        if self._waits_for is not None:
            client, command = self._waits_for
            cancel(client, command, self.log.info)

    def client(self, actor: str) -> ControlClient:
        """Return a client of the control database."""
        return CoordControlHook(self.conn_id).client(actor)

    def _wait_for_cancelled(self, attempts: Attempts, client: ControlClient) -> None:
        # A user has cleared the task while it waited: its command is about to end.
        known = newest_request(client, self.job, attempts.key())
        if known is not None and known.cancel_requested and not known.is_finished:
            self.log.info("Waiting until command %s is aborted", known.id)
            with contextlib.suppress(CommandFailed):
                client.wait(known, self.timeout_seconds)

    def _waited(self, attempts: Attempts, client: ControlClient, command: CommandRecord) -> CommandRecord:
        self._waits_for = (client, command.id)
        if self.deferrable:
            self.defer(
                trigger=CommandTrigger(
                    conn_id=self.conn_id,
                    actor=attempts.actor,
                    command=command.id,
                    deadline=time.time() + self.timeout_seconds,
                ),
                method_name="resume",
            )
        client.wait(command, self.timeout_seconds, on_progress=ProgressLines(self.log.info))
        return client.command(command.id)

    def _finished(
        self, context: Mapping[str, Any], attempts: Attempts, client: ControlClient, command: CommandRecord
    ) -> Metadata:
        metadata = self.metadata(client, result_of(command))
        report_to_outlets(context, self.outlets, metadata)
        attempts.report(command.id)
        return metadata
