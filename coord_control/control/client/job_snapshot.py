"""A job at one moment, as whoever watches it sees it.

Threads: values; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from coord_control.storage.records import (
    CheckpointRecord,
    CheckpointState,
    CommandRecord,
    JobRecord,
    OperatorSample,
    QuerySample,
    Record,
)

__all__ = ["JobSnapshot", "Samples"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSnapshot(Record):
    """A job, its newest checkpoints and the commands that are not finished; newest first."""

    job: JobRecord
    checkpoints: tuple[CheckpointRecord, ...]
    commands: tuple[CommandRecord, ...]

    @property
    def under_way(self) -> tuple[CheckpointRecord, ...]:
        """The checkpoints that are not over."""
        return tuple(each for each in self.checkpoints if each.state is CheckpointState.IN_PROGRESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples(Record):
    """What was measured of a job, oldest first."""

    queries: tuple[QuerySample, ...]
    operators: tuple[OperatorSample, ...]
