"""The rules of triggered checkpoints and of restoring from them, each left out or turned round."""

from __future__ import annotations

from typing import Final

from coord_control.protocol import cut, recovery, statistics
from coord_control.protocol.channel import OperatorChannel
from coord_control.protocol.checkpoint import PendingCheckpoints
from coord_control.protocol.cut import PendingCut
from coord_control.protocol.job import JobCore
from coord_control.protocol.operator import OperatorRun
from tests.mutations.mutation import Mutation

__all__ = ["CHECKPOINT_MUTATIONS"]

CHECKPOINT_MUTATIONS: Final[tuple[Mutation, ...]] = (
    Mutation(
        "deliver outboxes while the coordinator owes its state",
        OperatorRun._tell,
        "(batch.notices if self.channel.asked is None else self._deferred)",
        "batch.notices",
    ),
    Mutation(
        "forget what was to be told when the coordinator has answered",
        OperatorRun._catch_up,
        "batch.notices += self._deferred",
        "pass",
    ),
    Mutation(
        "ask for the next state before telling what was held back",
        OperatorRun.snapshot_completed,
        "self._catch_up(batch)\n    self._ask(self.channel.next_phase(now), now, batch)",
        "self._ask(self.channel.next_phase(now), now, batch)\n"
        "    batch.notices += self._deferred\n"
        "    self._deferred = []",
    ),
    Mutation(
        "forget what a checkpoint holds back when an epoch begins",
        OperatorRun._begin,
        "barrier, state, inputs, held)",
        "barrier, state, inputs)",
    ),
    Mutation(
        "forget what was held back when its epoch is run again",
        recovery.recover,
        "(), begin.held, replay)",
        "(), {}, replay)",
    ),
    Mutation(
        "forget what was held back when its epoch is committed",
        recovery.recover,
        "in_sequence(unconsumed, begin.held)",
        "unconsumed",
    ),
    Mutation("forget upward channel state", PendingCut.settled, "self.up += outboxes", "pass"),
    Mutation(
        "keep outboxes that the coordinator had seen when it was asked",
        PendingCut.settled,
        "self.asked_at is not None and ",
        "",
    ),
    Mutation("forget downward channel state", PendingCut.passes, "if gateway.mailbox:", "if False:"),
    Mutation(
        "record the mailbox after opening",
        PendingCut.passes,
        "if gateway.mailbox:",
        "gateway.open(self.barrier, now)\n    if gateway.mailbox:",
    ),
    Mutation(
        "open for a checkpoint at its coordinator's answer",
        OperatorRun.snapshot_completed,
        "cut.answered(state, now)",
        "cut.answered(state, now)\n"
        "        for index, gateway in enumerate(self.channel.gateways):\n"
        "            cut.passes(index, gateway, now)",
    ),
    Mutation(
        "do not open for a checkpoint at the ack of its boundary",
        OperatorRun._open,
        "if cut.boundary <= epoch.epoch:",
        "if False:",
    ),
    Mutation(
        "open for the newest checkpoint first",
        OperatorRun._open,
        "for cut in self.cuts.values():",
        "for cut in reversed(self.cuts.values()):",
    ),
    Mutation(
        "forget subtasks that acknowledged before their coordinator answered",
        OperatorRun._pass_late,
        "if is_over or (epoch is not None and epoch.has_passed(SubtaskIndex(subtask))):",
        "if is_over:",
    ),
    Mutation(
        "capture before the boundary is committed",
        OperatorRun._pass_late,
        "cut.boundary <= self.committed",
        "True",
    ),
    Mutation(
        "cut at the last commit although an epoch is under way",
        JobCore._boundary,
        "max([query.committed, *epochs])",
        "query.committed",
    ),
    Mutation(
        "cut each operator at an epoch of its own",
        PendingCheckpoints.trigger,
        "PendingCut(checkpoint, barrier, boundary, now)",
        "PendingCut(checkpoint, barrier, operator.epoch.epoch if operator.epoch else operator.committed, now)",
    ),
    Mutation(
        "announce a query when one of its operators is captured",
        PendingCheckpoints.collect,
        "if len(captured) < len(cuts):",
        "if not captured:",
    ),
    Mutation(
        "let a late answer end the question of another barrier",
        OperatorChannel.answered,
        "if barrier != self._asked:",
        "if False:",
    ),
    Mutation(
        "wait for the answer of an aborted barrier",
        OperatorChannel.abort,
        "if barrier == self._asked:",
        "if False:",
    ),
    Mutation(
        "tell coordinators of an abort that they were not asked for",
        OperatorRun.abort,
        "if cut is None or cut.asked_at is not None:",
        "if True:",
    ),
    Mutation(
        "measure a checkpoint that is given up when its gateways are open again",
        PendingCheckpoints.abort,
        "return measured",
        "return pending.measured(now)",
    ),
    Mutation(
        "keep of a checkpoint that is given up only the subtasks that have passed",
        statistics.statistics_so_far,
        "for each in subtasks\n",
        "for each in subtasks if each.passed_seconds is not None\n",
    ),
    Mutation(
        "fail the query when a coordinator is too slow for a checkpoint",
        JobCore.tick,
        "if (checkpoint := self._checkpoints.of_barrier(barrier)) is None:",
        "if (checkpoint := None) is None:",
    ),
    Mutation(
        "fail the query when a coordinator refuses its state for a checkpoint",
        JobCore.snapshot_failed,
        "if (checkpoint := self._checkpoints.of_barrier(barrier)) is not None:",
        "if (checkpoint := None) is not None:",
    ),
    Mutation(
        "let a checkpoint go on when a query of it restarts",
        PendingCheckpoints.run_ended,
        "if query in pending.cuts:",
        "if False:",
    ),
    Mutation(
        "tell a restarted operator how an older checkpoint has ended",
        PendingCheckpoints.run_ended,
        "pending.operators.pop(uid, None)",
        "pass",
    ),
    Mutation(
        "keep checkpoints whose records are lost",
        PendingCheckpoints.fail_all,
        "self._checkpoints.clear()",
        "pass",
    ),
    Mutation(
        "leave the planned epoch out of the cut of a query that does not run",
        cut.cut_of,
        "replay=recovered.replay",
        "replay=None",
    ),
    Mutation(
        "leave what coordinators have not seen out of an offline savepoint",
        cut.cut_of,
        "up=recovered.undelivered",
        "up=()",
    ),
    Mutation("restore without downward channel state", cut.seed, "{}, waiting)", "{})"),
    Mutation(
        "restore a planned epoch without its begin record",
        cut.seed,
        "if cut.replay.barrier is not None:",
        "if False:",
    ),
    Mutation(
        "restore a planned epoch without what was acknowledged in it",
        cut.seed,
        "in sorted(cut.replay.acks.items()):",
        "in ():",
    ),
    Mutation(
        "restore a planned epoch without what waits behind its inputs",
        cut.seed,
        "inputs, held)\n",
        "inputs)\n",
    ),
    Mutation(
        "forget the inputs of a restored epoch whose plan is lost in a power cut",
        cut.seed,
        "in_sequence(inputs, held)",
        "held",
    ),
    Mutation("restore without upward channel state", cut.seed, "cut.states[subtask], events)", "cut.states[subtask])"),
    Mutation(
        "restore subtasks only that have sent something",
        cut.seed,
        "for subtask in sorted(cut.states):",
        "for subtask in sorted(outboxes):",
    ),
)
