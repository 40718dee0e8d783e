"""Whether a job runs, pauses or has ended, and what ended it; without Spark."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from coord_control.errors import (
    CheckpointNotCompleted,
    InvalidTransition,
    JobClosed,
    JobEndRequested,
    StoreUnavailable,
)
from coord_control.spark.job.job_life import TRANSITIONS, Input, JobLife, Phase
from coord_control.spark.process import shutdown
from tests.patience import SECONDS


@pytest.fixture
def life() -> JobLife:
    return JobLife("flights")


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def in_phase(phase: Phase) -> JobLife:
    life = JobLife("flights")
    if phase is Phase.PAUSED:
        life.begin_pause()
    if phase is Phase.CLOSED:
        life.close()
    return life


def phase_of(life: JobLife) -> Phase:
    return Phase.CLOSED if life.is_closed else Phase.PAUSED if life.is_paused else Phase.RUNNING


ACTIONS = {Input.RESUME: JobLife.end_pause, Input.CLOSE: JobLife.close}


@pytest.mark.parametrize(("phase", "input_"), list(itertools.product(Phase, ACTIONS)))
def test_a_pair_leads_where_the_table_says_or_is_refused(phase: Phase, input_: Input) -> None:
    life = in_phase(phase)
    after = TRANSITIONS.get((phase, input_))
    if after is None:
        with pytest.raises(InvalidTransition):
            ACTIONS[input_](life)
    else:
        ACTIONS[input_](life)
    assert phase_of(life) is (after or phase)


def test_only_a_running_job_can_be_paused(life: JobLife) -> None:
    life.begin_pause()
    with pytest.raises(CheckpointNotCompleted, match="another stop with savepoint"):
        life.begin_pause()
    assert life.is_paused
    life.close()
    with pytest.raises(JobClosed):
        life.begin_pause()
    assert life.is_closed


def test_a_job_that_has_failed_is_not_paused(life: JobLife) -> None:
    error = StoreUnavailable("jobs", "write", "no route")
    life.fail(error)
    with pytest.raises(StoreUnavailable):
        life.begin_pause()
    assert not life.is_paused


def test_no_query_starts_in_a_pause(life: JobLife, aside: ThreadPoolExecutor) -> None:
    def start() -> Phase:
        with life.turn_to_start():
            return phase_of(life)

    life.begin_pause()
    started = aside.submit(start)
    with pytest.raises(TimeoutError):
        started.result(0.2)
    life.end_pause()
    assert started.result(SECONDS) is Phase.RUNNING


def test_a_query_that_waits_for_the_end_of_a_pause_finds_a_job_that_has_ended(
    life: JobLife, aside: ThreadPoolExecutor
) -> None:
    def start() -> None:
        with life.turn_to_start():
            life.check_open()

    life.begin_pause()
    started = aside.submit(start)
    life.close()
    with pytest.raises(JobClosed):
        started.result(SECONDS)


def test_a_pause_waits_for_a_query_that_is_being_started(life: JobLife, aside: ThreadPoolExecutor) -> None:
    with life.turn_to_start():
        paused = aside.submit(life.begin_pause)
        with pytest.raises(TimeoutError):
            paused.result(0.2)
        assert not life.is_paused
    paused.result(SECONDS)
    assert life.is_paused


def test_the_first_error_counts(life: JobLife) -> None:
    first, second = StoreUnavailable("jobs", "write", "no route"), StoreUnavailable("jobs", "write", "again")
    assert life.fail(first)
    assert not life.fail(second)
    life.close()
    assert life.error is first
    assert life.end_error() is first
    with pytest.raises(StoreUnavailable, match="no route"):
        life.check_open()


def test_a_program_that_has_ended_its_job_itself_uses_it_by_mistake(life: JobLife) -> None:
    life.check_open()
    life.close()
    with pytest.raises(JobClosed) as caught:
        life.check_open()
    assert not isinstance(caught.value, JobEndRequested)
    assert life.end_error() is None


@pytest.mark.parametrize("by", ["command", "signal"])
def test_a_program_whose_end_was_requested_ends_quietly(
    life: JobLife, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.close()
    if by == "command":
        life.is_ended_by_command = True
    else:
        monkeypatch.setattr(shutdown, "is_requested", lambda: True)
    with pytest.raises(JobEndRequested):
        life.check_open()
    assert isinstance(life.end_error(), JobEndRequested)


@pytest.mark.parametrize(
    "change", [JobLife.close, JobLife.changed, lambda life: life.fail(StoreUnavailable("jobs", "write", "no route"))]
)
def test_who_waits_looks_again_after_each_change(life: JobLife, aside: ThreadPoolExecutor, change) -> None:  # type: ignore[no-untyped-def]
    looks: list[int] = []
    waiting = aside.submit(life.wait_for, lambda: bool(looks.append(1)) or len(looks) > 1, SECONDS)  # type: ignore[func-returns-value]
    while not looks:
        pass
    change(life)
    assert waiting.result(SECONDS)
    assert len(looks) == 2


def test_the_end_is_waited_for_within_a_time(life: JobLife) -> None:
    assert not life.wait_closed(0.01)
    life.close()
    assert life.wait_closed(0.01)
