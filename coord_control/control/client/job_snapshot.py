"""A job at one moment, as seen by a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coord_control.storage.records import (
    CheckpointRecord,
    CheckpointState,
    CommandRecord,
    JobRecord,
    OperatorSample,
    QuerySample,
    Record,
)

__all__ = ["JobSamples", "JobSnapshot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSnapshot(Record):
    """A job, its newest checkpoints and its unfinished commands; newest first."""

    job: JobRecord
    checkpoints: tuple[CheckpointRecord, ...]
    commands: tuple[CommandRecord, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the snapshot as plain values for JSON; checkpoints as in listings."""
        return {**Record.to_json(self), "checkpoints": [each.to_json_row() for each in self.checkpoints]}

    @property
    def under_way(self) -> tuple[CheckpointRecord, ...]:
        """Return the checkpoints in progress."""
        return tuple(each for each in self.checkpoints if each.state is CheckpointState.IN_PROGRESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSamples(Record):
    """Samples of a job, oldest first."""

    queries: tuple[QuerySample, ...]
    operators: tuple[OperatorSample, ...]
