"""The rules of requests from outside, each left out or turned round: those of the protocol, and those of the driver."""

from __future__ import annotations

from typing import Final

from coord_control.control.commands.ask import Ask, AskExecution
from coord_control.coordinators.stateful import SnapshotCoordinator
from coord_control.protocol.job import JobCore
from coord_control.protocol.operator import OperatorRun
from coord_control.spark.loop.bound_coordinator import BoundCoordinator
from coord_control.spark.loop.coordinator_context import Context
from coord_control.spark.loop.request_types import RequestTypes
from tests.mutations.mutation import Mutation

__all__ = ["REQUEST_MUTATIONS", "TESTED_REQUEST_MUTATIONS"]

REQUEST_MUTATIONS: Final[tuple[Mutation, ...]] = (
    Mutation(
        "hand requests over to a coordinator whose query has failed",
        JobCore._runs,
        "uid in self._operators and self._query_of[uid].running",
        "uid in self._operators",
    ),
    Mutation(
        "show states of subtasks that are acknowledged and not committed",
        OperatorRun.committed_states,
        "self.states.get(each)",
        "next((a.state for s, _, a in (self.epoch.acked() if self.epoch else ()) if s == each), self.states.get(each))",
    ),
    Mutation(
        "show the state that the coordinator was at before its newest record",
        OperatorRun._begin,
        "self._recorded_state, self._delivered_since = state, False",
        "self._delivered_since = False",
    ),
)

_DRIVER: Final = "tests/unit/spark/test_requests.py"
_ASK: Final = "tests/unit/control/test_ask.py"

#: Each with the tests that catch it.
TESTED_REQUEST_MUTATIONS: Final[tuple[tuple[Mutation, str], ...]] = (
    (
        Mutation(
            "handle requests without asking the core whether a run exists",
            BoundCoordinator._look_at_requests,
            "self.post(lambda core, now: core.requested(self.uid))",
            "self.handle_requests()",
        ),
        f"{_DRIVER}::test_a_request_between_two_runs_is_answered_behind_the_reset",
    ),
    (
        Mutation(
            "hand a request over at once, and not with the batches of the core",
            BoundCoordinator._look_at_requests,
            "self.post(lambda core, now: core.requested(self.uid))",
            "self.post(lambda core, now: core._runs(self.uid) and self.handle_requests())",
        ),
        f"{_DRIVER}::test_a_request_that_comes_while_the_next_run_is_made_durable_is_answered_behind_the_reset",
    ),
    (
        Mutation(
            "do not come back to the requests that have waited for a run",
            BoundCoordinator.start,
            "self._look_at_requests()",
            "pass",
        ),
        f"{_DRIVER}::test_a_request_before_the_query_waits_for_its_start",
    ),
    (
        Mutation(
            "let a coordinator that has failed answer",
            BoundCoordinator._answer_next,
            "context.is_usable and ",
            "",
        ),
        f"{_DRIVER}::test_a_request_behind_a_callback_that_fails_waits_for_the_reset",
    ),
    (
        Mutation(
            "let a request have an effect",
            Context._check_may,
            "self._is_asked and ",
            "False and ",
        ),
        f"{_DRIVER}::test_a_request_has_no_effect",
    ),
    (
        Mutation(
            "let a request add to what another thread sends",
            Context.send,
            "self._looks_at_sends or ",
            "",
        ),
        f"{_DRIVER}::test_a_request_cannot_add_to_what_another_thread_sends",
    ),
    (
        Mutation(
            "leave the state as a request has changed it",
            SnapshotCoordinator.answer_request,
            "self.restore(before)",
            "pass",
        ),
        f"{_DRIVER}::test_a_request_that_changes_the_state_is_refused_and_the_state_is_as_before",
    ),
    (
        Mutation(
            "continue with a state that could not be put back",
            BoundCoordinator._answer,
            "isinstance(error, StateNotPutBack)",
            "False",
        ),
        f"{_DRIVER}::test_a_state_that_cannot_be_put_back_fails_the_query",
    ),
    (
        Mutation("let an answer have any size", RequestTypes.answer, "len(data) > MAX_ANSWER_BYTES", "False"),
        f"{_DRIVER}::test_what_is_no_answer_is_not_given",
    ),
    (
        Mutation("keep a request that has expired", AskExecution.poll, "self._answer.cancel()", "pass"),
        f"{_ASK}::test_a_question_that_has_waited_too_long_is_refused",
    ),
    (
        Mutation(
            "answer a request whose driver has died after its time", Ask.take_over, "command.expires_at <= now", "False"
        ),
        f"{_ASK}::test_a_question_whose_driver_has_died_is_not_answered_after_its_time",
    ),
    (
        Mutation(
            "fail a request that cannot be answered yet",
            AskExecution.poll,
            "isinstance(error, NotAnswered)",
            "False",
        ),
        f"{_ASK}::test_a_question_waits_until_the_operator_can_answer",
    ),
)
