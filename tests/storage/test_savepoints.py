"""Savepoints, recoveries and the audit trail: what is written again is not there twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from coord_control.errors import JobNotFound, RecordNotFound
from coord_control.storage.records import AuditRecord, CheckpointKind, SavepointRecord
from coord_control.storage.store import ControlStore
from tests import records_kit as records
from tests.records_kit import JOB, NOON, checkpoint
from tests.storage.kit import register

TAKEN = SavepointRecord(
    path="/s/one", job=JOB, checkpoint=7, label="before", size=10, created_at=NOON, applied_numbers={"op": 4}
)


def test_a_savepoint_is_recorded_by_its_path(store: ControlStore) -> None:
    recorded = store.savepoints.save(TAKEN)
    assert replace(recorded, id=None, recorded_at=None) == TAKEN
    assert store.savepoints.get("/s/one") == recorded
    imported = store.savepoints.save(SavepointRecord(path="/elsewhere/two", size=3), imported=True)
    assert (imported.imported, imported.job) == (True, None)
    assert store.savepoints.list() == (imported, recorded)
    assert store.savepoints.list(JOB) == (recorded,)
    assert store.savepoints.list(limit=1, before_id=imported.id) == (recorded,)


def test_importing_what_a_job_has_taken_changes_nothing_of_that(store: ControlStore) -> None:
    store.savepoints.save(TAKEN)
    again = store.savepoints.save(SavepointRecord(path="/s/one", size=12, applied_numbers={"op": 4}), imported=True)
    assert (again.imported, again.job, again.checkpoint, again.label, again.size) == (False, JOB, 7, "before", 12)
    assert again.applied_numbers == {"op": 4}
    assert store.savepoints.save(SavepointRecord(path="/s/one", label="after")).label == "after"


def test_a_savepoint_is_verified_and_forgotten(store: ControlStore) -> None:
    store.savepoints.save(TAKEN)
    whole = store.savepoints.mark_verified("/s/one")
    assert (whole.verified_ok, whole.problems) == (True, ())
    damaged = store.savepoints.mark_verified("/s/one", ["a: checksum"])
    assert (damaged.verified_ok, damaged.problems) == (False, ("a: checksum",))
    with pytest.raises(RecordNotFound, match="did you mean /s/one"):
        store.savepoints.forget("/s/on")
    store.savepoints.forget("/s/one")
    assert store.savepoints.list() == ()


def test_a_recovery_that_is_written_twice_is_one(store: ControlStore) -> None:
    register(store)
    recovery = records.recovery(generation=2, query="q", from_epoch=4)
    store.recoveries.add(recovery)
    store.recoveries.add(replace(recovery, duration_seconds=1.5, epochs_rerun=1))
    of_the_job = records.recovery(generation=2, cause="restore", started_at=NOON + timedelta(1), from_checkpoint=3)
    store.recoveries.add(of_the_job)
    store.recoveries.add(of_the_job)
    newest, first = store.recoveries.list(JOB)
    assert replace(newest, id=None, sequence=None) == of_the_job
    assert (first.query, first.duration_seconds, first.epochs_rerun, first.from_epoch) == ("q", 1.5, 1, 4)
    assert store.recoveries.list(JOB, limit=5, before_id=newest.id) == (first,)
    with pytest.raises(JobNotFound):
        store.recoveries.add(replace(recovery, job="nobody"))


def test_the_trail_keeps_what_is_no_command(store: ControlStore) -> None:
    entry = AuditRecord(actor="ada", host="laptop", action="import", subject="/s/one", outcome="completed")
    store.audit.add(entry)
    store.audit.add(replace(entry, job=JOB, at=NOON, details={"size": 3}))
    newest, first = store.audit.list()
    assert (newest.at, newest.details, newest.job) == (NOON, {"size": 3}, JOB)
    assert first.at is not None
    assert replace(first, at=None, id=None) == entry
    assert store.audit.list(JOB) == (newest,)
    assert store.audit.list(subject="/s/one", before_id=newest.id) == (first,)


def test_a_savepoint_that_was_removed_is_not_listed_and_its_imported_copy_is(store: ControlStore) -> None:
    register(store)
    for number in (1, 2):
        store.checkpoints.save(JOB, checkpoint(number, kind=CheckpointKind.SAVEPOINT))
        store.savepoints.save(SavepointRecord(path=f"/s/{number}", job=JOB, checkpoint=number))
    store.savepoints.save(SavepointRecord(path="/s/other", job="orders", checkpoint=1))
    store.savepoints.save(SavepointRecord(path="/copy/1", job=JOB, checkpoint=1), imported=True)
    for _ in range(2):
        store.checkpoints.discarded(JOB, [1])
        assert {each.path for each in store.savepoints.list()} == {"/s/2", "/s/other", "/copy/1"}
