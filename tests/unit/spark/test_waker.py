"""Between the core and Spark: a flag goes up for events that wait; who is woken rests on a check of the generation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coord_control.errors import Fenced, JobClosed, StoreUnavailable
from coord_control.ids import Generation, SubtaskIndex
from coord_control.protocol.job import JobCore
from coord_control.protocol.operator import OperatorSpec
from coord_control.spark.wake import wake_source
from coord_control.spark.wake.waker import Waker
from tests.core_kit import FIRST_RUN, OP, QUERY, QUERY_ID, event
from tests.patience import SECONDS, eventually
from tests.unit.spark.runtime_kit import EMPTY, Counting, RuntimeDriver


class Rig:
    """The waker of a job, on a real runtime; the flags are those of no JVM."""

    def __init__(self) -> None:
        self.driver = RuntimeDriver(Counting())
        self.driver.runtime.call(self._wake_the_operator)
        self.driver.start_run(EMPTY)
        self.waker = Waker()
        self.rows = self.waker.declare(OP, 2, self.driver.runtime)
        self.flags: dict[str, bool] = {}
        wake_source._flags[self.rows.key] = self

    @staticmethod
    def _wake_the_operator(core: JobCore, now: float) -> None:
        core.end_run(QUERY, None, now)
        core.add_query(QUERY, QUERY_ID, [OperatorSpec(OP, 2, wake=True)])

    def put(self, key: str, is_up: bool) -> None:
        self.flags[key] = is_up

    def send(self, *subtasks: int) -> None:
        """The coordinator sends an event to each."""

        def send(core: JobCore, now: float) -> None:
            incarnation = core.operators()[0].channel.incarnation
            for subtask in subtasks:
                core.send(OP, incarnation, SubtaskIndex(subtask), event("e"), now)

        self.driver.runtime.call(send)
        assert self.driver.waiting.get(timeout=SECONDS) == OP

    def ask(self) -> str:
        """As the stream in the JVM does."""
        return wake_source._Asked().apply(f"{self.rows.key} {FIRST_RUN}")

    def close(self) -> None:
        self.waker.close(SECONDS)
        self.driver.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def test_the_core_says_that_an_event_waits_and_for_whom(rig: Rig) -> None:
    assert rig.ask() == ""
    rig.send(1)
    assert rig.ask() == "1"
    rig.send(0, 1)
    assert rig.ask() == "0,1"


def test_the_flag_goes_up_on_a_thread_of_its_own(rig: Rig) -> None:
    rig.waker.events_wait(OP)
    eventually(lambda: rig.flags == {rig.rows.key: True})


def test_a_jvm_that_is_gone_does_not_end_the_thread(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    def gone(key: str, is_up: bool) -> None:
        raise ConnectionError("the JVM is gone")

    rig.put = gone  # type: ignore[method-assign]
    rig.waker.events_wait(OP)
    eventually(lambda: "nothing can be woken: the JVM is gone" in caplog.text)
    del rig.put
    rig.waker.events_wait(OP)
    eventually(lambda: rig.flags == {rig.rows.key: True})


def test_a_driver_that_was_replaced_wakes_nothing(rig: Rig) -> None:
    rig.send(1)
    rig.driver.is_fresh = False
    rig.driver.fenced_by = Fenced("job", Generation(1), 2)
    assert rig.ask() == ""


def test_while_the_storage_does_not_answer_it_is_not_known_whom_to_wake(rig: Rig) -> None:
    rig.send(1)
    rig.driver.is_fresh = False
    rig.driver.unreachable = StoreUnavailable("the claim", "read", "simulated")
    assert rig.ask() == "?"


def test_after_the_end_nothing_is_woken(rig: Rig) -> None:
    rig.driver.runtime.close(JobClosed("job"))
    assert rig.ask() == ""
    rig.waker.close(SECONDS)
    assert rig.ask() == ""
    wake_source.put_up(rig.rows.key)
    assert rig.flags == {}
