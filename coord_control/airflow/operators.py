"""The operators that send one request to the driver of a job; the result of each is a flat dictionary.

A template may render to an empty text: for an optional argument it means that the argument is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from coord_control.airflow.command_task import CommandOperator
from coord_control.airflow.task_result import Metadata, checkpoint_metadata, event_metadata, live_metadata
from coord_control.control.client.control_client import ControlClient
from coord_control.control.client.request_input import changed_fields, parsed
from coord_control.control.commands import (
    CheckpointResult,
    Command,
    LiveResult,
    SendEvent,
    SendEventResult,
    SetLive,
    StopResult,
    StopWithSavepoint,
    TriggerCheckpoint,
    TriggerSavepoint,
    requested,
)

__all__ = [
    "CheckpointOperator",
    "SavepointOperator",
    "SendEventOperator",
    "SetLiveOperator",
    "StopWithSavepointOperator",
]


class CheckpointOperator(CommandOperator):
    """Takes a checkpoint of a running job. The result is its metadata.

    Args:
        checkpoint_label: a label by which the checkpoint is found. (Every task has a ``label`` already.)
        kwargs: those of :class:`~coord_control.airflow.command_task.CommandOperator`.
    """

    template_fields: ClassVar[Sequence[str]] = (*CommandOperator.template_fields, "checkpoint_label")

    def __init__(self, *, checkpoint_label: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.checkpoint_label = checkpoint_label

    def command(self) -> Command[Any]:
        """Return the request."""
        return requested(TriggerCheckpoint, label=self.checkpoint_label or None)

    def metadata(self, client: ControlClient, result: CheckpointResult) -> Metadata:
        """Return the metadata of the checkpoint."""
        return _taken(client, self.job, result)


class SavepointOperator(CommandOperator):
    """Takes a savepoint of a running job. The result is its metadata.

    Args:
        savepoint_label: a label by which the savepoint is found.
        target: the folder to create, as a path on the driver's machine; defaults to one in the job's folder.
        kwargs: those of :class:`~coord_control.airflow.command_task.CommandOperator`.
    """

    template_fields: ClassVar[Sequence[str]] = (*CommandOperator.template_fields, "savepoint_label", "target")

    def __init__(self, *, savepoint_label: str | None = None, target: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.savepoint_label = savepoint_label
        self.target = target

    def command(self) -> Command[Any]:
        """Return the request."""
        return requested(TriggerSavepoint, target=self.target or None, label=self.savepoint_label or None)

    def metadata(self, client: ControlClient, result: Any) -> Metadata:
        """Return the metadata of the savepoint."""
        return _taken(client, self.job, result)


class StopWithSavepointOperator(SavepointOperator):
    """Stops a job right after a savepoint; it stays stopped. The result is the metadata of the savepoint.

    Args:
        drain: let every query read what its sources have now, before the savepoint.
        kwargs: those of :class:`SavepointOperator`.
    """

    def __init__(self, *, drain: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.drain = drain

    def command(self) -> Command[Any]:
        """Return the request."""
        target, label = self.target or None, self.savepoint_label or None
        return requested(StopWithSavepoint, target=target, label=label, drain=self.drain)

    def metadata(self, client: ControlClient, result: StopResult) -> Metadata:
        """Return the metadata of the savepoint; empty if another command has ended the job before."""
        self.log.info(result.text(self.job))
        return {} if result.savepoint is None else _taken(client, self.job, result.savepoint)


class SendEventOperator(CommandOperator):
    """Sends a control event to an operator, exactly once, and waits until its effect is durable.

    Args:
        operator: the uid of the operator.
        event_type: the class name of an event model that the operator declares.
        payload: the fields of the event, or JSON text; the driver validates it.
        subtask: the subtask to send to, or None for all, unless the operator's coordinator handles the event.
        kwargs: those of :class:`~coord_control.airflow.command_task.CommandOperator`.
    """

    template_fields: ClassVar[Sequence[str]] = (*CommandOperator.template_fields, "operator", "event_type", "payload")

    def __init__(
        self, *, operator: str, event_type: str, payload: Any = None, subtask: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.operator = operator
        self.event_type = event_type
        self.payload = payload
        self.subtask = subtask

    def command(self) -> Command[Any]:
        """Return the request."""
        return requested(
            SendEvent,
            operator=self.operator,
            event_type=self.event_type,
            payload={} if self.payload is None else parsed(self.payload),
            subtask=self.subtask,
        )

    def metadata(self, client: ControlClient, result: SendEventResult) -> Metadata:
        """Return the number of the event."""
        return event_metadata(self.operator, self.event_type, result)


class SetLiveOperator(CommandOperator):
    """Changes fields of a live value, exactly once, and waits until the change is accepted.

    Args:
        name: the name of the live value.
        fields: the fields to change, or JSON text.
        expect: change it only if it has this version.
        kwargs: those of :class:`~coord_control.airflow.command_task.CommandOperator`.
    """

    template_fields: ClassVar[Sequence[str]] = (*CommandOperator.template_fields, "name", "fields")

    def __init__(self, *, name: str, fields: Mapping[str, Any] | str, expect: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.name = name
        self.fields = fields
        self.expect = expect

    def command(self) -> Command[Any]:
        """Return the request."""
        return requested(SetLive, name=self.name, fields=changed_fields(self.fields), expect=self.expect)

    def metadata(self, client: ControlClient, result: LiveResult) -> Metadata:
        """Return the live value."""
        for line in result.text(self.job).splitlines():
            self.log.info(line)
        return live_metadata(result)


def _taken(client: ControlClient, job: str, result: CheckpointResult) -> Metadata:
    report = client.checkpoint_report(job, result.checkpoint)
    return checkpoint_metadata(report.checkpoint, report.job)
