"""The rules of control events from outside, each left out or turned round."""

from __future__ import annotations

from typing import Final

from coord_control.protocol.control_events import EventFeed, Seal
from coord_control.protocol.job import JobCore
from coord_control.protocol.operator import OperatorRun
from tests.mutations.mutation import Mutation

__all__ = ["CONTROL_MUTATIONS"]

CONTROL_MUTATIONS: Final[tuple[Mutation, ...]] = (
    Mutation(
        "leave the number of the last event from outside out of the snapshot",
        OperatorRun.snapshot_completed,
        "self._seal.seal(data)",
        "data",
    ),
    Mutation(
        "take the number when the coordinator is asked, not when it answers",
        OperatorRun.control_event,
        "self._seal.mark(number, refused)",
        "if self.channel.asked is None: self._seal.mark(number, refused)",
    ),
    Mutation(
        "let marks of an incarnation that is over count",
        JobCore.control_event,
        "self._current(uid, incarnation)",
        "self._operators.get(uid)",
    ),
    Mutation(
        "apply events again without comparing numbers",
        EventFeed.recovered,
        "if each.number > number",
        "if True",
    ),
    Mutation("do not apply events again", EventFeed.recovered, "(*self._again, *self._waiting)", "self._waiting"),
    Mutation(
        "leave the refused events out of the snapshot",
        OperatorRun.control_event,
        "self._seal.mark(number, refused)",
        "self._seal.mark(number)",
    ),
    Mutation(
        "forget what was refused with the incarnation",
        EventFeed.recovered,
        "self._refused.update(refused)",
        "self._refused = set(refused)",
    ),
    Mutation(
        "forget what an earlier driver has refused",
        JobCore.start_run,
        "seal.number, seal.refused",
        "seal.number",
    ),
    Mutation(
        "begin every incarnation without the refusals that are recorded",
        JobCore.start_run,
        "Seal(self._job, sealed[uid].numbers, sealed[uid].refused)",
        "Seal(self._job, sealed[uid].numbers)",
    ),
    Mutation(
        "apply refused events again",
        EventFeed.refuse,
        "if each.number != number",
        "if True",
    ),
    Mutation(
        "accept an event twice",
        EventFeed.accept,
        "number <= max(self._newest, self._applied)",
        "number <= self._applied",
    ),
    Mutation(
        "forget an event when it is applied",
        EventFeed.take,
        "self._again.append(taken)",
        "pass",
    ),
    Mutation(
        "take a checkpoint for something that the job recovers from",
        OperatorRun.snapshot_completed,
        "cut.answered(state, now)",
        "cut.answered(state, now)\n"
        "        batch.notices.append(messages.EventsDurable(self.spec.uid, self._seal.number))",
    ),
    Mutation(
        "count the events of other jobs as one's own",
        vars(Seal)["number"].fget,
        "self._numbers.get(self._job, 0)",
        "max(self._numbers.values(), default=0)",
    ),
    Mutation(
        "begin every incarnation at number 0",
        JobCore.start_run,
        "Seal(self._job, sealed[uid].numbers, sealed[uid].refused)",
        "Seal(self._job)",
    ),
    Mutation(
        "save the begin record although only the number is another one",
        OperatorRun._begin,
        "state != self._recorded_state",
        'state.partition(b"\\n")[2] != (self._recorded_state or b"").partition(b"\\n")[2]',
    ),
)
