"""What is said of a query that had to go on from durable facts, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coord_control.durable.job_folder.lineage import Lineage
from coord_control.durable.job_folder.lineage_record import Reached, RestoredFrom
from coord_control.ids import NO_EPOCH, CheckpointId, Epoch, Generation, QueryName
from coord_control.protocol.job_facts import JobListener, RecoveryCause, RecoveryFact
from coord_control.spark.job.news import News
from coord_control.spark.queries.recovery_log import RecoveryLog

Q = QueryName("q")


class Heard(JobListener):
    """Listens to recoveries."""

    def __init__(self) -> None:
        self.facts: list[RecoveryFact] = []

    def on_recovery(self, fact: RecoveryFact) -> None:
        self.facts.append(fact)


def lineage(restored: RestoredFrom | None = None) -> Lineage:
    return Lineage(Q, "id", "/checkpoint", "/job/queries/q/lineage-1", restored)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def recoveries(heard: Heard) -> RecoveryLog:
    news = News()
    news.subscribe(heard)
    return RecoveryLog(Generation(2), RecoveryCause.DRIVER_DIED, news)


def test_a_query_that_never_ran_does_not_recover(recoveries: RecoveryLog, heard: Heard) -> None:
    recoveries.driver_started(lineage(), NO_EPOCH, NO_EPOCH)
    recoveries.committed(Q, Epoch(0))
    recoveries.close()
    assert heard.facts == []


def test_it_ends_with_the_first_commit_after_it(recoveries: RecoveryLog, heard: Heard) -> None:
    recoveries.driver_started(lineage(), Epoch(4), Epoch(5))
    recoveries.committed(Q, Epoch(4))
    assert heard.facts == []
    assert recoveries.under_way == 1
    recoveries.committed(Q, Epoch(5))
    recoveries.committed(Q, Epoch(6))
    [fact] = heard.facts
    assert (fact.cause, fact.query, fact.generation) == (RecoveryCause.DRIVER_DIED, Q, 2)
    assert (fact.from_epoch, fact.epochs_again) == (4, 1)
    assert fact.duration_seconds is not None
    assert recoveries.under_way == 0


def test_one_that_fails_before_a_commit_is_followed_by_the_next(recoveries: RecoveryLog, heard: Heard) -> None:
    recoveries.query_failed(Q, "first")
    recoveries.restarts(Q, Epoch(2), Epoch(3))
    recoveries.query_failed(Q, "second")
    recoveries.restarts(Q, Epoch(2), Epoch(3))
    recoveries.close()
    assert [(fact.message, fact.from_epoch, fact.epochs_again) for fact in heard.facts] == [
        ("first", 2, 1),
        ("second", 2, 1),
    ]
    assert all(fact.cause is RecoveryCause.QUERY_FAILED and fact.duration_seconds is None for fact in heard.facts)


def test_a_restore_names_its_checkpoint(recoveries: RecoveryLog, heard: Heard) -> None:
    restored = RestoredFrom.model_construct(path="/savepoint", checkpoint=CheckpointId(7), epoch=Epoch(3))
    recoveries.driver_started(lineage(restored), Epoch(3), Epoch(3))
    recoveries.committed(Q, Epoch(4))
    [fact] = heard.facts
    assert (fact.cause, fact.checkpoint, fact.path) == (RecoveryCause.RESTORE, 7, "/savepoint")
    assert fact.epochs_again == 0  # a fork, or nothing had run after the checkpoint


def test_a_restore_runs_again_what_had_run_after_its_checkpoint(recoveries: RecoveryLog, heard: Heard) -> None:
    restored = RestoredFrom.model_construct(path="/savepoint", checkpoint=CheckpointId(7), epoch=Epoch(3))
    earlier = Reached(committed=Epoch(8), planned=Epoch(9))
    recoveries.driver_started(replace(lineage(restored), earlier=earlier), Epoch(3), Epoch(4))
    recoveries.committed(Q, Epoch(4))
    [fact] = heard.facts
    assert (fact.from_epoch, fact.epochs_again) == (3, 6)
