"""The rules of live values, each left out or turned round."""

from __future__ import annotations

from typing import Final

from coord_control.control.commands.set_live import LiveExecution
from coord_control.durable.restore import live_log, seeds
from coord_control.durable.restore.live_log import LiveLog
from coord_control.protocol import live_epochs, liveness
from coord_control.protocol.job import JobCore
from coord_control.protocol.live_epochs import LiveEpochs
from coord_control.protocol.recovery import History
from coord_control.spark.live.live_values import LiveValues
from coord_control.spark.loop.group_writer import GroupWriter
from coord_control.spark.loop.runtime import JobRuntime
from tests.mutations.mutation import Mutation

__all__ = ["LIVE_MUTATIONS", "TESTED_LIVE_MUTATIONS"]

#: The simulation notices them.
LIVE_MUTATIONS: Final[tuple[Mutation, ...]] = (
    Mutation(
        "give an epoch that is planned again what is accepted by then",
        LiveEpochs.freeze,
        "self._values if epoch == self._newest and self._is_open else {}",
        "{}",
    ),
    Mutation(
        "do not record what an epoch has frozen",
        JobCore.freeze,
        "if record is not None:",
        "if False:",
    ),
    Mutation(
        "forget what the planned epoch has frozen",
        live_epochs.recover_live,
        "if epoch <= facts.planned",
        "if epoch <= facts.committed",
    ),
    Mutation(
        "record the first values of a query only",
        LiveEpochs.freeze,
        "if values.items() <= self._values.items():",
        "if self._values:",
    ),
    Mutation(
        "record the live values of every epoch",
        LiveEpochs.freeze,
        "if values.items() <= self._values.items():",
        "if False:",
    ),
    Mutation(
        "drop the values of a query from the log that is compacted",
        liveness._thinned,
        "return record.epoch == frozen",
        "return False",
    ),
    Mutation(
        "drop the changes of live values from the log that is compacted",
        liveness.live,
        "*_newest_changes(changes), ",
        "",
    ),
)

_CORE: Final = "tests/unit/protocol/test_live_epochs.py"
_LOG: Final = "tests/unit/durable/test_live_log.py"
_VALUES: Final = "tests/unit/spark/test_live_values.py"

#: Each with the tests that catch it.
TESTED_LIVE_MUTATIONS: Final[tuple[tuple[Mutation, str], ...]] = (
    (
        Mutation(
            "answer epochs of a run that has ended",
            JobCore.freeze,
            "not query.running or run in query.ended_runs",
            "not query.running",
        ),
        _CORE,
    ),
    (Mutation("answer an epoch that is over", LiveEpochs.freeze, "epoch < self._newest or ", ""), _CORE),
    (
        Mutation(
            "let values count that were frozen for an epoch that Spark has lost",
            History._void,
            "for epoch in [epoch for epoch in self.frozen if epoch > marker.planned]:",
            "for epoch in []:",
        ),
        _CORE,
    ),
    (
        Mutation(
            "let changes from before a restore count",
            live_log._standing,
            "if change.restore == number}",
            "}",
        ),
        _LOG,
    ),
    (
        Mutation(
            "give versions anew after a restore",
            LiveLog._next_version,
            "if change.name == name]",
            "if change.name == name and change.restore == self._restore]",
        ),
        _LOG,
    ),
    (
        Mutation(
            "carry a request out again although its change is durable",
            LiveLog.change,
            "if (before := self.find(key)) is not None:",
            "if False:",
        ),
        _LOG,
    ),
    (
        Mutation(
            "leave the live values of a planned epoch out of a restored lineage",
            seeds._write,
            "if (live := metadata.queries[lineage.query].planned_live) is not None:",
            "if False:",
        ),
        "tests/unit/durable/test_seeds.py",
    ),
    (Mutation("accept a change of a driver that was replaced", LiveValues._durable, "self._verify()", "pass"), _VALUES),
    (
        Mutation(
            "give up a change of which is not known whether it is durable",
            LiveValues._durable,
            "if self._is_closed.wait(_RETRY_SECONDS):",
            "if True:",
        ),
        _VALUES,
    ),
    (
        Mutation(
            "change a live value whatever version it has",
            LiveValues._change,
            "request.expect is not None and request.expect != before.version",
            "False",
        ),
        _VALUES,
    ),
    (
        Mutation(
            "answer an epoch that has written nothing on an old check of the generation",
            JobRuntime._submit,
            "answers = is_answer or bool(batch.answers)",
            "answers = bool(batch.answers)",
        ),
        _VALUES,
    ),
    (
        Mutation(
            "do not check the generation before an epoch is answered",
            GroupWriter._persist,
            "work.batch.answers or work.is_answer",
            "work.batch.answers",
        ),
        _VALUES,
    ),
    (
        Mutation(
            "make a second change when a driver takes a command over",
            LiveExecution.begin,
            "self._command.id, self._command.requested_by",
            "'', self._command.requested_by",
        ),
        "tests/unit/control/test_agent_live.py",
    ),
)
