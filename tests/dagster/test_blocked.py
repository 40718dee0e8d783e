"""What the sensor says of the events that operators have blocked."""

from __future__ import annotations

import dagster as dg

from coord_control.dagster.feed.cursor import Cursor
from coord_control.storage.records import BlockedRecord, GatewayRecord, LiveOperator, QueryRecord
from tests.dagster.sensor_kit import JOB, OPERATOR, QUERY, Jobs, SensorRig

_QUIET = BlockedRecord()


def _operator(
    epoch: BlockedRecord = _QUIET, checkpoint: BlockedRecord = _QUIET, gateways: tuple[GatewayRecord, ...] = ()
) -> LiveOperator:
    return LiveOperator(uid=OPERATOR, blocked_by={"epoch": epoch, "checkpoint": checkpoint}, gateways=gateways)


def _blocked(rig: SensorRig) -> list[dict[str, object]]:
    """One tick: what it says of blocked events in each observation of the query."""
    found = [event for event in rig.tick() if isinstance(event, dg.AssetObservation)]
    start = f"coord_control/blocked/{OPERATOR}/"
    return [
        {name.removeprefix(start): value.value for name, value in event.metadata.items() if name.startswith(start)}
        for event in found
        if event.asset_key == rig.assets.queries[QUERY]
    ]


def test_an_observation_says_what_waits_now_and_what_had_to_wait_since_the_last_one(rig: SensorRig, jobs: Jobs) -> None:
    jobs.live(epoch=42, operators=(_operator(BlockedRecord(now=2, events=10, seconds=4.0)),))
    first = _blocked(rig)
    jobs.live(
        epoch=43,
        operators=(_operator(BlockedRecord(events=13, seconds=4.5), BlockedRecord(now=1, events=2, seconds=0.25)),),
    )
    second = _blocked(rig)

    assert first == [{"epoch/now": 2, "checkpoint/now": 0}]  # how much of it is new is not known
    assert second == [
        {
            "epoch/now": 0,
            "epoch/events": 3,
            "epoch/seconds": 0.5,
            "checkpoint/now": 1,
            "checkpoint/events": 2,
            "checkpoint/seconds": 0.25,
        }
    ]


def test_numbers_are_plotted_and_the_worst_subtask_is_named(rig: SensorRig, jobs: Jobs) -> None:
    gateways = (
        GatewayRecord(subtask=0, blocked_total=9, blocked_seconds=7.0),
        GatewayRecord(subtask=1, is_open=False, blocked=2, blocked_total=5, blocked_seconds=1.5),
        GatewayRecord(subtask=2),
    )
    jobs.live(epoch=42, operators=(_operator(BlockedRecord(now=2, events=14, seconds=8.5), gateways=gateways),))
    rig.tick()
    jobs.live(epoch=43, operators=(_operator(BlockedRecord(now=2, events=14, seconds=9.5), gateways=gateways),))
    [event] = [each for each in rig.tick() if isinstance(each, dg.AssetObservation)]
    start = f"coord_control/blocked/{OPERATOR}"

    assert event.metadata[f"{start}/worst_subtask"] == dg.MetadataValue.text(
        "subtask 1: 2 events wait now; 5 have waited since the query was started, for 1.5 s"
    )
    assert event.metadata[f"{start}/epoch/now"] == dg.MetadataValue.int(2)
    assert event.metadata[f"{start}/epoch/events"] == dg.MetadataValue.int(0)
    assert event.metadata[f"{start}/epoch/seconds"] == dg.MetadataValue.float(1.0)


def test_a_query_whose_epoch_hangs_is_observed_while_events_have_to_wait(rig: SensorRig, jobs: Jobs) -> None:
    jobs.live(epoch=42, operators=(_operator(),))
    rig.tick()
    assert _blocked(rig) == []
    jobs.live(epoch=42, operators=(_operator(BlockedRecord(now=3, events=3, seconds=2.0)),))
    assert [each["epoch/events"] for each in _blocked(rig)] == [3]
    assert _blocked(rig) == []
    jobs.live(epoch=42, operators=(_operator(BlockedRecord(events=3, seconds=9.0)),))
    assert [(each["epoch/now"], each["epoch/seconds"]) for each in _blocked(rig)] == [(0, 7.0)]


def test_events_that_wait_before_the_first_commit_are_observed(rig: SensorRig, jobs: Jobs) -> None:
    jobs.put(queries=(QueryRecord(name=QUERY, state="running"),))
    jobs.live(epoch=None, operators=(_operator(),))
    assert _blocked(rig) == []
    jobs.live(epoch=None, operators=(_operator(checkpoint=BlockedRecord(now=1, events=1)),))
    assert [each["checkpoint/now"] for each in _blocked(rig)] == [1]
    jobs.live(epoch=0, operators=(_operator(checkpoint=BlockedRecord(now=1, events=1)),))
    assert [each["checkpoint/events"] for each in _blocked(rig)] == [0]


def test_a_new_driver_counts_from_zero(rig: SensorRig, jobs: Jobs) -> None:
    jobs.live(epoch=42, operators=(_operator(BlockedRecord(events=10, seconds=4.0)),))
    rig.tick()
    jobs.put(generation=2)
    jobs.live(epoch=43, generation=2, operators=(_operator(BlockedRecord(events=12, seconds=5.0)),))

    assert [(each["epoch/events"], each["epoch/seconds"]) for each in _blocked(rig)] == [(12, 5.0)]


def test_a_driver_that_does_not_know_the_causes_leaves_them_out(rig: SensorRig, jobs: Jobs) -> None:
    gateways = (GatewayRecord(subtask=0, blocked_total=9, blocked_seconds=7.0),)
    jobs.live(epoch=42, operators=(LiveOperator(uid=OPERATOR, blocked_total=9, gateways=gateways),))

    assert [sorted(each) for each in _blocked(rig)] == [["worst_subtask"]]
    assert rig.cursor is not None
    assert Cursor.decode(rig.cursor).jobs[JOB].blocked[OPERATOR].by == {}
