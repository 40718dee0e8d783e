"""``python -m coord_control.spark.process.state_check PATH``: can Spark load every state of a checkpoint or savepoint?

Checksums prove that files are unchanged; only Spark can prove that it understands them. Its state data source reads all
partitions of each state store at the checkpoint's epoch. It reads from a temporary directory of links, so the
checkpoint itself is not touched.

Prints one JSON array with a line per state: query, operator, name, state, rows, problem (null: loaded).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from coord_control.durable.checkpoints.checkpoint_source import CheckpointSource, open_checkpoint
from coord_control.durable.checkpoints.metadata_file import QuerySnapshot
from coord_control.durable.checkpoints.state_lookup import states_of
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.restore.export import export_query
from coord_control.ids import QueryName
from coord_control.spark.hadoop_files import files_for
from coord_control.spark.session import require_state_reader, storage_session
from coord_control.spark.states.state_source import load_state, problem_of

__all__ = ["LoadedState", "load_states"]


@dataclass(frozen=True, slots=True)
class LoadedState:
    """The result of loading one state.

    Attributes:
        state: a side of a join, or a state variable; empty if the operator has only one state.
        rows: the number of keys or entries.
        problem: why it could not be loaded.
    """

    query: str
    operator: int
    name: str
    state: str
    rows: int | None
    problem: str | None = None


def load_states(spark: SparkSession, source: CheckpointSource) -> Iterator[LoadedState]:
    """Load all states of a checkpoint with Spark, one at a time.

    Raises:
        SparkTooOld: this Spark cannot read states.
    """
    require_state_reader(spark.version)
    for query, snapshot in source.metadata.queries.items():
        if not snapshot.state_operators:
            continue
        with tempfile.TemporaryDirectory(prefix="coordctl-state-") as folder:
            directory = str(Path(folder) / "spark")
            export_query(LocalFiles(), source, query, directory, new_id=True)
            yield from _load_query(spark, query, snapshot, directory)


def _load_query(
    spark: SparkSession, query: QueryName, snapshot: QuerySnapshot, directory: str
) -> Iterator[LoadedState]:
    for operator in snapshot.state_operators:
        for state in states_of(query, snapshot, operator):
            try:
                rows = load_state(spark, state, directory).count()
            except (PySparkException, Py4JJavaError) as error:
                yield LoadedState(query, operator.id, operator.name, state.name, None, problem_of(error))
            else:
                yield LoadedState(query, operator.id, operator.name, state.name, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Load every state of a checkpoint or savepoint with Spark.")
    parser.add_argument("path")
    path = str(parser.parse_args().path)
    spark = storage_session()
    try:
        with open_checkpoint(files_for(path, spark), path, "its states are being loaded") as source:
            print(json.dumps([asdict(state) for state in load_states(spark, source)]))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
