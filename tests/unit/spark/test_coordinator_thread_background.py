"""Work that a coordinator gives to other threads, and what comes back of it."""

from __future__ import annotations

import subprocess
import sys
import threading

from coord_control.ids import NO_EPOCH
from tests.patience import SECONDS
from tests.unit.spark.coordinator_kit import (
    CoordinatorRig,
    assert_met,
    assert_set,
    boom,
)


def test_background_work_comes_back_to_the_coordinator_thread(rig: CoordinatorRig) -> None:
    rig.start()
    rig.settle()
    done = threading.Event()
    threads: list[str] = []

    def work() -> int:
        threads.append(threading.current_thread().name)
        return 42

    def back(result: int) -> None:
        threads.append(threading.current_thread().name)
        assert result == 42
        done.set()

    rig.coordinator.context.run_in_background(work, back)
    assert done.wait(SECONDS)
    assert threads[0].startswith("coord-background")
    assert threads[1] == "coord-coordinators"


def test_background_work_without_a_continuation_just_ends(rig: CoordinatorRig) -> None:
    rig.start()
    rig.settle()
    done = threading.Event()
    rig.coordinator.context.run_in_background(done.set)
    assert done.wait(SECONDS)
    rig.assert_no_failure()


def test_an_exception_of_background_work_fails_the_query(rig: CoordinatorRig) -> None:
    rig.start()
    rig.settle()
    rig.coordinator.context.run_in_background(boom)
    assert rig.failure().callback == "run_in_background"


def test_background_work_that_ends_after_a_reset_does_not_come_back(rig: CoordinatorRig) -> None:
    rig.start()
    rig.settle()
    may_end = threading.Event()
    came_back: list[bool] = []
    rig.coordinator.context.run_in_background(lambda: may_end.wait(SECONDS), came_back.append)
    rig.restart(planned=NO_EPOCH)
    may_end.set()
    all_are_here = threading.Barrier(5)  # a background thread that comes here has ended what it did before
    for _ in range(4):
        rig.thread.submit_background(lambda: assert_met(all_are_here))
    assert_met(all_are_here)
    rig.settle()
    assert came_back == []


def test_background_work_that_still_waits_at_the_end_is_not_begun(rig: CoordinatorRig) -> None:
    rig.start()
    rig.settle()
    all_are_here, may_end = threading.Barrier(5), threading.Event()
    begun: list[bool] = []

    def block() -> None:
        assert_met(all_are_here)
        assert_set(may_end)

    for _ in range(4):
        rig.coordinator.context.run_in_background(block)
    rig.coordinator.context.run_in_background(lambda: begun.append(True))
    assert_met(all_are_here)
    rig.thread.close(SECONDS)
    may_end.set()
    for thread in threading.enumerate():
        if thread.name.startswith("coord-background"):
            thread.join(SECONDS)
            assert not thread.is_alive()
    assert begun == []


def test_background_work_that_hangs_does_not_keep_the_driver_alive() -> None:
    driver = """
import threading
from coord_control.spark.loop.coordinator_thread import CoordinatorThread
from coord_control.spark.job.news import News

thread, is_stuck = CoordinatorThread(), threading.Event()
thread.start()
thread.submit_background(lambda: (is_stuck.set(), threading.Event().wait()))
is_stuck.wait()
thread.close(1.0)
print("the last line")
"""
    ended = subprocess.run([sys.executable, "-c", driver], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert ended.stdout == "the last line\n"
