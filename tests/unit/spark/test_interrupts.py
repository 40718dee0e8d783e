"""Ctrl-C while a job ends: held back once, until the end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from coord_control.spark.process.interrupts import InterruptsWait
from tests.mutations.mutation import Mutation, is_noticed


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


class Steps(list[str]):
    """The end of a job, in steps; an interrupt comes between two of them."""

    def end(self, *, interrupts: int, error: Exception | None = None) -> None:
        with InterruptsWait():
            for number in range(interrupts):
                interrupt()
                self.append(f"step {number}")
            if error is not None:
                raise error


def the_first_one_waits_for_the_end() -> None:
    steps = Steps()
    with pytest.raises(KeyboardInterrupt):
        steps.end(interrupts=1)
    assert steps == ["step 0"]


def the_second_one_does_not_wait() -> None:
    steps = Steps()
    with pytest.raises(KeyboardInterrupt):
        steps.end(interrupts=3)
    assert steps == ["step 0"]


def one_that_comes_later_is_raised_where_it_meets_the_program() -> None:
    Steps().end(interrupts=0)
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def what_the_end_raises_is_not_lost() -> None:
    error = OSError("the claim cannot be released")
    with pytest.raises(KeyboardInterrupt) as raised:
        Steps().end(interrupts=1, error=error)
    assert raised.value.__context__ is error


def a_program_with_a_handler_of_its_choice_decides_by_itself() -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGINT, lambda signum, _: got.append(signum))
    try:
        with InterruptsWait():
            interrupt()
            assert got == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


RULES = (
    a_program_with_a_handler_of_its_choice_decides_by_itself,
    the_first_one_waits_for_the_end,
    the_second_one_does_not_wait,
    one_that_comes_later_is_raised_where_it_meets_the_program,
    what_the_end_raises_is_not_lost,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_an_interrupt(rule: Any) -> None:
    rule()


@pytest.mark.parametrize(("module", "waits"), [("pyspark.core.context", True), ("__main__", False)])
def test_only_the_handlers_of_python_and_pyspark_wait(module: str, *, waits: bool) -> None:
    got: list[int] = []

    def handler(signum: int, frame: object) -> None:
        got.append(signum)

    handler.__module__ = module
    signal.signal(signal.SIGINT, handler)
    with InterruptsWait():
        interrupt()
        assert len(got) == (not waits)
    assert got == [signal.SIGINT]


def test_where_it_is_ignored_it_stays_so() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with InterruptsWait():
        interrupt()
    interrupt()


def test_another_thread_leaves_the_handler_alone() -> None:
    found: list[Any] = []

    def run() -> None:
        with InterruptsWait():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


BUGS = (
    Mutation("hold back what the program handles", InterruptsWait.__enter__, " and _raises(handler)", ""),
    Mutation("never raise it", InterruptsWait.__exit__, "if self._is_held:", "if False:"),
    Mutation("hold all of them", InterruptsWait._hold, "if self._is_held and", "if False and"),
    Mutation("hold them for ever", InterruptsWait.__exit__, "signal.signal(signal.SIGINT, self._handler)", "pass"),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_in_these_rules_is_noticed(bug: Mutation) -> None:
    assert is_noticed(bug, RULES)
