"""How a job ends when its process is asked to stop; without Spark, and with a port of the test's."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from coord_control.errors import CheckpointNotCompleted, Fenced, JobClosed
from coord_control.ids import CheckpointId
from coord_control.protocol.scheduler.tickets import CheckpointRequest
from coord_control.spark.checkpoints.checkpoint_handle import CompletedCheckpoint
from coord_control.spark.job.job_end import JobEnd, OnStop, check_on_stop, savepoint_seconds
from coord_control.spark.job.job_life import JobLife
from coord_control.spark.process import shutdown
from tests.patience import SECONDS, eventually

LATE = "the savepoint did not complete within 16 s and was aborted"


class Rig:
    """A job's end, with everything that it calls; ``events`` has what has happened, in order."""

    def __init__(self, on_stop: OnStop = "savepoint") -> None:
        self.events: list[str] = []
        self.requests: list[tuple[CheckpointRequest, float]] = []
        self.is_ready = True
        self.save: Callable[[], None] = lambda: None
        self.error: Exception | None = None
        self.life = JobLife("flights")
        driver: Any = SimpleNamespace(
            life=self.life,
            generation=3,
            thread=SimpleNamespace(is_current=lambda: False),
            checkpoints=SimpleNamespace(close=lambda seconds: self.events.append("checkpoints close")),
            queries=SimpleNamespace(all=list),
            first_error=lambda: self.life.error or self.error,
            close=self._close,
        )
        port: Any = SimpleNamespace(
            facts=SimpleNamespace(name="flights"), is_ready=lambda: self.is_ready, savepoint_at_end=self._take
        )
        outside: Any = SimpleNamespace(close=lambda: self.events.append("recorded"))
        self.end = JobEnd(driver, port, outside, on_stop)

    def _take(self, request: CheckpointRequest, seconds: float) -> CompletedCheckpoint:
        self.requests.append((request, seconds))
        self.life.begin_pause()
        self.save()
        self.events.append("saved")
        return CompletedCheckpoint(CheckpointId(7), "/there")

    def _close(self) -> None:
        self.life.close()
        self.events.append("ended")

    def ask(self, seconds: float = 24.0) -> None:
        """Ask the process to stop, as the registry does."""
        self.end._requested(seconds)


ENDED = ["checkpoints close", "ended", "recorded"]


def test_a_request_takes_a_savepoint_first_and_leaves_time_for_the_end() -> None:
    rig = Rig()
    rig.ask()
    assert rig.events == ["saved", *ENDED]
    [(request, seconds)] = rig.requests
    assert (request.label, request.cause, request.is_savepoint) == ("stop-3", "stop request", True)
    assert 15.0 < seconds <= 16.0


def test_by_default_a_request_takes_none() -> None:
    rig = Rig("stop")
    rig.ask()
    assert (rig.events, rig.requests) == (ENDED, [])


@pytest.mark.parametrize(("grace", "savepoint"), [(0.0, 0.0), (3.0, 2.0), (24.0, 16.0), (30.0, 20.0), (2880.0, 2870.0)])
def test_a_part_of_the_time_is_reserved_for_the_end(grace: float, savepoint: float) -> None:
    assert savepoint_seconds(grace) == pytest.approx(savepoint)


def failing(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    "error",
    [TimeoutError(LATE), CheckpointNotCompleted("savepoint", "disk_full", "no space"), OSError("the JVM is gone")],
    ids=lambda error: type(error).__name__,
)
def test_a_savepoint_that_fails_or_is_late_ends_the_job_without_it_and_with_one_warning(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    rig.save = failing(error)
    with caplog.at_level(logging.WARNING):
        rig.ask()
    assert rig.events == ENDED
    [warning] = caplog.messages
    assert str(error) in warning
    assert "its checkpoints are kept" in warning


def test_a_program_that_still_starts_queries_ends_without_a_savepoint(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.is_ready = False
    rig.ask()
    assert (rig.events, rig.requests) == (ENDED, [])
    assert "may still start queries" in caplog.text


def fenced(rig: Rig) -> None:
    rig.life.fail(Fenced("flights", 3, 4))


def commanded(rig: Rig) -> None:
    rig.life.is_ended_by_command = True


def failed(rig: Rig) -> None:
    rig.error = OSError("a query has failed for good")


@pytest.mark.parametrize("by", [fenced, commanded, failed])
def test_a_job_that_ends_otherwise_takes_none_and_warns_of_nothing(
    by: Callable[[Rig], None], caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    by(rig)
    with caplog.at_level(logging.WARNING):
        rig.ask()
    assert (rig.events, rig.requests, caplog.messages) == (ENDED, [], [])


def test_a_command_during_the_savepoint_ends_the_job_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()

    def interrupted() -> None:
        commanded(rig)
        rig.end.stop(1.0)
        raise CheckpointNotCompleted("savepoint", "job_ending", "the job ends")

    rig.save = interrupted
    with caplog.at_level(logging.WARNING):
        rig.ask()
    assert (rig.events, caplog.messages) == (ENDED, [])


def test_a_job_that_has_ended_is_not_ended_again(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.end.stop(1.0)
    rig.ask()
    assert (rig.events, rig.requests, caplog.messages) == (ENDED, [], [])
    with pytest.raises(JobClosed):
        rig.life.check_open()


def aside(call: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_a_stop_with_savepoint_that_is_in_progress_is_waited_for() -> None:
    rig = Rig()
    rig.life.begin_pause()
    asked = aside(rig.ask)
    time.sleep(0.1)
    assert rig.events == []
    rig.end.stop(1.0)
    asked.join(SECONDS)
    assert (rig.events, rig.requests) == (ENDED, [])


def test_a_stop_with_savepoint_that_fails_meanwhile_is_followed_by_another_one() -> None:
    rig = Rig()
    rig.life.begin_pause()
    asked = aside(rig.ask)
    time.sleep(0.1)
    rig.life.end_pause()
    asked.join(SECONDS)
    assert rig.events == ["saved", *ENDED]


def test_the_end_of_the_program_takes_none_but_waits_for_one_that_ends_the_job() -> None:
    """Its queries pause: a program that waits for Spark's handle takes that for their end."""
    rig, may_end = Rig(), threading.Event()

    def wait() -> None:
        assert may_end.wait(SECONDS)

    rig.save = wait
    asked = aside(rig.ask)
    eventually(lambda: rig.life.is_paused)
    left = aside(lambda: rig.end.leave(None))
    left.join(0.1)
    assert rig.events == []
    may_end.set()
    left.join(SECONDS)
    asked.join(SECONDS)
    assert rig.events == ["saved", *ENDED]
    alone = Rig()
    alone.end.leave(None)
    assert (alone.events, alone.requests) == (ENDED, [])


@pytest.mark.parametrize("error", [SystemExit(143), KeyboardInterrupt(), OSError("the program failed")])
def test_a_second_signal_or_an_error_does_not_wait_for_the_savepoint(error: BaseException) -> None:
    rig = Rig()
    rig.life.begin_pause()
    rig.end.leave(error)
    assert rig.events == ENDED
    assert rig.life.program_error is (error if isinstance(error, OSError) else None)


def test_it_is_registered_until_its_end_is_recorded() -> None:
    rig = Rig()
    rig.end.listen()
    assert shutdown.has_registered()
    rig.end.stop(1.0)
    assert not shutdown.has_registered()


def test_what_is_no_way_to_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="on_stop is 'save'; it must be one of stop, savepoint"):
        check_on_stop("save")  # type: ignore[arg-type]
