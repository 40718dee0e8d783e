from __future__ import annotations

from coord_control.control.agent.driver_records import live_status
from coord_control.ids import CheckpointId
from coord_control.protocol.operator import Totals
from coord_control.protocol.status import GatewayStatus, JobStatus, OperatorStatus, QueryStatus, QueryTarget
from coord_control.storage.records import BlockedRecord, LiveOperator


def _reported(operator: OperatorStatus) -> LiveOperator:
    status = JobStatus("flights", 1, (), (operator,), slow_callbacks=0, group_commits=0)
    [found] = live_status(status, None, None, "").operators
    return found


def test_what_a_query_writes_and_how_much_is_part_of_a_heartbeat() -> None:
    target = QueryTarget("lake.alerts", {"carrier": "string"})
    query = QueryStatus("alerts", "running", 41, 0, None, rows=7, output_rows=3, target=target)
    status = JobStatus("flights", 1, (query,), (), slow_callbacks=0, group_commits=0)
    [found] = live_status(status, None, None, "").queries

    assert (found.rows, found.output_rows) == (7, 3)
    assert (found.table, found.columns) == ("lake.alerts", {"carrier": "string"})


def test_blocked_events_of_an_operator_are_reported_by_cause_since_the_driver_started() -> None:
    totals = Totals(blocked_events=10, blocked_seconds=4.0, checkpoint_blocked_events=3, checkpoint_blocked_seconds=1.0)
    gateways = tuple(
        GatewayStatus(
            subtask=each,
            is_open=False,
            blocked=4,
            blocked_total=5,
            blocked_seconds=2.0,
            mailbox=0,
            checkpoint_blocked_total=1,
            checkpoint_blocked_seconds=0.5,
        )
        for each in range(2)
    )
    by_checkpoints = {CheckpointId(7): 2, CheckpointId(8): 1}
    found = _reported(OperatorStatus("threshold", "alerts", 41, totals, gateways, 5, by_checkpoints))

    assert found.blocked_by == {
        "epoch": BlockedRecord(now=5, events=15, seconds=6.0),
        "checkpoint": BlockedRecord(now=3, events=5, seconds=2.0),
    }
    assert (found.blocked_now, found.blocked_total, found.blocked_seconds) == (8, 10, 4.0)


def test_the_cause_of_no_blocked_event_is_reported_as_zero() -> None:
    found = _reported(OperatorStatus("threshold", "alerts", None, Totals(), ()))

    assert found.blocked_by == {"epoch": BlockedRecord(), "checkpoint": BlockedRecord()}
