"""A few hundred simulated jobs, and the proof that the simulation finds bugs. ``make nightly`` runs 10,000."""

from __future__ import annotations

import pytest

from tests.mutations import run as mutations
from tests.mutations.tested import TESTED_MUTATIONS
from tests.simulation import histories
from tests.simulation import run as simulate

_CHUNK = 150


@pytest.mark.parametrize("start", range(0, 300, _CHUNK))
def test_no_history_breaks_a_rule(start: int) -> None:
    statistics, failures = simulate.run_seeds(range(start, start + _CHUNK))
    assert not failures, histories.explain(histories.shorten(failures[0]))
    # A simulation in which nothing happens proves nothing.
    assert min(statistics.crashes, statistics.takeovers, statistics.restarts_in_place, statistics.failovers) > _CHUNK
    assert min(statistics.epochs, statistics.events_down, statistics.events_up) > 3 * _CHUNK
    assert min(statistics.refused, statistics.fenced, statistics.skipped_begins, statistics.skipped_acks) > 0
    assert min(statistics.stored, statistics.restores, statistics.aborted, statistics.failed) > _CHUNK
    assert min(statistics.cut_down, statistics.cut_up, statistics.offline_savepoints) > _CHUNK / 5
    assert min(statistics.held_in_begins, statistics.pauses, statistics.cut_again) > 0
    assert min(statistics.foreign_commits, statistics.rivals, statistics.commands_withdrawn) > 0
    assert min(statistics.unreported_commits, statistics.created_twice) > 0
    assert min(statistics.epochs_without_rows, statistics.full_channels) > 0
    assert min(statistics.planned_in_cuts, statistics.planned_restored) > 0
    assert min(statistics.requests_waited, statistics.states_shown) > 0
    assert min(statistics.cut_at_rest, statistics.late_pins) > 0
    assert _CHUNK < statistics.live_records < statistics.live_answers
    assert statistics.live_changes > _CHUNK
    assert min(statistics.woken, statistics.woken_alone) > _CHUNK


def test_the_same_seed_gives_the_same_history() -> None:
    first: list[str] = []
    second: list[str] = []
    for lines in (first, second):
        assert histories.watch_seed(7, histories.DEFAULT_STEPS, lines.append) is None
    assert first == second
    assert len(first) > 50


def _mutation(name: str) -> mutations.Mutation:
    return next(mutation for mutation in mutations.MUTATIONS if mutation.name == name)


def test_a_bug_is_found_and_its_history_is_short_and_readable() -> None:
    bug = _mutation("forget frozen inputs on recovery")
    failure = mutations.catch(bug, seeds=100)
    assert failure is not None
    with bug.applied():
        shortest = histories.shorten(failure)
        text = histories.explain(shortest)
        assert histories.replay(shortest.seed, shortest.steps) == shortest.message
    assert len(shortest.steps) < len(failure.steps) / 2
    lines = text.splitlines()
    assert len(lines) < 100
    assert lines[0].startswith(f"seed {failure.seed}, ")
    assert any(line.endswith("driver 1 claims the job") for line in lines[1:5])
    assert lines[-1].startswith(f"broken: {failure.rule}: ")
    assert histories.replay(shortest.seed, shortest.steps) is None, "without the bug nothing is broken"


def test_a_mutation_is_gone_after_its_block() -> None:
    for mutation in (*mutations.MUTATIONS, *(each for each, _ in TESTED_MUTATIONS)):
        before = mutation.function.__code__
        with mutation.applied():
            assert mutation.function.__code__ is not before
        assert mutation.function.__code__ is before


def test_a_mutation_whose_text_has_gone_is_an_error() -> None:
    outdated = mutations.Mutation("outdated", mutations.MUTATIONS[0].function, "text of an earlier version", "")
    with pytest.raises(LookupError, match="outdated"), outdated.applied():
        pass
