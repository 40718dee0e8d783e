"""The rules of one checkpoint while it is being made, each left out or turned round, with the tests that notice."""

from __future__ import annotations

from typing import Final

from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_store import CheckpointStore
from coord_control.protocol.checkpoint import PendingCheckpoints
from coord_control.protocol.scheduler.checkpoint_run import CheckpointRun
from coord_control.spark.checkpoints.checkpoint_service import CheckpointService
from coord_control.spark.checkpoints.checkpoint_work import CheckpointWork
from tests.mutations.mutation import Mutation

__all__ = ["CHECKPOINT_RUN_MUTATIONS"]

_RULES: Final = "tests/unit/protocol/test_checkpoint_run.py"
_HISTORIES: Final = "tests/machines/test_checkpoint_run_machine.py"
_WORK: Final = "tests/unit/spark/test_checkpoint_work.py"
_SERVICE: Final = "tests/unit/spark/test_checkpoint_service.py"
_ENDED: Final = f"{_SERVICE}::test_a_savepoint_of_queries_that_have_all_ended_waits_for_no_commit"
_UNREADABLE: Final = f"{_SERVICE}::test_a_storage_that_cannot_be_read_is_reported_once_and_the_checkpoint_still_expires"
_HANGS: Final = f"{_SERVICE}::test_a_storage_that_hangs_under_a_savepoint_holds_up_nothing_else"
_CORE: Final = "tests/unit/protocol/test_checkpoint_ends.py"


def _row(name: str, row: str) -> tuple[Mutation, str]:
    """Another row of the table."""
    old = "TRANSITIONS[self._state, input_]"
    return Mutation(name, CheckpointRun._step, old, f"{{**TRANSITIONS, {row}}}[self._state, input_]"), _RULES


#: Each with the tests that catch it.
CHECKPOINT_RUN_MUTATIONS: Final[tuple[tuple[Mutation, str], ...]] = (
    _row(
        "give a checkpoint up while its metadata is being written",
        "(State.WRITING, Input.FAIL): (State.FAILING, (Abort,))",
    ),
    _row(
        "let the core end a checkpoint while its metadata is being written",
        "(State.WRITING, Input.ABANDONED): (State.DRAINING, ())",
    ),
    _row("give up what is complete", "(State.COMPLETED, Input.FAIL): (State.FAILED, (Discard, Ended))"),
    _row(
        "discard what was not claimed",
        "(State.CLAIMING, Input.NOT_CLAIMED): (State.REMOVING, (Discard,))",
    ),
    _row("leave what a failed checkpoint has claimed", "(State.DRAINING, Input.QUIET): (State.FAILED, (Ended,))"),
    _row("leave a cut that is void in the core", "(State.PINNING, Input.FILE_GONE): (State.VOID, ())"),
    _row("leave a checkpoint that failed in the core", "(State.PINNING, Input.FAIL): (State.DRAINING, ())"),
    _row("end a checkpoint before the core has answered", "(State.PINNING, Input.FAIL): (State.DRAINING, (Abort,))"),
    _row("pin for a checkpoint that was given up", "(State.FAILING, Input.CAPTURED): (State.FAILING, (Pin,))"),
    _row("do not tell the coordinators", "(State.WRITING, Input.WRITTEN): (State.COMPLETED, (Ended,))"),
    _row("do not say how far it is", "(State.PINNING, Input.PINNED): (State.PINNING, ())"),
    (
        Mutation(
            "cut again, or discard, while a pin of the cut before runs",
            CheckpointRun._step,
            "not self._pinning and ",
            "",
        ),
        _HISTORIES,
    ),
    (
        Mutation("write before every query is captured", CheckpointRun._step, " and not self.awaited", ""),
        _HISTORIES,
    ),
    (
        Mutation(
            "take a query as captured that an earlier cut has captured",
            CheckpointRun.captured,
            "barrier != self._barrier or ",
            "",
        ),
        _RULES,
    ),
    (
        Mutation(
            "give a checkpoint up because of what was said of an earlier cut",
            CheckpointRun.abandoned,
            "if barrier != self._barrier:",
            "if False:",
        ),
        _RULES,
    ),
    (
        Mutation("let an earlier cut speak while it is cut again", CheckpointRun._step, "self._barrier = None", "pass"),
        _RULES,
    ),
    (
        Mutation("count what was pinned for a void cut", CheckpointRun.pinned, "self._state is State.PINNING", "True"),
        _RULES,
    ),
    (
        Mutation("cut a checkpoint again for ever", CheckpointRun.not_pinned, "self._cuts < MAX_CUTS", "True"),
        _RULES,
    ),
    (
        Mutation("let the last failure stand", CheckpointRun._note, " and self._outcome is None", ""),
        _RULES,
    ),
    (
        Mutation("wait for the core for ever", CheckpointRun.tick, "now < self._failed_at + seconds", "True"),
        _HISTORIES,
    ),
    _row("wait for a pin that hangs", "(State.DRAINING, Input.OVERDUE): (State.DRAINING, ())"),
    _row("leave what was claimed too late", "(State.LEFT, Input.QUIET): (State.FAILED, ())"),
    (
        Mutation(
            "look for labels on the storages of savepoints",
            Catalog.labels,
            "taken_labels(self._files, self._folder)",
            "{entry.label for entry in self.entries() if entry.label is not None}",
        ),
        _HANGS,
    ),
    (
        Mutation(
            "finish removals elsewhere before the job's own",
            CheckpointStore.retain,
            "self._finish_removals(is_elsewhere=False)",
            "self._finish_removals(is_elsewhere=False); self._finish_removals(is_elsewhere=True)",
        ),
        "tests/unit/durable/test_checkpoint_store_failures.py",
    ),
    (
        Mutation(
            "wait for a thread that was never started",
            CheckpointWork._not_carried_out,
            "self._run.not_pinned(effect.query, error, time.monotonic())",
            "pass",
        ),
        _WORK,
    ),
    (
        Mutation(
            "wait for metadata that could not be made",
            CheckpointWork._not_carried_out,
            "self._run.not_written(error, time.monotonic())",
            "pass",
        ),
        _WORK,
    ),
    (
        Mutation("claim for a driver that was replaced", CheckpointWork._claim, "self._store.verify()", "pass"),
        _WORK,
    ),
    (
        Mutation(
            "let the core fail a checkpoint without saying which cut",
            PendingCheckpoints.fail,
            "pending.barrier",
            "BarrierId(0)",
        ),
        _CORE,
    ),
    (
        Mutation(
            "wait for the next commit of a query that has ended",
            CheckpointWork._cut,
            "query.has_operators and query.is_active",
            "query.has_operators",
        ),
        _ENDED,
    ),
    (
        Mutation(
            "take no checkpoint unless a query runs",
            CheckpointService._follow_queries,
            "QueryState.RESTARTING not in states",
            "QueryState.RUNNING in states",
        ),
        _ENDED,
    ),
    (
        Mutation(
            "report an unreadable storage with each look at it",
            CheckpointService._storage_failed,
            "if self._outage.failed(time.monotonic()):",
            "self._outage.failed(time.monotonic())\n    if True:",
        ),
        _UNREADABLE,
    ),
    (
        Mutation(
            "let no checkpoint expire while the storage cannot be read",
            CheckpointService._tick,
            "self._scheduler.tick(time.monotonic())",
            "self._outage.is_on or self._scheduler.tick(time.monotonic())",
        ),
        _UNREADABLE,
    ),
)
