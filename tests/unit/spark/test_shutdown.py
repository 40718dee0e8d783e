from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from coord_control.errors import SupervisorLost
from coord_control.spark.process.shutdown import StopRegistry
from tests.patience import SECONDS


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_every_registered_function_gets_the_grace_period() -> None:
    registry, got = StopRegistry(Clock()), []
    registry.register(lambda seconds: got.append(("a", seconds)))
    registry.register(lambda seconds: got.append(("b", seconds)))

    registry.request_stop(30.0)

    assert sorted(got) == [("a", 30.0), ("b", 30.0)]


def test_the_functions_run_at_the_same_time() -> None:
    registry, together = StopRegistry(), threading.Barrier(2)

    def meet(seconds: float) -> None:
        together.wait(SECONDS)

    registry.register(meet)
    registry.register(meet)

    registry.request_stop(30.0)

    assert not together.broken


def test_a_second_request_does_nothing() -> None:
    registry, got = StopRegistry(Clock()), list[float]()
    registry.register(got.append)

    registry.request_stop(30.0)
    registry.request_stop(5.0)

    assert got == [30.0]


def test_the_loss_of_the_supervisor_is_the_reason_only_if_no_stop_was_requested_before() -> None:
    lost = SupervisorLost()
    abandoned, stopped = StopRegistry(Clock()), StopRegistry(Clock())

    abandoned.request_stop(30.0, lost)
    abandoned.request_stop(30.0)
    stopped.request_stop(30.0)
    stopped.request_stop(30.0, lost)

    assert abandoned.lost_supervisor() is lost
    assert stopped.lost_supervisor() is None


def test_what_has_ended_is_not_stopped() -> None:
    registry, got = StopRegistry(Clock()), list[float]()
    registry.register(got.append)
    assert registry.has_registered()
    registry.unregister(got.append)
    registry.unregister(got.append)

    registry.request_stop(30.0)

    assert got == []
    assert not registry.has_registered()
    assert registry.is_requested()


def test_what_begins_after_the_request_is_stopped_with_the_time_that_is_left() -> None:
    clock = Clock()
    registry, got, called = StopRegistry(clock), list[float](), threading.Event()
    registry.request_stop(30.0)
    clock.now += 12.0

    def stop(seconds: float) -> None:
        got.append(seconds)
        called.set()

    registry.register(stop)

    assert called.wait(SECONDS)
    assert got == [18.0]


def test_a_function_that_fails_is_logged_and_does_not_keep_the_others_from_stopping(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry, got = StopRegistry(Clock()), list[float]()

    def fail(seconds: float) -> None:
        raise RuntimeError("no")

    registry.register(fail)
    registry.register(got.append)
    with caplog.at_level(logging.ERROR):
        registry.request_stop(1.0)

    assert got == [1.0]
    assert "no" in caplog.text


@pytest.mark.parametrize(
    ("before", "after", "is_commanded"),
    [
        ([True], [], True),  # a command has ended the job, and the script was on its last lines
        ([], [True], True),  # the request came in the job's last moments
        ([True], [True], True),
        ([], [], False),  # there was no job at all
        ([False], [], False),  # it has ended by itself
        ([], [False], False),
        ([True], [False], False),  # another job ran, and was stopped
        ([], [True, False], False),
    ],
)
def test_a_command_says_what_comes_next_unless_the_request_has_stopped_a_job(
    before: list[bool], after: list[bool], *, is_commanded: bool
) -> None:
    registry = StopRegistry()
    jobs: list[tuple[Callable[[float], None], bool]] = [
        (list[float]().append, on_command) for on_command in (*before, *after)
    ]
    for stop, _ in jobs:
        registry.register(stop)
    for stop, on_command in jobs[: len(before)]:
        registry.unregister(stop, on_command=on_command)
    registry.request_stop(30.0)
    for stop, on_command in jobs[len(before) :]:
        assert not registry.is_end_commanded(), "a second signal would cut this one short"
        registry.unregister(stop, on_command=on_command)

    assert registry.is_end_commanded() is is_commanded
