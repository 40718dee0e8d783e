"""``python -m coord_control.spark.process.repartition``: has Spark repartition the states of stopped queries.

Reads a JSON array of states from standard input, and prints one JSON object: query -> why Spark refused. It stops at
the first refusal, because the caller then discards all results.

Spark's interface is experimental and exists in classic sessions only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from coord_control.durable.restore.shuffle_partitions import StateToRepartition
from coord_control.ids import QueryName
from coord_control.spark.session import storage_session
from coord_control.spark.states.state_source import FORMAT_SETTING

__all__ = ["repartition"]

_MANAGER = "_streamingCheckpointManager"
#: Spark does not check this: it would move the only row to where the query does not find it.
_GLOBAL = "an aggregation without keys is kept in one partition, whatever the setting says"


def repartition(spark: SparkSession, states: Sequence[StateToRepartition]) -> dict[QueryName, str]:
    """Have Spark repartition states, until it refuses one.

    Returns:
        The reason of the refusal, by query; empty if all states were repartitioned.
    """
    for state in states:
        session = spark.newSession()  # for separate settings
        if not hasattr(session, _MANAGER):
            return {state.query: f"Spark {spark.version} cannot repartition states; 4.2 and newer can"}
        session.conf.set(FORMAT_SETTING, str(state.checkpoint_format))
        try:
            if any(not _has_keys(session, state, operator) for operator in state.aggregations):
                return {state.query: _GLOBAL}
            getattr(session, _MANAGER).repartition(_uri(state.checkpoint), state.partitions)
        except (PySparkException, Py4JJavaError) as error:
            return {state.query: _reason(error)}
    return {}


def _has_keys(spark: SparkSession, state: StateToRepartition, operator: int) -> bool:
    reader = spark.read.format("statestore").option("path", _uri(state.checkpoint))
    key = reader.option("operatorId", str(operator)).load().schema["key"].dataType
    return not isinstance(key, StructType) or bool(key.fields)


def _uri(path: str) -> str:
    return f"file:{path}" if path.startswith("/") else path


def _reason(error: PySparkException | Py4JJavaError) -> str:
    text = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    return " ".join(text.split()) or type(error).__name__


def main() -> None:
    states = [
        StateToRepartition(**{**fields, "aggregations": tuple(fields["aggregations"])})
        for fields in json.load(sys.stdin)
    ]
    spark = storage_session()
    try:
        print(json.dumps(repartition(spark, states)))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
