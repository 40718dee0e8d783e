"""A job of two queries on a storage, and savepoints and checkpoints of it that can be restored."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any, Final

from coord_control.durable.checkpoints.checkpoint_source import CheckpointSource
from coord_control.durable.checkpoints.metadata_file import (
    FileEntry,
    OperatorSnapshot,
    QuerySnapshot,
    encode_metadata,
)
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.lineage import Lineage, LineageOperator, current_lineage, open_lineage
from coord_control.durable.restore.prepared_restore import PreparedRestore, prepare_restore
from coord_control.ids import CheckpointId, Epoch, Generation, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.cut import OperatorCut
from coord_control.protocol.records import EventBatch
from coord_control.protocol.recovery import Outbox
from tests.unit.durable.metadata_kit import full_metadata

JOB: Final = "/jobs/flights"
QUERIES: Final = (QueryName("delays"), QueryName("raw"))
OP: Final = OperatorUid("threshold")
RECORD: Final = LineageOperator(parallelism=2, state="S", down=("A",), up=("B",))
DESCRIPTION: Final = "state/0/_metadata/v2/3"
SCHEMA: Final = "state/0/_stateSchema/default/3_abc"


def spark_files(epoch: int, where: str) -> dict[str, bytes]:
    """What Spark needs to go on after an epoch."""
    description = {"stateStoreInfo": [{"storeName": "default", "stateSchemaFilePaths": [f"{where}/{SCHEMA}"]}]}
    versioned = f"v2\n{json.dumps(description)}".encode()
    return {
        f"offsets/{epoch - 1}": b"v1\n{}\n1",
        f"offsets/{epoch}": b"v1\n{}\n2",
        f"commits/{epoch - 1}": b"v1\n{}",
        f"commits/{epoch}": b"v1\n{}",
        f"state/0/0/{epoch + 1}.zip": b"zip" * epoch,
        SCHEMA: b"schema",
        DESCRIPTION: versioned,
        f"{DESCRIPTION}.crc": b"of the description",
    }


def put_checkpoint(
    files: Files,
    path: str,
    *,
    kind: str = "savepoint",
    checkpoint: int = 7,
    epochs: Mapping[QueryName, int] | None = None,
    job: str = "flights",
) -> CheckpointSource:
    """Write a savepoint, or a retained checkpoint (`path` is then `<job>/checkpoints/<id>`)."""
    queries = {}
    for query, epoch in (epochs or {QUERIES[0]: 41, QUERIES[1]: 5}).items():
        entries = []
        contents = spark_files(epoch, "/live/spark") if epoch >= 0 else {}
        for name, data in contents.items():
            tag = None if kind == "savepoint" else f"{len(data)}-1"
            if kind == "savepoint":
                target = join(path, "queries", query, "spark", name)
            else:
                target = join(path.rsplit("/", 2)[0], "shared", query, "lineage-000001", f"{name}.{tag}")
            files.replace(target, data)
            entries.append(FileEntry(name, len(data), f"{zlib.crc32(data):08x}", tag))
        queries[query] = QuerySnapshot(
            query_id=f"id-of-{query}",
            epoch=Epoch(epoch),
            lineage="lineage-000001",
            spark_version="4.3.0",
            files=tuple(entries),
            offsets=(1,) if epoch >= 0 else (),
        )
    metadata = full_metadata().model_copy(
        update={
            "checkpoint": CheckpointId(checkpoint),
            "kind": kind,
            "job": job,
            "queries": queries,
            "operators": {OP: operator_snapshot()} if QUERIES[0] in queries else {},
        }
    )
    files.replace(join(path, "_metadata"), encode_metadata(metadata))
    return CheckpointSource(path, metadata, files)


def operator_snapshot() -> OperatorSnapshot:
    return OperatorSnapshot.of(
        QUERIES[0],
        LineageOperator(parallelism=2, state="S", down=("A",), up=("B",)),
        OperatorCut(
            OP,
            coordinator_state=b"the coordinator's",
            states={SubtaskIndex(0): b'{"n":1}', SubtaskIndex(1): None},
            down={SubtaskIndex(1): (EventBatch(0, 1, b'{"down":1}'),)},
            up=(Outbox(SubtaskIndex(1), 77, (EventBatch(0, 1, b'{"up":1}'),)),),
        ),
    )


def run_before(files: Files) -> None:
    """Both queries have run in their first lineages."""
    for query in QUERIES:
        lineage = opened(files, query)
        for name, data in spark_files(99, lineage.checkpoint).items():
            files.replace(join(lineage.checkpoint, name), data)


def folder(query: QueryName) -> str:
    return join(JOB, "queries", query)


def opened(files: Files, query: QueryName, **options: Any) -> Lineage:
    operators = {OP: RECORD} if query == QUERIES[0] else {}
    return open_lineage(files, folder(query), query, options.pop("operators", operators), **options)


def current(files: Files) -> dict[str, str]:
    """Query -> name of the lineage that counts."""
    found = {query: current_lineage(files, folder(query), query) for query in QUERIES}
    return {query: lineage.name for query, lineage in found.items() if lineage is not None}


def prepared(files: Files, source: CheckpointSource, **options: Any) -> PreparedRestore:
    defaults: dict[str, Any] = {
        "generation": Generation(4),
        "verify_claim": lambda: None,
        "ref": source.path,
        "is_fork": False,
    }
    return prepare_restore(files, JOB, source, **{**defaults, **options})


def seen_by(source: CheckpointSource, files: Files) -> CheckpointSource:
    """The same checkpoint through another view of its storage: it is on the job's own then."""
    return CheckpointSource(source.path, source.metadata, files)


def run_spark(files: Files, checkpoint: str, epoch: int, *, planned: bool = False) -> None:
    """What Spark leaves of a query with one aggregation in one partition, all snapshots, and the input of the query."""
    conf = {"spark.sql.shuffle.partitions": "1"}
    description = {
        "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
        "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 1}],
    }
    files.replace(join(checkpoint, "state/0/_metadata/metadata"), f"v1\n{json.dumps(description)}".encode())
    for number in range(epoch + 1 + planned):
        head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": conf})
        files.replace(join(checkpoint, f"offsets/{number}"), f'v1\n{head}\n{{"logOffset":{number}}}'.encode())
        read = f"file://{checkpoint}-input/{number}.json"
        files.replace(read, b"")
        entry = {"path": read, "timestamp": number, "batchId": number}
        files.replace(join(checkpoint, f"sources/0/{number}"), f"v1\n{json.dumps(entry)}".encode())
    for number in range(epoch + 1):
        files.replace(join(checkpoint, f"commits/{number}"), b'v1\n{"nextBatchWatermarkMs":0}')
        files.replace(join(checkpoint, f"state/0/0/{number + 1}.snapshot"), b"%d" % number * 10)
