"""Requests from outside: when a coordinator is given them, what comes back, and that they change nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from pydantic import BaseModel, JsonValue

from coord_control.coordinators import BroadcastConfig, Request, SnapshotCoordinator, StatefulCoordinator
from coord_control.coordinators.requests import MAX_ANSWER_BYTES, CommittedStates
from coord_control.errors import (
    EffectOfRequest,
    InvalidModel,
    NotAnswered,
    RequestFailed,
    RequestNotValid,
    StateNotPutBack,
    UndeclaredRequest,
)
from coord_control.ids import RunId
from coord_control.spark.loop.request_queue import MAX_WAITING
from coord_control.spark.loop.request_types import RequestTypes
from tests.core_kit import OP, QUERY
from tests.patience import SECONDS
from tests.unit.spark.coordinator_kit import (
    Ask,
    CoordinatorRig,
    Number,
    Recorder,
    assert_met,
    assert_set,
    boom,
    on_another_thread,
)


def ask(rig: CoordinatorRig, plus: int = 0) -> Future[JsonValue]:
    return rig.bound.request(Ask(plus=plus))


def end_run(rig: CoordinatorRig) -> None:
    rig.runtime.call(lambda core, now: core.end_run(QUERY, RunId("run-1"), now))


def rig_of(coordinator: Any) -> Iterator[CoordinatorRig]:
    rig = CoordinatorRig(coordinator)
    rig.start()
    yield rig
    rig.close()


# When.


def test_a_request_is_answered_on_the_thread_of_the_coordinators(rig: CoordinatorRig) -> None:
    rig.start()
    assert ask(rig, 4).result(SECONDS) == {"value": 5}
    assert rig.coordinator.calls == [("start",), ("handle_request", 4)]
    assert rig.coordinator.threads == {"coord-coordinators"}
    rig.assert_no_failure()


def test_requests_are_answered_in_their_order(rig: CoordinatorRig) -> None:
    rig.start()
    with rig.busy_loop():
        asked = [ask(rig, plus) for plus in range(5)]
    assert [each.result(SECONDS) for each in asked] == [{"value": plus + 1} for plus in range(5)]


def test_a_request_before_the_query_waits_for_its_start(rig: CoordinatorRig) -> None:
    early = ask(rig)
    rig.settle()
    assert not early.done()
    rig.start()
    assert early.result(SECONDS) == {"value": 1}
    assert rig.coordinator.names == ["start", "handle_request"]


def test_a_request_between_two_runs_is_answered_behind_the_reset(rig: CoordinatorRig) -> None:
    rig.start()
    rig.settle()
    end_run(rig)
    late = ask(rig)
    rig.settle()
    assert not late.done(), "the state that it would speak of goes back"
    rig.start()
    assert late.result(SECONDS) == {"value": 1}
    assert rig.coordinator.names == ["start", "reset_to_checkpoint", "handle_request"]


def test_a_request_that_comes_while_the_next_run_is_made_durable_is_answered_behind_the_reset(
    rig: CoordinatorRig,
) -> None:
    rig.start()
    rig.hello(0, 0, task=1).answered()  # voided by a record of the next run: Spark has not planned it
    rig.settle()
    writing, written = threading.Event(), threading.Event()
    append = rig.append

    def slow(*arguments: Any) -> None:
        writing.set()
        assert_set(written)
        append(*arguments)

    rig.append = slow  # type: ignore[method-assign,assignment]
    end_run(rig)
    restart = threading.Thread(target=rig.start)
    restart.start()
    assert_set(writing)
    asked = ask(rig)
    rig.runtime.read(lambda core, now: None, SECONDS)
    assert rig.thread.drain(SECONDS)
    was_early = asked.done()
    written.set()
    restart.join(SECONDS)
    assert not was_early
    assert asked.result(SECONDS) == {"value": 1}
    assert rig.coordinator.names[-2:] == ["reset_to_checkpoint", "handle_request"]


def test_a_coordinator_that_has_failed_answers_after_its_reset(rig: CoordinatorRig) -> None:
    rig.coordinator.then["handle_event_from_operator"] = boom
    rig.start()
    rig.hello(0, 0, task=1).answered()
    rig.ack(0, 0, 1, 7)
    rig.commit(0)
    rig.failure()
    asked = ask(rig)
    rig.settle()
    assert not asked.done()
    del rig.coordinator.then["handle_event_from_operator"]
    rig.restart(planned=0)
    assert asked.result(SECONDS) == {"value": 1}


def test_a_request_behind_a_callback_that_fails_waits_for_the_reset(rig: CoordinatorRig) -> None:
    begun, is_queued = threading.Event(), threading.Event()

    def fail_late(*arguments: object) -> None:
        begun.set()
        assert_set(is_queued)
        boom()

    rig.coordinator.then["handle_event_from_operator"] = fail_late
    rig.start()
    rig.hello(0, 0, task=1).answered()
    rig.ack(0, 0, 1, 7)
    rig.commit(0)
    assert_set(begun)
    asked = ask(rig)
    for _ in range(2):  # the loop has asked the core, and has submitted the request to the coordinator's thread
        rig.runtime.call(lambda core, now: None)
    is_queued.set()
    rig.failure()
    rig.settle()
    assert not asked.done()
    del rig.coordinator.then["handle_event_from_operator"]
    rig.restart(planned=0)
    assert asked.result(SECONDS) == {"value": 1}


def test_a_request_that_was_withdrawn_is_not_handled(rig: CoordinatorRig) -> None:
    asked = ask(rig, 1)
    assert asked.cancel()
    kept = ask(rig, 2)
    rig.start()
    assert kept.result(SECONDS) == {"value": 3}
    assert rig.coordinator.calls == [("start",), ("handle_request", 2)]


def test_only_so_many_requests_wait(rig: CoordinatorRig) -> None:
    waiting = [ask(rig) for _ in range(MAX_WAITING)]
    with pytest.raises(NotAnswered, match=f"{MAX_WAITING} requests wait") as refused:
        ask(rig)
    assert refused.value.retry
    waiting[0].cancel()
    last = ask(rig, 1)
    rig.start()
    assert last.result(SECONDS) == {"value": 2}


# What comes back.


def test_a_request_that_raises_fails_alone(rig: CoordinatorRig) -> None:
    rig.coordinator.then["handle_request"] = boom
    rig.start()
    error = ask(rig).exception(SECONDS)
    assert isinstance(error, RequestFailed)
    assert "RuntimeError: boom" in str(error)
    del rig.coordinator.then["handle_request"]
    assert ask(rig).result(SECONDS) == {"value": 1}
    rig.assert_no_failure()


class Text(BaseModel):
    text: str
    seconds: float = 0.0
    most: float | None = None


class Say(Request[Text]):
    answer: str = "text"


class Sayer(Recorder):
    def handle_request(self, request: Any) -> Any:
        answers: dict[str, Any] = {
            "long": Text(text="x" * MAX_ANSWER_BYTES),
            "another": Number(value=1),
            "broken": Text.model_construct(text=1),
            "infinite": Text(text="", seconds=float("inf")),
            "limitless": Text(text="", most=float("inf")),
        }
        return answers[request.answer]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("long", "takes .* bytes, the limit is 262144; answer in pages"),
        ("another", "it returned Number, not Text"),
        ("broken", "Text"),
        ("infinite", "seconds"),
        ("limitless", "its Text cannot be sent: field most: JSON has no form for infinity"),
    ],
)
def test_what_is_no_answer_is_not_given(answer: str, why: str) -> None:
    types = RequestTypes(OP, [Say])
    request = types.parse("Say", {"answer": answer})
    with pytest.raises(RequestFailed, match=why):
        types.answer(request, Sayer().handle_request(request))


def test_a_coordinator_that_handles_none_says_so(rig: CoordinatorRig) -> None:
    for plain in rig_of(StatefulCoordinator(Number(value=1))):
        error = ask(plain).exception(SECONDS)
        assert "StatefulCoordinator has no handle_request" in str(error)


# Declarations.


def test_a_request_is_found_by_its_name_and_parsed() -> None:
    types = RequestTypes(OP, [Ask, Say])
    assert types.parse("Ask", {"plus": 3}) == Ask(plus=3)
    assert isinstance(types.parse("CommittedStates", {}), CommittedStates)
    assert [(each.name, each.schema["title"], each.answer["title"]) for each in types.schemas()] == [
        ("Ask", "Ask", "Number"),
        ("Say", "Say", "Text"),
    ]
    with pytest.raises(UndeclaredRequest, match=r"only \['Ask', 'Say'\].* did you mean Say"):
        types.parse("Sayy", {})
    with pytest.raises(RequestNotValid, match="plus") as refused:
        types.parse("Ask", {"plus": "many"})
    assert refused.value.fields[0]["loc"] == ["plus"]


def test_what_is_no_request_is_refused() -> None:
    class Nameless(Request):  # type: ignore[type-arg]
        pass

    class CommittedStates(Request[Number]):
        pass

    for model, why in (
        (Number, "subclasses of cc.Request"),
        (Nameless, "does not name its answer"),
        (CommittedStates, "another request of the operator has this name"),
    ):
        with pytest.raises(InvalidModel, match=why):
            RequestTypes(OP, [model])  # type: ignore[list-item]


# No effect.


@pytest.mark.parametrize(
    "act",
    [
        lambda context: context.send(0, Number(value=9)),
        lambda context: context.broadcast(Number(value=9)),
        lambda context: context.call_soon(boom),
        lambda context: context.run_in_background(boom),
        lambda context: context.fail_job(RuntimeError("boom")),
    ],
)
def test_a_request_has_no_effect(rig: CoordinatorRig, act: Any) -> None:
    rig.coordinator.then["handle_request"] = lambda plus: act(rig.coordinator.context)
    rig.start()
    error = ask(rig).exception(SECONDS)
    assert isinstance(error, EffectOfRequest), error
    rig.assert_no_failure()
    assert rig.hello(0, 0, task=1).inputs() == []


def test_a_request_cannot_add_to_what_another_thread_sends(rig: CoordinatorRig) -> None:
    rig.start()
    rig.settle()
    context = rig.coordinator.context

    def handle(plus: int) -> None:
        with rig.busy_loop():  # what another thread has sent is still being gathered
            on_another_thread(lambda: context.send(0, Number(value=1)))
            with pytest.raises(EffectOfRequest):
                context.send(0, Number(value=9))

    rig.coordinator.then["handle_request"] = handle
    assert ask(rig).result(SECONDS) == {"value": 1}
    rig.settle()
    assert rig.hello(0, 0, task=1).inputs() == [1]


class Changer(StatefulCoordinator[Number]):
    def handle_request(self, request: Ask) -> Number:
        self.state.value += request.plus
        return Number(value=self.state.value)


class Raw(SnapshotCoordinator):
    def __init__(self) -> None:
        self.data, self.is_stuck = b"begin", False

    def snapshot(self) -> bytes:
        return self.data

    def restore(self, data: bytes | None) -> None:
        if self.is_stuck:
            raise RuntimeError("stuck")
        self.data = data or b"begin"

    def handle_request(self, request: Ask) -> Number:
        self.data += b"x" * request.plus
        return Number(value=len(self.data))


def test_a_request_that_changes_the_state_is_refused_and_the_state_is_as_before() -> None:
    for coordinator in (Changer(Number(value=1)), Raw()):
        for rig in rig_of(coordinator):
            before = coordinator.snapshot()
            error = ask(rig, 3).exception(SECONDS)
            assert isinstance(error, EffectOfRequest)
            assert "change the state" in str(error)
            assert coordinator.snapshot() == before
            assert ask(rig, 0).exception(SECONDS) is None
            rig.assert_no_failure()


def test_a_state_that_cannot_be_put_back_fails_the_query() -> None:
    coordinator = Raw()
    for rig in rig_of(coordinator):
        rig.settle()
        coordinator.is_stuck = True
        assert isinstance(ask(rig, 3).exception(SECONDS), StateNotPutBack)
        assert "restore() failed" in str(rig.failure())


def test_an_update_of_another_thread_is_not_taken_for_one_of_the_request() -> None:
    asked, updated = threading.Barrier(2), threading.Event()

    class Config(BroadcastConfig[Number]):
        def handle_request(self, request: Ask) -> Number:
            assert_met(asked)
            updated.wait(0.05)
            return self.current

    config = Config(Number(value=1))

    def update() -> None:
        config.update(Number(value=2))
        updated.set()

    for rig in rig_of(config):
        rig.settle()
        answer = ask(rig)
        assert_met(asked)
        on_another_thread(update)
        assert answer.result(SECONDS) == {"value": 1}
        assert config.current == Number(value=2)
        rig.assert_no_failure()


def test_a_configuration_is_not_updated_by_a_request() -> None:
    class Config(BroadcastConfig[Number]):
        def handle_request(self, request: Ask) -> Number:
            self.update(Number(value=9))
            return self.current

    config = Config(Number(value=1))
    for rig in rig_of(config):
        assert isinstance(ask(rig).exception(SECONDS), EffectOfRequest)
        assert config.current == Number(value=1)
