"""What gives an attempt up, and what fails a query, once."""

from __future__ import annotations

from coord_control.errors import CoordinatorTimeout, StoreUnavailable, SubtaskFailed
from coord_control.ids import QueryName
from coord_control.protocol.messages import Acknowledge, FailQuery, Hello
from tests.core_kit import OP, QUERY, Stage, attempt, spec
from tests.unit.protocol.job_kit import BROKEN, failure, refusal

# Connections.


def test_a_broken_connection_gives_its_attempt_up(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.snapshot()
    stage.disconnect(1)
    assert stage.core.totals()[OP].attempts_failed == 1
    assert "abandoned" in refusal(stage.ack(0, 0, task=1), 1)


def test_a_connection_that_breaks_after_the_ack_gives_nobody_up(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.snapshot()
    stage.ack(0, 0, task=1)
    stage.disconnect(1)
    assert stage.core.totals()[OP].attempts_failed == 0


def test_a_refused_ack_leaves_the_connection_to_its_attempt(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.core.acknowledge(Acknowledge(attempt(task=1), None), 1, 0.0)
    assert refusal(stage.execute(), 1) == "epoch 0 is not running"
    stage.disconnect(1)
    assert stage.core.totals()[OP].attempts_failed == 1


# Failing.


def test_a_failure_that_no_retry_repairs_fails_the_query_with_its_reason(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.snapshot()
    failed = failure(stage.attempt_ended(0, 0, task=1, reason="StateTooLarge: 2 MiB", fatal=True))
    assert failed is not None
    assert isinstance(failed.error, SubtaskFailed)
    assert "StateTooLarge: 2 MiB" in str(failed.error)


def test_a_coordinator_that_fails_is_counted_once_until_the_next_start(stage: Stage) -> None:
    stage.core.coordinator_failed(OP, 1, BROKEN)
    assert failure(stage.execute()) == FailQuery(QUERY, BROKEN)
    stage.core.coordinator_failed(OP, 1, BROKEN)
    assert not stage.execute()
    assert "being restarted" in refusal(stage.hello(0, 0, task=1), 1)
    stage.end_run()
    stage.start()
    stage.core.coordinator_failed(OP, 2, BROKEN)
    assert failure(stage.execute()) == FailQuery(QUERY, BROKEN)


def test_a_failed_query_commits_nothing_more(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.snapshot()
    stage.ack(0, 0, task=1, outbox="x")
    stage.core.coordinator_failed(OP, 1, BROKEN)
    stage.execute()
    assert not stage.commit(0)


def test_a_coordinator_that_owes_its_state_fails_its_query_once(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.core.tick(60.0)
    assert not stage.execute()
    for now, fails in ((61.0, True), (62.0, False)):
        stage.core.tick(now)
        failed = failure(stage.execute())
        assert (failed is not None) is fails
        assert failed is None or isinstance(failed.error, CoordinatorTimeout)


def test_when_the_store_is_lost_every_started_query_ends_its_run_and_fails() -> None:
    stage = Stage()
    stage.core.add_query(QueryName("never started"), "x", [spec("idle")])
    stage.start()
    stage.hello(0, 0, task=1)
    lost = StoreUnavailable("/store", "write", "disk full")
    stage.core.fail_all(lost, 0.0)
    batch = stage.execute()
    assert "being restarted" in refusal(batch, 1)
    assert failure(batch) == FailQuery(QUERY, lost)
    assert stage.core.operators() == []


def test_when_the_store_is_lost_nothing_that_rests_on_the_lost_records_is_answered(stage: Stage) -> None:
    stage.hello(0, 0, task=1)
    stage.core.snapshot_completed(OP, 1, stage.asked[OP].barrier, b"S0", 0.0)
    lost = stage.core.take()  # its begin record is on its way to the storage
    assert lost.persist
    stage.core.hello(Hello(attempt(1, 0, 2)), 2, 0.0)
    stage.core.fail_all(StoreUnavailable("/store", "write", "disk full"), 0.0)
    assert "could not make it durable" in refusal(stage.core.take(), 2)
