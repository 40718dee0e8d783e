"""One lineage of a restore, file by file; see :mod:`.prepared_restore` for the order and why.

Threads: one at a time.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from coord_control.durable.checkpoints.checkpoint_source import CheckpointSource
from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata, QuerySnapshot
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.lineage import recorded_lineage, write_query_id
from coord_control.durable.job_folder.lineage_record import (
    LineageOperator,
    LineageRecord,
    Reached,
    RestoredFrom,
    encode_record,
    query_folder,
    record_path,
)
from coord_control.durable.restore.export import SparkFiles
from coord_control.durable.restore.reached import reached_here, reached_with
from coord_control.durable.restore.seeds import write_seed
from coord_control.ids import QueryName

__all__ = ["LineageBuilder", "operator_records"]


@dataclass(slots=True)
class LineageBuilder:
    """Builds the lineages of one restore.

    Attributes:
        files: the job's storage.
        roll_back_sinks: keep what it takes to set the sinks back.
    """

    files: Files
    job_folder: str
    source: CheckpointSource
    number: int
    restore_id: str
    is_fork: bool
    allow_non_restored_state: bool
    roll_back_sinks: bool
    placed: SparkFiles = field(init=False)

    def __post_init__(self) -> None:
        self.placed = SparkFiles(self.files, self.source)

    def build(self, query: QueryName, name: str) -> None:
        """Build the lineage of one query.

        Args:
            name: of the lineage; nothing of that name exists.

        Raises:
            DamagedRecord, MissingRecord: a file of the checkpoint is not what its manifest says.
        """
        snapshot = self.source.metadata.queries[query]
        folder = query_folder(self.job_folder, query)
        record = self._record(query, snapshot, join(folder, name, "spark"))
        self.files.create(record_path(folder, name), encode_record(record))
        write_seed(self.files, join(folder, name), self.source.metadata, query)
        write_query_id(self.files, record.checkpoint_location, record.query_id)
        self.placed.put(query, record.checkpoint_location)
        if self.roll_back_sinks:  # here, because the checkpoint may be gone when the driver sets the sinks back
            self.placed.put_sink_log(query, join(folder, name))

    def _record(self, query: QueryName, snapshot: QuerySnapshot, checkpoint: str) -> LineageRecord:
        operators = operator_records(self.source.metadata, query)
        before = recorded_lineage(self.files, query_folder(self.job_folder, query), query)
        return LineageRecord(
            query=query,
            query_id=str(uuid.uuid4()) if self.is_fork else snapshot.query_id,
            checkpoint_location=checkpoint,
            operators=operators,
            restored_from=RestoredFrom(
                path=self.source.path,
                checkpoint=self.source.metadata.checkpoint,
                restore=self.number,
                id=self.restore_id,
                epoch=snapshot.epoch,
                planned=snapshot.planned,
                reached=None if self.is_fork else self._reached(query, snapshot),
                operators=operators,
                replaced=None if before is None else before[1].named_location,
                allow_non_restored_state=self.allow_non_restored_state,
            ),
        )

    def _reached(self, query: QueryName, snapshot: QuerySnapshot) -> Reached:
        if self.roll_back_sinks and snapshot.sink is not None and snapshot.sink.position is not None:
            return Reached(committed=snapshot.epoch, planned=snapshot.planned)
        return reached_with(snapshot, reached_here(self.files, self.job_folder, query))


def operator_records(metadata: CheckpointMetadata, query: QueryName) -> dict[str, LineageOperator]:
    """Return what a checkpoint says of the operators of a query, as a lineage remembers them."""
    return {uid: operator.declared for uid, operator in metadata.operators.items() if operator.query == query}
