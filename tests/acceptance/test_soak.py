"""The three uses of Dagster for a while, by its own clock: a savepoint each minute, a checkpoint each minute, by hand.

A real daemon evaluates the product's own schedules, real run workers ask a real driver under ``coordctl run``; the
short version kills the driver, the long one the driver, its supervisor and the daemon. At the end every tick has its
outcome, and the control database, the storage and Dagster's event log say the same.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import dagster as dg
import pytest
from dagster._core.execution.stats import StepEventStatus
from dagster._core.scheduler.instigation import InstigatorTick, TickStatus

from coord_control.control.commands import CheckpointResult
from coord_control.storage.records import CheckpointKind, CheckpointRecord, CheckpointState, CommandState
from tests.acceptance.soak_kit import CHECKS, JOB, KEPT, SAVES, Soak, soak
from tests.patience import SECONDS

pytestmark = [pytest.mark.spark, pytest.mark.kill]

_MINUTE: Final = 60
#: In the seconds of a minute: what happens before the next tick.
_BEFORE_A_TICK: Final = 50
_KINDS: Final = {"savepoint": SAVES, "checkpoint": CHECKS}
#: Of every completed one, whoever reports it.
_ALWAYS: Final = {
    "checkpoint_id",
    "kind",
    "label",
    "path",
    "size_bytes",
    "duration_seconds",
    "passed_subtasks",
    "subtasks",
    "queries",
    "subtask_table",
    "cause",
    "requested_by",
    "triggered_at",
    "finished_at",
    "restore_command",
    "generation",
    "sequence",
    "reported_by",
}
_OVER: Final = (CheckpointState.COMPLETED, CheckpointState.DISCARDED)

#: What happens in the minute before a tick, by the number of the tick.
_Story = Mapping[int, Callable[[Soak], None]]


# tests/dagster/test_ticks.py evaluates schedules tick by tick, and test_dagster_browser.py waits for a real daemon's.
@pytest.mark.slow
def test_every_tick_of_a_schedule_has_its_outcome_while_the_driver_is_killed(tmp_path: Path) -> None:
    _play(tmp_path, 3, {1: _by_hand_and_killed}, retries=False)


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_every_tick_of_a_schedule_has_its_outcome_whatever_is_killed(tmp_path: Path) -> None:
    story: _Story = {
        1: _by_hand,
        3: _kill_until_a_tick_waits,
        4: _by_hand,
        5: Soak.kill_supervisor,
        7: Soak.kill_daemon,
        8: _by_hand,
    }
    _play(tmp_path, 10, story)


def _play(folder: Path, ticks: int, story: _Story, *, retries: bool = True) -> None:
    """Let at least so many ticks come, and see what they have left.

    Args:
        retries: whether a run may have failed and been tried again. One whose driver is killed waits for the next one.
    """
    with soak(folder) as world:
        _wait_for_tick(world, 1)
        first = world.ticks(SAVES)[0].timestamp
        for number in range(1, ticks):
            _sleep_until(first + (number - 1) * _MINUTE + _BEFORE_A_TICK)
            if number in story:
                story[number](world)
            _wait_for_tick(world, number + 1)
        # A slow machine is not done when the next tick comes, and that one is skipped.
        world.wait(lambda: all(_taken(world, schedule) >= ticks * 2 // 3 for schedule in _KINDS.values()), 2 * SECONDS)
        world.stop_schedules(
            _KINDS.values()
        )  # on a slow machine the next run would begin before the last one has ended
        # Dagster gives up a run that was killed with its daemon after the longest that one can take.
        world.wait(lambda: not _unsettled(world), 2 * SECONDS, trouble=lambda: "\n".join(_unsettled(world)))
        for purpose, schedule in _KINDS.items():
            _check_ticks(world, purpose, schedule, retries=retries)
            _check_reports(world, purpose)
        _check_retention(world)


def _by_hand_and_killed(world: Soak) -> None:
    _by_hand(world)
    _kill_until_a_tick_waits(world)


def _kill_until_a_tick_waits(world: Soak) -> None:
    """The next driver takes its time: what the next tick wants waits for it."""
    world.hold_next_driver()
    world.kill_driver()
    world.wait(lambda: any(each.state is CommandState.PENDING for each in world.client.commands(JOB, limit=10)))
    world.release_driver()


def _by_hand(world: Soak) -> None:
    command = world.client.trigger_savepoint(JOB, label=f"by-hand-{int(time.time())}")
    assert isinstance(world.client.wait(command, SECONDS), CheckpointResult)


def _wait_for_tick(world: Soak, number: int) -> None:
    world.wait(lambda: all(len(world.ticks(schedule)) >= number for schedule in _KINDS.values()))


def _taken(world: Soak, schedule: str) -> int:
    """How many ticks were not skipped."""
    return sum(bool(tick.run_ids) for tick in world.ticks(schedule))


def _sleep_until(moment: float) -> None:
    while (left := moment - time.time()) > 0:
        time.sleep(left)


def _unsettled(world: Soak) -> list[str]:
    """What is still under way: ticks, runs, commands, and reports of what is over."""
    ticks = [tick for schedule in _KINDS.values() for tick in world.ticks(schedule)]
    runs = [run for tick in ticks if tick.run_ids for run in world.runs_of(tick)]
    found = [f"tick {tick.tick_id}" for tick in ticks if tick.status is TickStatus.STARTED]
    found += [f"run {run.run_id}: {run.status}" for run in runs if not run.is_finished or _will_retry(run)]
    commands = world.client.commands(JOB, limit=1000)
    found += [f"command {command.id}: {command.state}" for command in commands if not command.is_finished]
    for purpose in _KINDS:
        over, reported = _ids(world, purpose), world.materializations(purpose)
        failed, told = _failed(world, purpose), world.failures(purpose)
        found += [f"{purpose}: {len(reported)} of {over} reported"] if len(reported) != len(over) else []
        found += [f"{purpose}: {len(told)} failures of {failed} reported"] if len(told) != len(failed) else []
    return found


def _will_retry(run: dg.DagsterRun) -> bool:
    """Return whether a run that has failed is retried later; Dagster decides that a moment after it has failed."""
    decision = run.tags.get("dagster/will_retry", "undecided")
    is_retried = "dagster/auto_retry_run_id" in run.tags
    return run.status is dg.DagsterRunStatus.FAILURE and decision != "false" and not is_retried


def _check_ticks(world: Soak, purpose: str, schedule: str, *, retries: bool) -> None:
    """One tick each minute; each was skipped with a reason, or its run has made the one with the time of its label."""
    ticks = world.ticks(schedule)
    minutes = [int(tick.timestamp) for tick in ticks]
    assert minutes == list(range(minutes[0], minutes[0] + _MINUTE * len(minutes), _MINUTE))
    made = {record.label: record for record in _records(world, purpose) if record.state in _OVER}
    taken = []
    for tick in ticks:
        assert tick.status in (TickStatus.SUCCESS, TickStatus.SKIPPED), tick
        if tick.status is TickStatus.SKIPPED:
            assert tick.skip_reason
            continue
        newest, *earlier = world.runs_of(tick)
        assert retries or not earlier, (tick, world.tail())
        assert _has_done_its_step(world, newest), (tick, newest.status, world.tail())
        assert made[_label(schedule, tick)].requested_by == f"dagster:schedule:{schedule}"
        taken.append(made[_label(schedule, tick)].id)
    assert len(taken) == len(set(taken))


def _has_done_its_step(world: Soak, run: dg.DagsterRun) -> bool:
    """Return whether nothing is left to do; one that was killed between its step's end and its own is not retried."""
    if run.status is dg.DagsterRunStatus.SUCCESS:
        return True
    steps = world.dagster.get_run_step_stats(run.run_id)
    return bool(steps) and all(step.status is StepEventStatus.SUCCESS for step in steps)


def _label(schedule: str, tick: InstigatorTick) -> str:
    return f"{schedule}-{datetime.fromtimestamp(tick.timestamp, UTC):%Y%m%dT%H%M%SZ}"


def _check_reports(world: Soak, purpose: str) -> None:
    """Each checkpoint that was complete is one materialization with all metadata, each that failed one observation."""
    reported = world.materializations(purpose)
    assert Counter(int(each["checkpoint_id"]) for each in reported) == Counter(_ids(world, purpose))
    records = {record.id: record for record in _records(world, purpose)}
    for each in reported:
        assert each.keys() >= _ALWAYS, _ALWAYS - each.keys()
        record = records[int(each["checkpoint_id"])]
        sequence = str(record.sequence)
        assert _facts(each) == (record.label, record.path, record.requested_by, sequence, record.state_bytes)
    told = Counter(int(each["failed_checkpoint_id"]) for each in world.failures(purpose))
    assert told == Counter(_failed(world, purpose))


def _facts(metadata: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(metadata[name] for name in ("label", "path", "requested_by", "sequence", "size_bytes"))


def _check_retention(world: Soak) -> None:
    """The newest of the schedule are left, on the storage as in the database, and all that were taken by hand."""
    savepoints = [record for record in _records(world, "savepoint") if record.state in _OVER]
    by_hand = [record for record in savepoints if record.requested_by == "ada"]
    scheduled = [record for record in savepoints if record.requested_by == f"dagster:schedule:{SAVES}"]
    assert by_hand
    assert len(scheduled) > KEPT, "there is one for retention to remove"
    assert len(by_hand) + len(scheduled) == len(savepoints)
    left = {record.id for record in savepoints if record.state is CheckpointState.COMPLETED}
    assert left == {record.id for record in [*by_hand, *scheduled[:KEPT]]}
    assert left == {record.id for record in savepoints if record.path and Path(record.path).exists()}
    found = world.client.checkpoints(JOB, requested_by=f"dagster:schedule:{SAVES}", state=CheckpointState.COMPLETED)
    assert [record.id for record in found] == [record.id for record in scheduled[:KEPT]]
    # Checkpoints belong to the job: it keeps its newest, whoever asked for them.
    newest, *older = [record for record in _records(world, "checkpoint") if record.state in _OVER]
    assert newest.state is CheckpointState.COMPLETED
    assert Path(str(newest.path)).exists()
    assert older, "there is one for the job to remove"
    for record in older:
        assert record.state is CheckpointState.DISCARDED, record
        assert not (record.path and Path(record.path).exists()), record


def _records(world: Soak, purpose: str) -> list[CheckpointRecord]:
    """The newest first."""
    return list(world.client.checkpoints(JOB, kind=CheckpointKind(purpose), limit=1000))


def _ids(world: Soak, purpose: str) -> list[int]:
    return [record.id for record in _records(world, purpose) if record.state in _OVER]


def _failed(world: Soak, purpose: str) -> list[int]:
    return [record.id for record in _records(world, purpose) if record.state is CheckpointState.FAILED]
