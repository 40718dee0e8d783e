"""The identities of the protocol, as types: a bare ``int`` or ``str`` never names a generation, an epoch or a subtask.

Glossary: docs/protocol.md. Everything here is a value: comparable, hashable, without behaviour beyond its own form.
"""

from __future__ import annotations

import enum
import re
from typing import Final, NamedTuple, NewType

__all__ = [
    "MAX_NAME",
    "NO_CHECKPOINT",
    "NO_EPOCH",
    "AttemptId",
    "BarrierId",
    "CheckpointId",
    "CheckpointKind",
    "Epoch",
    "Generation",
    "OperatorUid",
    "QueryName",
    "RunId",
    "SubtaskIndex",
    "is_valid_name",
]

Generation = NewType("Generation", int)  #: one incarnation of the driver, from 1, strictly increasing
Epoch = NewType("Epoch", int)  #: one micro-batch of a query: Spark's batch id, from 0
BarrierId = NewType("BarrierId", int)  #: what coordinators see as the checkpoint id; one sequence per job (rule C9)
SubtaskIndex = NewType("SubtaskIndex", int)  #: 0 .. parallelism-1
CheckpointId = NewType("CheckpointId", int)  #: the id of a checkpoint or savepoint as shown to users, from 1, per job
OperatorUid = NewType("OperatorUid", str)
QueryName = NewType("QueryName", str)
RunId = NewType("RunId", str)  #: one run of a StreamingQuery; a restart in place begins a new one

NO_EPOCH: Final = Epoch(-1)  #: nothing has been committed yet
NO_CHECKPOINT: Final = BarrierId(-1)  #: what a coordinator sees when there is no checkpoint yet (rule C13)

# Names become folder names on any of Spark's file systems, metric labels and parts of asset keys.
MAX_NAME: Final = 100  #: characters
MAX_LABEL: Final = MAX_NAME  #: a savepoint's label is part of its folder's name
LATEST: Final = "latest"  #: names the newest complete checkpoint or savepoint
_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_NAME - 1}}}")


def is_valid_name(name: str) -> bool:
    """Return whether ``name`` can name a job, a query or an operator: 1-100 letters, digits, ``_ . -``, starting with a
    letter or digit."""
    return _NAME.fullmatch(name) is not None


def is_valid_label(label: str) -> bool:
    """Return whether ``label`` can name a checkpoint: as a job, but not ``latest`` or digits, which name others."""
    return is_valid_name(label) and label != LATEST and not label.isdigit()


class CheckpointKind(enum.Enum):
    """Whether a checkpoint is managed by the job or by the user."""

    CHECKPOINT = "checkpoint"  #: retained: shares files with others, is removed when newer ones are complete
    SAVEPOINT = "savepoint"  #: self-contained, owned by the user


class AttemptId(NamedTuple):
    """One execution of a subtask in an epoch by one Spark task: everything that fencing compares (protocol section
    4)."""

    generation: Generation
    run: RunId
    query_id: str
    operator: OperatorUid
    subtask: SubtaskIndex
    epoch: Epoch
    task_attempt: int  #: Spark's task attempt id: unique in an application, only grows
    stage: int
    attempt_number: int  #: 0 for the first try of a task in its stage

    def __str__(self) -> str:
        return (
            f"{self.operator}[{self.subtask}] epoch {self.epoch} "
            f"(task attempt {self.task_attempt}, stage {self.stage}.{self.attempt_number})"
        )
