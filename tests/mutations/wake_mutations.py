"""The rules of waking subtasks without rows, each left out or turned round."""

from __future__ import annotations

from typing import Final

from coord_control.durable.job_folder import lineage
from coord_control.protocol.job import JobCore
from coord_control.protocol.operator import OperatorRun
from coord_control.spark.wake import waker
from coord_control.spark.wake.waker import Waker
from coord_control.spark.worker.chunks import ArrowChunks, PandasChunks
from tests.mutations.mutation import Mutation

__all__ = ["TESTED_WAKE_MUTATIONS", "WAKE_MUTATIONS"]

#: The simulation notices them.
WAKE_MUTATIONS: Final[tuple[Mutation, ...]] = (
    Mutation(
        "do not say that a coordinator's event waits",
        JobCore.send,
        "operator.say_waiting((subtask,), self._batch)",
        "pass",
    ),
    Mutation(
        "say once and for all that events wait",
        OperatorRun.to_wake,
        "self._is_waiting_said = False",
        "pass",
    ),
    Mutation(
        "wake every subtask",
        OperatorRun.to_wake,
        "if self._has_mail(subtask) or subtask in returning",
        "",
    ),
)

_OPERATOR: Final = "tests/unit/protocol/test_operator_waking.py"
_WAKER: Final = "tests/unit/spark/test_waker.py"
_CHUNKS: Final = "tests/unit/spark/test_chunks.py"
_LINEAGE: Final = "tests/unit/durable/test_lineage.py"

#: Each with the tests that catch it.
TESTED_WAKE_MUTATIONS: Final[tuple[tuple[Mutation, str], ...]] = (
    (
        Mutation(
            "do not say that a control event waits for a record",
            OperatorRun.control_event,
            "self.say_waiting((), batch)",
            "pass",
        ),
        _OPERATOR,
    ),
    (
        Mutation(
            "wake nobody for a record",
            OperatorRun.to_wake,
            "(SubtaskIndex(0),) if self.has_unrecorded_event else ()",
            "()",
        ),
        _OPERATOR,
    ),
    (
        Mutation(
            "do not say what waits when a subtask has acknowledged",
            OperatorRun.acknowledge,
            "self.say_waiting((attempt.subtask,), batch)",
            "pass",
        ),
        _OPERATOR,
    ),
    (
        Mutation(
            "do not say what waits when an epoch is settled",
            OperatorRun.settle,
            "self.say_waiting(self._all, batch)",
            "pass",
        ),
        _OPERATOR,
    ),
    (
        Mutation(
            "wake again whom the last epoch has brought its events",
            OperatorRun.to_wake,
            "self.epoch.returned()",
            "self.epoch.inputs",
        ),
        _OPERATOR,
    ),
    (
        Mutation(
            "do not say what waits when a checkpoint is aborted",
            OperatorRun.abort,
            "self.say_waiting(self._all, batch)",
            "pass",
        ),
        _OPERATOR,
    ),
    (
        Mutation(
            "do not say what waits when a run starts",
            JobCore.start_run,
            "self._operators[uid].say_waiting(map(SubtaskIndex, range(spec.parallelism)), self._batch)",
            "pass",
        ),
        _OPERATOR,
    ),
    (
        Mutation(
            "let inputs that no attempt has taken wait for the end of the epoch to be known",
            OperatorRun.to_wake,
            "{} if self.epoch is None else self.epoch.returned()",
            "{}",
        ),
        _OPERATOR,
    ),
    (
        Mutation("say it of operators that are not to be woken", OperatorRun.say_waiting, "not self.spec.wake or", ""),
        _OPERATOR,
    ),
    (
        Mutation(
            "wake subtasks for a run that has ended",
            JobCore.to_wake,
            "and run not in self._query_of[uid].ended_runs",
            "",
        ),
        _OPERATOR,
    ),
    (Mutation("wake without a check of the generation", waker._to_wake, "is_answer=True", "is_answer=False"), _WAKER),
    (
        Mutation(
            "wake nothing more once the storage did not answer",
            waker._to_wake,
            "return None",
            "return ()",
        ),
        _WAKER,
    ),
    (Mutation("wake after the end of the job", Waker.close, "wake_source.forget(key)", "pass"), _WAKER),
    (
        Mutation(
            "give the user's function rows that only wake it",
            ArrowChunks.own_rows,
            "return rows.filter(is_first if first == subtask else compute.invert(is_first))",
            "return rows",
        ),
        _CHUNKS,
    ),
    (
        Mutation(
            "give the user's function rows in pandas that only wake it",
            PandasChunks.own_rows,
            "return chunk[is_own].reset_index(drop=True) if",
            "return chunk if",
        ),
        _CHUNKS,
    ),
    (
        Mutation(
            "let an operator that has run be declared with or without wake",
            lineage._check_wake,
            "sorted(before ^ now)",
            "[]",
        ),
        _LINEAGE,
    ),
)
