"""Why a checkpoint failed, in three parts: what happened, what to do next, and the details."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from coord_control.protocol.failures import FailureReason
from coord_control.storage.records import CheckpointRecord

__all__ = ["Failure", "failure_of"]

_REASONS: Final = {reason.code: reason for reason in FailureReason}


@dataclass(frozen=True, slots=True)
class Failure:
    """A readable description of a failure; unknown parts are empty."""

    code: str
    happened: str
    next_step: str
    detail: str


def failure_of(checkpoint: CheckpointRecord) -> Failure | None:
    """Return why a checkpoint failed, or None if it did not."""
    if checkpoint.reason is None:
        return None
    reason = _REASONS.get(checkpoint.reason)
    if reason is None:  # from a newer release, or from the upkeep of the database
        return Failure(checkpoint.reason, checkpoint.message, "", "")
    happened, _, next_step = reason.sentence.partition("; ")
    detail = checkpoint.message.removeprefix(reason.sentence).strip()
    return Failure(checkpoint.reason, happened, next_step, detail.removeprefix("(").removesuffix(")"))
