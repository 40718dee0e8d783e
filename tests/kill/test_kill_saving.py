"""`kill -9` of real drivers while they save and while they restore, at chosen steps and at random moments.

Drivers take checkpoints and savepoints all the time and are killed, then the job goes back to one of the savepoints,
and drivers are killed while they do that. After each kill everything that says of itself that it is complete must be
intact, and can be restored, to books that agree; in the end no row was lost or seen twice, and nothing half made is
left.

The short version runs with all tests. The long one takes every step, and random moments (`make kill-long`); COORD_KILLS
sets the number of these, COORD_KILL_SEED the seed.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import pytest

from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder.restore_log import standing_restores
from coord_control.ids import CheckpointId
from tests.kill.audit import audit, check_counts, check_output, recovered
from tests.kill.life import (
    Moment,
    Trial,
    Victim,
)
from tests.kill.pausing import Step, paused_mark
from tests.kill.saved import Saved, check_nothing_is_left, check_saved
from tests.patience import SECONDS

pytestmark = [pytest.mark.kill, pytest.mark.spark]

_RESTORING = (
    Step.LINEAGE_RECORDED,
    Step.LINEAGE_FILLED,
    Step.RESTORE_NOT_COMMITTED,
    Step.RESTORE_COMMITTED,
    Step.SEEDED,
)
_SINKS = (Step.SINKS_MARKED, Step.LATER_ENTRY_REMOVED, Step.ENTRY_PUT_BACK)
_SAVING = tuple(step for step in Step if step not in (*_RESTORING, *_SINKS))


@dataclass(frozen=True, slots=True)
class Death:
    """When a driver is killed, and how; chosen at random as far as it does not say."""

    step: Step | None = None
    moment: Moment | None = None  #: of an epoch, while a thread waits at the step
    victim: Victim | None = None


def test_what_is_complete_can_be_restored_whenever_the_driver_is_killed(trial: Trial) -> None:
    # An epoch that has only begun, and a JVM that dies alone, are what test_supervised.py has.
    saving = Death(Step.METADATA_IN_PLACE, Moment.ACKED, Victim.GROUP)
    _run(trial, [saving], restoring=[Death(Step.LINEAGE_FILLED)])


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_what_is_complete_can_be_restored_whenever_the_driver_is_killed_at_every_step(trial: Trial) -> None:
    at_random = [None] * (int(os.environ.get("COORD_KILLS", "24")) // 4)
    saving = [*_SAVING, *at_random]
    trial.random.shuffle(saving)
    _run(trial, list(map(Death, saving)), list(map(Death, [*_RESTORING, *at_random])))


def _run(trial: Trial, saving: list[Death], restoring: list[Death]) -> None:
    known: dict[CheckpointId, Saved] = {}
    for death in saving:
        _live_and_die(trial, death, known)
    savepoints = [saved for saved in known.values() if saved.entry.kind == "savepoint"]
    goal = trial.random.choice(savepoints)
    before, ledger = trial.story, trial.query("ledger")
    trial.new_story(goal.entry.path)
    for death in restoring:
        _live_and_die(trial, death, known)
    trial.feeder.stop()
    assert trial.start("--finish").wait(SECONDS) == 0, trial.log(trial.lives).read_text()[-4000:]
    trial.await_afterlives()

    assert trial.violations() == []
    assert trial.generations()[-1] == trial.lives == len(saving) + len(restoring) + 1
    assert (trial.job / "generations" / f"{trial.lives}.released").exists()
    assert len([*standing_restores(LocalFiles(), str(trial.job))]) == 1
    assert trial.query("ledger") != ledger
    check_nothing_is_left(trial)
    check_saved(trial, known)
    balance = audit(trial)
    assert recovered(trial)[1].replay is None, "everything that was planned is committed"
    boundary = goal.balance.committed
    rows = [row for row in trial.rows(before) if row["epoch"] <= boundary] + trial.rows(trial.story)
    check_output(rows, trial.feeder.keys, balance)
    check_counts(trial, trial.feeder.keys)
    assert balance.orders > 0
    assert balance.reports > 0
    trial.wait_for(lambda: not trial.leftovers(), "every process of the trial to end")
    print(f"{len(known)} checkpoints are left, {len(savepoints)} savepoints before the restore to epoch {boundary}")


def _live_and_die(trial: Trial, death: Death, known: dict[CheckpointId, Saved]) -> None:
    """One driver, killed at a step, at a moment of an epoch, or when it has saved something and some time later."""
    began, step = time.monotonic(), death.step
    process = trial.start("--saving", pause=step)
    if step is not None:
        trial.wait_for(paused_mark(trial.folder).exists, f"{step.name} of driver {trial.lives}")
        if step in _SAVING:  # the queries go on meanwhile
            trial.wait_for_epochs(1)
    elif death.moment is not None:
        trial.wait_for_moment(Moment.RECOVERED, trial.lives)
        trial.wait_for_epochs(1)
    else:
        newest = max(known, default=0)
        trial.wait_for(lambda: _newest_savepoint(trial) > newest, "a savepoint")
        time.sleep(trial.random.uniform(0.0, 2.0))
    python, jvm = trial.processes(trial.lives)
    if death.moment is not None:
        trial.wait_for_moment(death.moment, trial.lives)
    lived = time.monotonic() - began
    victim = death.victim or trial.random.choice([Victim.PYTHON, Victim.GROUP])
    trial.kill(victim, process, python, jvm)
    assert trial.violations() == []
    balance = audit(trial)
    check_saved(trial, known)
    name = " and ".join(each.name for each in (step, death.moment) if each is not None) or "a random moment"
    print(
        f"{victim.value} killed after {lived:.1f} s at {name}: epoch {balance.committed}, {len(known)} checkpoints",
        flush=True,
    )


def _newest_savepoint(trial: Trial) -> int:
    noted = trial.job.glob("checkpoints/*/_completed")
    return max((int(path.parent.name) for path in noted), default=0)
