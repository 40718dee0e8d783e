"""The history of checkpoints: it only learns, and reads as people expect."""

from __future__ import annotations

import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import update

from coord_control.errors import JobNotFound, RecordNotFound
from coord_control.protocol.statistics import SubtaskTotals
from coord_control.storage import tables
from coord_control.storage.percentiles import percentiles
from coord_control.storage.records import (
    CheckpointKind,
    CheckpointState,
    Percentiles,
)
from coord_control.storage.store import ControlStore
from tests.records_kit import JOB, NOON, checkpoint, operator_part, query_part, recovery, subtask_part, with_subtasks
from tests.storage.kit import register, statements

STATES = list(CheckpointState)


def test_a_checkpoint_is_followed_from_its_trigger_to_its_removal(store: ControlStore) -> None:
    register(store)
    begun = checkpoint(1, CheckpointState.IN_PROGRESS, label="nightly", cause="command", requested_by="ada", subtasks=2)
    assert store.checkpoints.save(JOB, begun)
    assert store.checkpoints.get(JOB, 1) == begun
    operators = (operator_part(operator="op", snapshot_seconds=0.1, coordinator_bytes=7),)
    queries = (query_part(query="q", boundary=4, files=3, operators=operators),)
    done = checkpoint(
        1, label="nightly", cause="command", requested_by="ada", subtasks=2, passed_subtasks=2, path="/jobs/1",
        finished_at=NOON, duration_seconds=1.5, state_bytes=2**40, queries=queries,
    )  # fmt: skip
    subtasks = (
        subtask_part(operator="op", subtask=0, passed_seconds=0.2, ack_seconds=0.1),
        subtask_part(operator="op", subtask=1),
    )
    done = with_subtasks(done, subtasks)
    assert store.checkpoints.save(JOB, done)
    assert store.checkpoints.get(JOB, 1) == replace(done.without_subtasks(), sequence=1)
    [query] = store.checkpoints.get(JOB, 1).queries
    assert query.operators[0].totals == SubtaskTotals(subtasks=2, passed_subtasks=1, latest_passed_seconds=0.2)
    assert store.checkpoints.subtasks(JOB, 1) == subtasks
    assert store.checkpoints.latest(JOB) is not None
    assert store.checkpoints.discarded(JOB, [1, 2]) == 1
    assert store.checkpoints.discarded(JOB, [1, 2]) == 0
    assert store.checkpoints.get(JOB, 1).state == CheckpointState.DISCARDED
    assert store.checkpoints.latest(JOB) is None


@pytest.mark.parametrize("first", STATES)
@pytest.mark.parametrize("second", STATES)
def test_a_state_never_goes_back(store: ControlStore, first: CheckpointState, second: CheckpointState) -> None:
    order = ["in_progress", "failed", "completed", "discarded"]
    register(store)
    store.checkpoints.save(JOB, checkpoint(1, first, message="first"))
    is_written = store.checkpoints.save(JOB, checkpoint(1, second, message="second"))
    assert is_written == (order.index(second) >= order.index(first))
    found = store.checkpoints.get(JOB, 1)
    assert (found.state, found.message) == ((second, "second") if is_written else (first, "first"))
    counts = store.checkpoints.summary(JOB).counts
    assert counts == {"total": 1, **{state.value: int(state == found.state) for state in STATES}}


def test_what_an_earlier_write_knew_stays(store: ControlStore) -> None:
    register(store)
    subtasks = (subtask_part(operator="op", subtask=0),)
    queries = (query_part(query="q"),)
    known = checkpoint(1, requested_by="ada", duration_seconds=2.0, metadata_bytes=9, queries=queries)
    store.checkpoints.save(JOB, with_subtasks(known, subtasks))
    store.checkpoints.save(JOB, checkpoint(1, path="/found/on/storage"))
    found = store.checkpoints.get(JOB, 1)
    assert (found.requested_by, found.duration_seconds, found.path) == ("ada", 2.0, "/found/on/storage")
    assert [each.query for each in found.queries] == ["q"]
    assert store.checkpoints.subtasks(JOB, 1) == subtasks


def test_only_who_shows_the_parts_reads_them(store: ControlStore) -> None:
    register(store)
    store.checkpoints.save(JOB, with_subtasks(checkpoint(1), [subtask_part()]))
    with statements() as asked:
        store.checkpoints.list(JOB)
        store.checkpoints.summary(JOB)
        store.fleets.read()
    assert not any("checkpoint_details" in statement for statement in asked)
    with statements() as asked:
        store.checkpoints.get(JOB, 1)
        store.changes.list()
    assert any("checkpoint_details.queries" in statement for statement in asked)
    assert not any("checkpoint_details.subtasks" in statement for statement in asked)


def test_documents_of_an_older_and_a_newer_release_are_read(store: ControlStore) -> None:
    """Fields that are missing have their default, and unknown ones are left out."""
    register(store)
    store.checkpoints.save(JOB, with_subtasks(checkpoint(1), [subtask_part(passed_seconds=1.0)]))
    with store.database.transaction() as transaction:
        transaction.execute(update(tables.checkpoints).values(statistics={"linked_bytes": 5, "colour": "red"}))
        parts = {
            "queries": [{"query": "q", "colour": "red", "operators": [{"operator": "op", "colour": "red"}]}],
            "subtasks": [{"operator": "op", "subtask": 0, "passed_seconds": None, "colour": "red"}],
        }
        transaction.execute(update(tables.checkpoint_details).values(parts))
    found = store.checkpoints.get(JOB, 1)
    assert (found.linked_bytes, found.metadata_bytes) == (5, 0)
    assert found.queries == (query_part(operators=(operator_part(),)),)
    assert store.checkpoints.subtasks(JOB, 1) == (subtask_part(),)


def test_the_json_of_a_checkpoint_has_totals_in_place_of_subtasks(store: ControlStore) -> None:
    register(store)
    operator = operator_part(applied_events={JOB: 4, "fork": 9}, coordinator_bytes=1)
    known = with_subtasks(checkpoint(1, queries=(query_part(operators=(operator,)),)), [subtask_part(state_bytes=6)])
    store.checkpoints.save(JOB, known)
    for document in (known.to_json(), store.checkpoints.get(JOB, 1).to_json(), store.changes.list()[0].to_json()):
        [query] = document.get("checkpoint", document)["queries"]
        [part] = query["operators"]
        assert (part["subtasks"], part["passed_subtasks"], part["applied_number"], part["state_bytes"]) == (1, 0, 4, 7)
        assert not {"totals", "applied_events"} & part.keys()


def test_listings_are_newest_first_by_kind_and_state_in_pages(store: ControlStore) -> None:
    register(store)
    dice = random.Random(3)
    known = [
        checkpoint(
            number,
            dice.choice(STATES),
            dice.choice(list(CheckpointKind)),
            requested_by=dice.choice([None, "ada", "eve"]),
        )
        for number in dice.sample(range(1, 100), 60)
    ]
    for each in known:
        store.checkpoints.save(JOB, each)
    places = itertools.count(1)
    placed = [
        each if each.state is CheckpointState.IN_PROGRESS else replace(each, sequence=next(places)) for each in known
    ]
    newest = sorted(placed, key=lambda each: -each.id)
    for kind, state, actor in itertools.product((None, *CheckpointKind), (None, *STATES), (None, "ada")):
        wanted = partial(store.checkpoints.list, JOB, kind, state, requested_by=actor)
        expected = [
            each
            for each in newest
            if kind in (None, each.kind) and state in (None, each.state) and actor in (None, each.requested_by)
        ]
        assert list(wanted()) == expected
        paged = [*wanted(limit=2)]
        assert [*paged, *wanted(limit=100, before_id=paged[-1].id)] == expected


def test_a_report_is_a_checkpoint_with_all_that_is_known_of_it_and_its_job(store: ControlStore) -> None:
    register(store)
    operators = (operator_part(operator="op"),)
    done = with_subtasks(checkpoint(1, queries=(query_part(query="q", operators=operators),)), (subtask_part(),))
    store.checkpoints.save(JOB, done)
    store.checkpoints.save(JOB, checkpoint(2))
    early = store.checkpoints.report(JOB, 1)
    assert (early.checkpoint, early.last_recovery) == (store.checkpoints.get(JOB, 1), None)
    assert (early.subtasks, early.job.queries) == ((subtask_part(),), store.jobs.get(JOB).queries)
    for message in ("the first", "the second"):
        store.recoveries.add(recovery(message=message, started_at=NOON + timedelta(hours=len(message))))
    report = store.checkpoints.report(JOB, 2)
    assert (report.checkpoint.id, report.checkpoint.queries, report.subtasks) == (2, (), ())
    assert report.last_recovery is not None
    assert report.last_recovery.message == "the second"
    with pytest.raises(RecordNotFound, match="did you mean 2 or 1"):
        store.checkpoints.report(JOB, 3)
    with pytest.raises(JobNotFound):
        store.checkpoints.report("nobody", 1)


def test_another_jobs_checkpoints_are_its_own(store: ControlStore) -> None:
    register(store)
    register(store, "orders")
    store.checkpoints.save(JOB, checkpoint(1))
    store.checkpoints.save("orders", checkpoint(2, job="orders"))
    assert [each.id for each in store.checkpoints.list(JOB)] == [1]
    assert [each.id for each in store.checkpoints.list(JOB, state=CheckpointState.COMPLETED)] == [1]
    with pytest.raises(RecordNotFound, match="did you mean 1"):
        store.checkpoints.get(JOB, 2)
    with pytest.raises(JobNotFound):
        store.checkpoints.list("nobody")


def test_the_summary_counts_all_and_measures_the_newest_that_were_completed(store: ControlStore) -> None:
    register(store)
    for number in range(1, 21):
        state = CheckpointState.FAILED if number % 5 == 0 else CheckpointState.COMPLETED
        store.checkpoints.save(JOB, checkpoint(number, state, duration_seconds=float(number), state_bytes=number))
    store.checkpoints.save(JOB, checkpoint(21, kind=CheckpointKind.SAVEPOINT, duration_seconds=100.0))
    store.checkpoints.discarded(JOB, [19])
    summary = store.checkpoints.summary(JOB, window=4)
    assert summary.counts == {"total": 21, "in_progress": 0, "failed": 4, "completed": 16, "discarded": 1}
    assert (summary.window, summary.duration.count) == (4, 4)
    assert (summary.duration.minimum, summary.duration.maximum) == (17.0, 100.0)
    assert (summary.duration.p50, summary.duration.average) == (18.5, 38.5)
    only = store.checkpoints.summary(JOB, kind=CheckpointKind.SAVEPOINT)
    assert (only.counts["total"], only.duration.count, only.duration.p999) == (1, 1, 100.0)
    register(store, "empty")
    assert store.checkpoints.summary("empty").duration == Percentiles()


def test_a_database_computes_the_percentiles_that_we_compute(store: ControlStore) -> None:
    register(store)
    dice = random.Random(5)
    durations = [dice.expovariate(1.0) if dice.random() < 0.9 else None for _ in range(150)]
    for number, duration in enumerate(durations, 1):
        store.checkpoints.save(JOB, checkpoint(number, duration_seconds=duration, new_bytes=dice.randrange(2**50)))
    summary = store.checkpoints.summary(JOB)
    for name, value in summary.duration.to_json().items():
        assert value == pytest.approx(getattr(percentiles(durations), name)), name
    sizes = [each.new_bytes for each in store.checkpoints.list(JOB, limit=1000)]
    assert summary.new_bytes.p999 == pytest.approx(percentiles(sizes).p999)
    assert (summary.new_bytes.minimum, summary.new_bytes.count) == (min(sizes), 150)


def test_percentiles_are_between_the_values_around_them() -> None:
    spread = percentiles([None, *map(float, range(1001))])
    assert (spread.count, spread.minimum, spread.maximum, spread.average) == (1001, 0.0, 1000.0, 500.0)
    assert (spread.p50, spread.p90, spread.p95, spread.p99, spread.p999) == (500.0, 900.0, 950.0, 990.0, 999.0)
    assert percentiles([1.0, 2.0]).p90 == pytest.approx(1.9)
    assert percentiles([7]).p50 == 7


def test_writers_at_the_same_moment_count_each_checkpoint_once(store: ControlStore) -> None:
    register(store)
    steps = [checkpoint(number, state) for number in range(1, 6) for state in STATES[:3]] * 2
    random.Random(1).shuffle(steps)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda step: store.checkpoints.save(JOB, step), steps))
    assert store.checkpoints.summary(JOB).counts["completed"] == 5
    assert store.checkpoints.summary(JOB).counts["total"] == 5
