"""Errors of restores, forks and adopted Spark checkpoints: the state does not fit, or lies elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from coord_control.errors.base import Fault
from coord_control.errors.user import DeclarationError

__all__ = [
    "AdoptedQueryRunning",
    "AnotherJobChecked",
    "CheckpointLocationConflict",
    "ForkNameTaken",
    "LineageMismatch",
    "NonRestoredState",
    "NotACheckpoint",
    "PlanRefused",
    "QueryNotRestored",
    "QueryNotStarted",
    "RescaleFailed",
    "RestoreNotUndone",
    "RestoreRefused",
    "RestoredQueryUnused",
]

#: How to get back after a restore that the program turns out not to fit.
UNDO: Final = "go back to where the job stood before the restore: coordctl restore JOB --undo"


class NonRestoredState(DeclarationError):
    """A restored query and its checkpoint have different operators: state would be left behind, or begin empty."""

    def __init__(self, query: str, checkpoint: str, recorded: list[str], declared: list[str]) -> None:
        self.query, self.checkpoint, self.recorded, self.declared = query, checkpoint, recorded, declared
        removed, added = sorted(set(recorded) - set(declared)), sorted(set(declared) - set(recorded))
        found = [f"the state of {removed} would be left behind"] if removed else []
        found += [f"{added} would begin empty"] if added else []
        super().__init__(
            f"query {query!r} was restored from {checkpoint}: {' and '.join(found)}; keep the operators' uids, or "
            "restore with allow_non_restored_state"
        )


class AnotherJobChecked(DeclarationError):
    """The new program of an upgrade has another job than the one that is to be upgraded; nothing was changed."""

    def __init__(self, job: str, expected: str) -> None:
        self.job, self.expected = job, expected
        super().__init__(f"the program has job {job!r}, and {expected!r} is to be upgraded; name its job {expected!r}")


class RestoredQueryUnused(DeclarationError):
    """The program does not start a query that the restored checkpoint contains; nothing has run.

    Args:
        is_applied: the restore was applied before the program started.
        can_undo: the restore can be undone.
    """

    def __init__(
        self, checkpoint: str, queries: list[str], *, is_applied: bool = False, can_undo: bool = False
    ) -> None:
        self.checkpoint, self.queries = checkpoint, queries
        found = (
            f"the program does not start its queries {queries}, so their state would be left behind; start them, or "
            "restore with allow_non_restored_state"
        )
        super().__init__(
            f"the job was restored from {checkpoint}, and no query has run since: {found}{_or_undo(can_undo)}"
            if is_applied
            else f"{checkpoint} was not restored, and nothing was changed: {found}"
        )


class RestoreRefused(DeclarationError):
    """The checks before a restore failed; nothing was changed.

    Args:
        checks: all checks, as JSON objects.
        is_damaged: files of the checkpoint are damaged or missing.
        is_applied: the restore was applied before the program, which does not match, started.
        can_undo: the restore can be undone.
    """

    def __init__(
        self,
        checkpoint: str,
        problems: list[str],
        *,
        checks: Sequence[Mapping[str, Any]] = (),
        is_damaged: bool = False,
        is_applied: bool = False,
        can_undo: bool = False,
    ) -> None:
        self.checkpoint, self.problems, self.checks = checkpoint, problems, checks
        if is_damaged:
            self.fault = Fault.EXTERNAL
        found = "; ".join(problems)
        super().__init__(
            f"the job was restored from {checkpoint}, and its program does not match; no query has run since: {found}; "
            f"change the program{_or_undo(can_undo)}"
            if is_applied
            else f"{checkpoint} cannot be restored, and nothing was changed: {found}"
        )


class RestoreNotUndone(DeclarationError):
    """A restore can no longer be undone."""

    def __init__(self, job: str, why: str) -> None:
        self.job, self.why = job, why
        super().__init__(
            f"the restore of job {job!r} cannot be undone, and nothing was changed: {why}; restore a checkpoint or "
            "savepoint from before it"
        )


class RescaleFailed(DeclarationError):
    """An operator's ``rescale`` function failed, or returned states that the new subtasks cannot use."""

    def __init__(self, operator: str, problem: str) -> None:
        self.operator = operator
        super().__init__(
            f"operator {operator!r}: its rescale function {problem}; nothing was started, and the checkpoint is "
            "unchanged"
        )


class LineageMismatch(DeclarationError):
    """The program names a different Spark checkpoint than the one that the query has."""

    def __init__(self, query: str, recorded: str, declared: str) -> None:
        self.query, self.recorded, self.declared = query, recorded, declared
        super().__init__(
            f"query {query!r} has its Spark checkpoint at {recorded}, not at {declared}; leave checkpoint_location "
            "out, or start under another query name"
        )


class NotACheckpoint(DeclarationError):
    """A directory to adopt is not a Spark checkpoint."""

    def __init__(self, query: str, path: str, problem: str) -> None:
        self.query, self.path, self.problem = query, path, problem
        super().__init__(
            f"query {query!r}: checkpoint_location {path} is not a Spark checkpoint: {problem}; name the checkpoint "
            "directory that the query used before, or leave checkpoint_location out to begin empty"
        )


class CheckpointLocationConflict(DeclarationError):
    """A writer, or the session, sets a checkpoint location that the job would ignore: its state would be lost."""

    def __init__(self, query: str, said_by: str, own: str, used: str | None) -> None:
        self.query, self.own, self.used = query, own, used
        instead = f"at {used}" if used else "under the job's root"
        super().__init__(
            f"query {query!r}: {said_by} sets its checkpoint location to {own}, but the job would keep the checkpoint "
            f"{instead} and ignore that state; to resume from it, call job.start({query!r}, writer, "
            f"checkpoint_location={own!r}); otherwise remove the setting of the writer or session"
        )


class AdoptedQueryRunning(DeclarationError):
    """The Spark query whose checkpoint is to be adopted is still running in this process."""

    def __init__(self, query: str, path: str, query_id: str) -> None:
        self.query, self.path, self.query_id = query, path, query_id
        super().__init__(
            f"query {query!r}: the Spark query {query_id} is still running on {path}; stop it before the job takes "
            "over its checkpoint"
        )


class QueryNotStarted(DeclarationError):
    """The handle of a query was used before all queries of a restored job had been checked."""

    def __init__(self, query: str, checkpoint: str, missing: list[str]) -> None:
        self.query, self.checkpoint, self.missing = query, checkpoint, missing
        super().__init__(
            f"query {query!r} has not started yet: the job is restored from {checkpoint}, and its queries "
            f"start together once all of them have been checked; {missing} are still missing. Use the handle of "
            f"{query!r} after job.start() of these; a program without them needs allow_non_restored_state, and its "
            "queries start with job.await_termination()"
        )


class QueryNotRestored(DeclarationError):
    """A query is not part of the checkpoint that the job was just restored from."""

    def __init__(self, query: str, checkpoint: str, restored: list[str]) -> None:
        self.query, self.checkpoint, self.restored = query, checkpoint, restored
        super().__init__(
            f"query {query!r} is not in {checkpoint}, from which the job was restored with {restored}; it was not "
            "started, because it would begin empty; if that is intended, set allow_non_restored_state"
        )


class PlanRefused(DeclarationError):
    """Spark rejects the plan of a query, or its saved state does not match the plan; a retry would not help."""

    def __init__(self, query: str, why: str) -> None:
        self.query, self.why = query, why
        super().__init__(
            f"Spark rejects the plan of query {query!r}: {why}; undo the change of the program, or start the query "
            "under another name, with empty state"
        )


class ForkNameTaken(DeclarationError):
    """A fork has the same name as its original, so the original itself would be restored."""

    def __init__(self, job: str) -> None:
        self.job = job
        super().__init__(
            f"a fork needs a new name, and {job!r} is the job itself; to restore the job itself, leave the name of the "
            "fork (--as, as_name) out; to run a copy next to it, choose another name"
        )


def _or_undo(can_undo: bool) -> str:
    return f", or {UNDO}" if can_undo else ""
