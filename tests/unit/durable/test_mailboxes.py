"""Mailboxes on the storage of a job: looked at, and dropped for good or not at all."""

from __future__ import annotations

import os

import pytest

from coord_control.durable.epochs.epoch_store import EpochStore
from coord_control.durable.files.filesystem import join
from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.holder import Holder
from coord_control.durable.job_folder.lineage import current_lineage, spark_position
from coord_control.durable.offline.mailboxes import drop_mailbox, waiting
from coord_control.durable.offline.offline_restore import restore_job
from coord_control.durable.offline.offline_savepoint import save
from coord_control.durable.restore.request import RestoreRequest
from coord_control.errors import Fenced, JobRunning, MailboxNotFound
from coord_control.ids import Generation, OperatorUid, SubtaskIndex
from coord_control.protocol.recovery import Facts, RecoveredOperator, recover
from tests.simulation.memory_files import Crash, CrashAt, MemoryFiles
from tests.unit.durable.restore_kit import JOB, OP, folder
from tests.unit.durable.test_offline_savepoint import DELAYS, EVENT, ran

S0, S1 = SubtaskIndex(0), SubtaskIndex(1)


def next_driver(files: MemoryFiles) -> RecoveredOperator:
    """What the job's next driver finds."""
    newest = generations.newest_claim(files, join(JOB, "generations"))
    assert newest is not None
    lineage = current_lineage(files, folder(DELAYS), DELAYS)
    assert lineage is not None
    store = EpochStore(files, lineage.epochs, Generation(newest[0].generation + 1), 100)
    return recover(Facts(tuple(store.open()), *spark_position(files, lineage.checkpoint)), OP)


def test_what_waits_is_shown_without_a_claim(files: MemoryFiles) -> None:
    ran(files)
    before = files.paths()
    (mailbox,) = waiting(files, JOB)
    assert (mailbox.query, mailbox.operator, mailbox.subtask, mailbox.batches) == (DELAYS, OP, 1, (EVENT,))
    assert (mailbox.events, mailbox.bytes) == (1, 7)
    assert [event for _, event in mailbox.first(5)] == [{"n": 1}]
    assert mailbox.first(0) == []
    assert files.paths() == before


def test_a_dropped_mailbox_is_empty_for_the_next_driver(files: MemoryFiles) -> None:
    ran(files)
    dropped = drop_mailbox(files, JOB, OP, S1)
    assert dropped.batches == (EVENT,)
    assert waiting(files, JOB) == []
    found = next_driver(files)
    assert (found.mailboxes, found.coordinator_state) == ({}, b"before 3")
    assert drop_mailbox(files, JOB, OP, S1).events == 0


def test_what_an_ack_has_consumed_in_the_planned_epoch_is_no_mailbox(files: MemoryFiles) -> None:
    ran(files, planned=True)
    assert drop_mailbox(files, JOB, OP, S0).events == 0
    replay = next_driver(files).replay
    assert replay is not None
    assert replay.inputs == {S0: (EVENT, EVENT)}


def test_the_mailbox_of_a_job_with_a_driver_is_not_dropped(files: MemoryFiles) -> None:
    ran(files)
    generations.claim(files, join(JOB, "generations"), Holder.of([os.getpid()]))
    assert [mailbox.subtask for mailbox in waiting(files, JOB)] == [1]  # to look is allowed
    before = files.paths()
    with pytest.raises(JobRunning):
        drop_mailbox(files, JOB, OP, S1, force=True)
    assert files.paths() == before


@pytest.mark.parametrize(
    ("operator", "subtask", "why"), [("other", 0, "the operators of"), (OP, 99, r"its subtasks are 0\.\.")]
)
def test_a_mailbox_that_does_not_exist_is_named(files: MemoryFiles, operator: str, subtask: int, why: str) -> None:
    ran(files)
    before = files.paths()
    with pytest.raises(MailboxNotFound, match=why):
        drop_mailbox(files, JOB, OperatorUid(operator), SubtaskIndex(subtask))
    assert files.paths() == before


def test_what_was_restored_and_has_not_run_is_started_first(files: MemoryFiles) -> None:
    ran(files)
    save(files, JOB)
    restore_job(files, lambda path: files, RestoreRequest(ref="1"), root="/jobs", job="flights")
    with pytest.raises(MailboxNotFound, match="start it once"):
        drop_mailbox(files, JOB, OP, S1)


def test_a_drop_that_a_driver_overtakes_is_not_reported(files: MemoryFiles) -> None:
    ran(files)

    class Overtaken:
        def before_write(self, path: str) -> None:
            if path.endswith(".log"):
                generations.claim(files, join(JOB, "generations"), Holder.of([os.getpid()]))

        def after_write(self, path: str) -> None:
            pass

    with pytest.raises(Fenced):
        drop_mailbox(files.seen_by(Overtaken()), JOB, OP, S1)


def test_a_crash_leaves_a_mailbox_whole_or_empty(files: MemoryFiles) -> None:
    ran(files)
    count = CrashAt()
    drop_mailbox(files.copy().seen_by(count), JOB, OP, S1)
    seen = set()
    for point in range(1, count.passed + 1):
        disk = files.copy()
        with pytest.raises(Crash):
            drop_mailbox(disk.seen_by(CrashAt(point)), JOB, OP, S1)
        found = next_driver(disk).mailboxes
        assert found in ({}, {S1: (EVENT,)})
        seen.add(len(found))
    assert seen == {0, 1}
