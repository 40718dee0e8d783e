"""`kill -9` of real drivers on real Spark, at chosen and at random moments; nothing may be lost or seen twice.

This is the long version, which kills more than 20 times (`make kill-long`); COORD_KILLS sets the number,
COORD_KILL_SEED the seed. In every run test_kill_saving.py kills drivers at such moments while they take savepoints.
"""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest

from tests.kill.audit import Balance, audit, check_counts, check_output, recovered
from tests.kill.life import (
    Moment,
    Trial,
    Victim,
)
from tests.patience import SECONDS

pytestmark = [pytest.mark.kill, pytest.mark.spark]

_BEFORE_EPOCHS = (Moment.CLAIMED, Moment.RECOVERED, Moment.ANY)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_nothing_is_lost_or_seen_twice_when_the_driver_is_killed_many_times(trial: Trial) -> None:
    kills = int(os.environ.get("COORD_KILLS", "24"))
    moments = [*Moment] * (kills // len(Moment) + 1)
    trial.random.shuffle(moments)
    victims = [Victim.PYTHON] * 6 + [Victim.JVM, Victim.GROUP] * 2
    _run(trial, [(moment, trial.random.choice(victims)) for moment in moments[:kills]], most_epochs=6)


def _run(trial: Trial, kills: list[tuple[Moment, Victim]], most_epochs: int) -> None:
    began = time.monotonic()
    committed = -1
    for life, (moment, victim) in enumerate(kills, 1):
        epochs = 0 if moment in _BEFORE_EPOCHS else trial.random.randint(0, most_epochs)
        committed = _live_and_die(trial, life, committed, epochs, moment, victim)
    trial.feeder.stop()
    assert trial.start("--finish").wait(SECONDS) == 0, trial.log(trial.lives).read_text()[-4000:]

    trial.await_afterlives()
    balance = _check_end(trial, len(kills))
    killed = Counter(victim.value for _, victim in kills)
    print(
        f"{len(kills)} kills {dict(killed)}, {trial.lives} drivers, {balance.committed + 1} epochs, "
        f"{len(trial.feeder.keys)} rows, {balance.orders} events down, {balance.reports} up, "
        f"{len(list(trial.folder.glob('failed/*')))} failed batches, "
        f"{trial.late_commits} epochs committed by a JVM without its Python, "
        f"which lived for {trial.longest_afterlife:.1f} s at most, {time.monotonic() - began:.0f} s"
    )


def _live_and_die(trial: Trial, life: int, committed: int, epochs: int, moment: Moment, victim: Victim) -> int:
    began = time.monotonic()
    process = trial.start()
    python, jvm = trial.processes(life)
    assert python == process.pid
    if life > 1 and moment is not Moment.CLAIMED:
        trial.watch_recovery(life, committed)
    trial.wait_for_epochs(epochs)
    trial.wait_for_moment(moment, life)
    # Half of the kills a little later, so that they hit what comes after the moment too.
    time.sleep(trial.random.choice([0.0, trial.random.uniform(0.0, 0.1)]))
    lived = time.monotonic() - began
    died = trial.kill(victim, process, python, jvm)
    balance = audit(trial)
    assert trial.violations() == []
    print(
        f"kill {life}: {victim.value} after {lived:.1f} s, {moment.value}; Python gone after {died:.1f} s; "
        f"epoch {balance.committed}, {balance.orders} events down, {balance.reports} up",
        flush=True,
    )
    return balance.committed


def _check_end(trial: Trial, kills: int) -> Balance:
    assert trial.violations() == []
    assert trial.generations()[-1] == trial.lives == kills + 1
    assert (trial.job / "generations" / f"{trial.lives}.released").exists()
    balance = audit(trial)
    check_output(trial.rows(trial.story), trial.feeder.keys, balance)
    check_counts(trial, trial.feeder.keys)
    assert recovered(trial)[1].replay is None, "everything that was planned is committed"
    assert balance.orders > 0
    assert balance.reports > 0
    trial.wait_for(lambda: not trial.leftovers(), "every process of the trial to end")
    return balance
