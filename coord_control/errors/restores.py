"""Errors of restores, forks and adopted Spark checkpoints: the state does not fit, or lies elsewhere."""

from __future__ import annotations

from typing import Final

from coord_control.errors.base import Fault
from coord_control.errors.user import DeclarationError

__all__ = [
    "AdoptedQueryRunning",
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
    """A restored query has other operators than the checkpoint: state would be left behind, or begin empty."""

    def __init__(self, query: str, checkpoint: str, recorded: list[str], declared: list[str]) -> None:
        self.query, self.checkpoint, self.recorded, self.declared = query, checkpoint, recorded, declared
        removed, added = sorted(set(recorded) - set(declared)), sorted(set(declared) - set(recorded))
        found = [f"the state of {removed} would be left behind"] if removed else []
        found += [f"{added} would begin empty"] if added else []
        super().__init__(
            f"query {query!r} was restored from {checkpoint}: {' and '.join(found)}; keep the operators' uids, or "
            "restore with allow_non_restored_state"
        )


class RestoredQueryUnused(DeclarationError):
    """The program starts no query for one of the checkpoint that is to be restored, or was; nothing has run.

    Args:
        is_applied: the restore has taken place without the program.
        can_undo: it can be undone.
    """

    def __init__(
        self, checkpoint: str, queries: list[str], *, is_applied: bool = False, can_undo: bool = False
    ) -> None:
        self.checkpoint, self.queries = checkpoint, queries
        found = (
            f"the program does not start the queries {queries} of it: their state would be left behind; start them, or "
            "restore with allow_non_restored_state"
        )
        super().__init__(
            f"the job was restored from {checkpoint}, and no query has run since: {found}{_or_undo(can_undo)}"
            if is_applied
            else f"{checkpoint} was not restored, and nothing was changed: {found}"
        )


class RestoreRefused(DeclarationError):
    """The check before a restore found something that cannot work; nothing was changed.

    Args:
        is_damaged: files of the checkpoint are damaged or missing, as a record that cannot be read is.
        is_applied: the restore has taken place without the program, which does not fit.
        can_undo: it can be undone.
    """

    def __init__(
        self,
        checkpoint: str,
        problems: list[str],
        *,
        is_damaged: bool = False,
        is_applied: bool = False,
        can_undo: bool = False,
    ) -> None:
        self.checkpoint, self.problems = checkpoint, problems
        if is_damaged:
            self.fault = Fault.EXTERNAL
        found = "; ".join(problems)
        super().__init__(
            f"the job was restored from {checkpoint}, and its program does not fit; no query has run since: {found}; "
            f"change the program{_or_undo(can_undo)}"
            if is_applied
            else f"{checkpoint} cannot be restored, and nothing was changed: {found}"
        )


class RestoreNotUndone(DeclarationError):
    """A restore cannot be undone any more."""

    def __init__(self, job: str, why: str) -> None:
        self.job, self.why = job, why
        super().__init__(
            f"job {job!r} was not set back to where it stood before its restore, and nothing was changed: {why}; "
            "restore a checkpoint or savepoint of that time"
        )


class RescaleFailed(DeclarationError):
    """An operator's ``rescale`` function did not give what the new subtasks can begin with."""

    def __init__(self, operator: str, problem: str) -> None:
        self.operator = operator
        super().__init__(
            f"operator {operator!r}: its rescale function {problem}; nothing was started, and the checkpoint is as it "
            "was"
        )


class LineageMismatch(DeclarationError):
    """A query has its Spark checkpoint in another place than the program says now."""

    def __init__(self, query: str, recorded: str, declared: str) -> None:
        self.query, self.recorded, self.declared = query, recorded, declared
        super().__init__(
            f"query {query!r} has its Spark checkpoint at {recorded}, not at {declared}; leave checkpoint_location "
            "out, or start under another query name"
        )


class NotACheckpoint(DeclarationError):
    """A directory that was to be adopted is no Spark checkpoint."""

    def __init__(self, query: str, path: str, problem: str) -> None:
        self.query, self.path, self.problem = query, path, problem
        super().__init__(
            f"query {query!r}: checkpoint_location {path} is not a Spark checkpoint: {problem}; name the checkpoint "
            "directory that the query has had, or leave checkpoint_location out to begin with an empty state"
        )


class CheckpointLocationConflict(DeclarationError):
    """A writer, or the session, has a checkpoint location that the job would not use: state would be left behind."""

    def __init__(self, query: str, said_by: str, own: str, used: str | None) -> None:
        self.query, self.own, self.used = query, own, used
        instead = f"at {used}" if used else "under the job's root"
        super().__init__(
            f"query {query!r}: {said_by} says that its checkpoint is at {own}, and the job would keep it {instead}, "
            f"where it does not go on from that state; to go on from it, say job.start({query!r}, writer, "
            f"checkpoint_location={own!r}); not to, leave the writer's or session's setting out"
        )


class AdoptedQueryRunning(DeclarationError):
    """The plain query whose checkpoint was to be adopted still runs in this process."""

    def __init__(self, query: str, path: str, query_id: str) -> None:
        self.query, self.path, self.query_id = query, path, query_id
        super().__init__(
            f"query {query!r}: the Spark query {query_id} still runs on {path}; stop it before the job takes its "
            "checkpoint over"
        )


class QueryNotStarted(DeclarationError):
    """A query's handle was used before all queries of a restored job had been checked."""

    def __init__(self, query: str, checkpoint: str, missing: list[str]) -> None:
        self.query, self.checkpoint, self.missing = query, checkpoint, missing
        super().__init__(
            f"query {query!r} has not started yet: the job is restored from {checkpoint}, and its queries "
            f"start together when all of them have been checked; {missing} are still missing. Use the handle of "
            f"{query!r} behind job.start() of these; a program without them needs allow_non_restored_state, and its "
            "queries start with job.await_termination()"
        )


class QueryNotRestored(DeclarationError):
    """A query is not in the checkpoint from which the job has just been restored."""

    def __init__(self, query: str, checkpoint: str, restored: list[str]) -> None:
        self.query, self.checkpoint, self.restored = query, checkpoint, restored
        super().__init__(
            f"query {query!r} is not in {checkpoint}, from which the job has been restored with {restored}; it was not "
            "started, because it would begin empty; when that is meant, say allow_non_restored_state"
        )


class PlanRefused(DeclarationError):
    """Spark refuses the plan of a query, or the saved state does not fit it; it does so every time."""

    def __init__(self, query: str, why: str) -> None:
        self.query, self.why = query, why
        super().__init__(
            f"Spark refuses the plan of query {query!r}: {why}; change the program back, or start the query under "
            "another name, where it begins empty"
        )


class ForkNameTaken(DeclarationError):
    """A fork was asked for under the name of the very job that it is taken from: that would set the job itself back."""

    def __init__(self, job: str) -> None:
        self.job = job
        super().__init__(
            f"a fork needs a name of its own, and {job!r} is the job itself; to set that back, leave the name of the "
            "fork (--as, as_name) out; to let a new job go on beside it, choose another name"
        )


def _or_undo(can_undo: bool) -> str:
    return f", or {UNDO}" if can_undo else ""
