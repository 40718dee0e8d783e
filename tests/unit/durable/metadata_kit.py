"""A checkpoint's metadata with something in every field."""

from __future__ import annotations

import datetime

from coord_control.durable.checkpoints.metadata_file import (
    CheckpointMetadata,
    FileEntry,
    OperatorSnapshot,
    QuerySnapshot,
    SinkSnapshot,
    StateOperator,
    Trigger,
)
from coord_control.durable.job_folder.lineage_record import LineageOperator, Reached
from coord_control.ids import BarrierId, CheckpointId, Epoch, Generation, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.cut import OperatorCut
from coord_control.protocol.records import Ack, EventBatch, LiveInForce, LiveValue
from coord_control.protocol.recovery import Outbox, Replay


def moment(second: int) -> datetime.datetime:
    return datetime.datetime(2026, 1, 2, 3, 4, second, tzinfo=datetime.UTC)


def replay() -> Replay:
    ack = Ack(OperatorUid("threshold"), SubtaskIndex(1), Epoch(42), 55, None, (EventBatch(0, 1, b'{"late":4}'),))
    return Replay(Epoch(42), BarrierId(3 << 32 | 9), {SubtaskIndex(1): (EventBatch(1, 1, b"{}"),)}, {ack.subtask: ack})


def full_metadata() -> CheckpointMetadata:
    return CheckpointMetadata(
        checkpoint=CheckpointId(7),
        kind="savepoint",
        job="flights",
        label="before-the-upgrade",
        generation=Generation(3),
        barrier=BarrierId(3 << 32 | 12),
        trigger=Trigger(cause="api", key="k-1", requested_at=moment(5), details={"by": "ada", "reason": "naïve"}),
        triggered_at=moment(6),
        completed_at=moment(7),
        queries={
            QueryName("delays"): QuerySnapshot(
                query_id="7c0ee4e6-0a4a-4c4e-9d4f-7c5f2f6c1a11",
                epoch=Epoch(41),
                lineage="lineage-000002",
                spark_version="4.3.0",
                offsets=({"logOffset": 40}, {"topic": {"0": 2**53 + 1}}, None, 12),
                planned_offsets=({"logOffset": 41}, {"topic": {"0": 2**53 + 2}}, None, 13),
                batch_metadata={"batchWatermarkMs": 1700000000000, "conf": {"spark.sql.shuffle.partitions": "2"}},
                commit={"nextBatchWatermarkMs": 1700000001000},
                state_operators=(
                    StateOperator(
                        id=0,
                        name="stateStoreSave",
                        provider="rocksdb",
                        provider_class="org.example.Provider",
                        partitions=2,
                        stores=("default",),
                        checkpoint_format=2,
                        description_version=2,
                        properties={"outputMode": "Update"},
                    ),
                ),
                shuffle_partitions=2,
                sources=("FileStreamSource", "Kafka[flights]"),
                reached=Reached(committed=Epoch(50), planned=Epoch(51)),
                sink=SinkSnapshot(kind="file", place="file:/out/delays", position="41"),
                planned_live={"limits": LiveInForce(3, b'{"minutes":45.0}', Epoch(40))},
                files=(
                    FileEntry("commits/41", 29, "0a1b2c3d"),
                    FileEntry("state/0/0/42.zip", 1 << 33, "ffffffff", "200000000-17f3c2"),
                    FileEntry("_sink/39.compact", 4096, "00000001"),
                ),
            ),
            QueryName("raw"): QuerySnapshot(
                query_id="00000000-0000-0000-0000-000000000000",
                epoch=Epoch(-1),
                lineage="lineage-000001",
                spark_version="4.3.0",
                sink=SinkSnapshot(kind="delta", place="db.raw", unknown="the catalog did not answer"),
            ),
        },
        operators={
            OperatorUid("threshold"): OperatorSnapshot.of(
                QueryName("delays"),
                LineageOperator(
                    parallelism=4, state="Threshold", down=("SetThreshold", "Forget"), up=("Late",), wake=True
                ),
                OperatorCut(
                    OperatorUid("threshold"),
                    coordinator_state=b"\x00\xff{}",
                    states={SubtaskIndex(0): '{"city":"Zürich"}'.encode(), SubtaskIndex(2): None},
                    down={SubtaskIndex(3): (EventBatch(1, 2, b"{},{}"), EventBatch(0, 1, b'{"minutes":30.0}'))},
                    up=(Outbox(SubtaskIndex(0), 41, (EventBatch(0, 1, b'{"late":3}'),)),),
                    replay=replay(),
                ),
            ),
            OperatorUid("silent"): OperatorSnapshot(query=QueryName("delays"), parallelism=1, state="None"),
        },
        live={"limits": LiveValue(4, '{"minutes":50.0,"city":"Zürich"}'.encode())},
        statistics={"seconds": 0.25, "linked_bytes": 12},
    )
