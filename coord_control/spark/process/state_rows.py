"""``python -m coord_control.spark.process.state_rows``: prints rows of a state, or how two states differ.

Reads a :class:`~coord_control.spark.states.state_request.StateRequest` as JSON from standard input, and prints the
:class:`~coord_control.spark.states.state_request.StateRows` as one line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from coord_control.errors import StoreError
from coord_control.spark.session import storage_session
from coord_control.spark.states.state_reader import StateReader
from coord_control.spark.states.state_request import StateRequest, StateRows
from coord_control.spark.states.state_source import problem_of

__all__ = ["state_rows"]


def state_rows(spark: SparkSession, request: StateRequest) -> StateRows:
    """Return rows of a state, or how two states differ."""
    with contextlib.ExitStack() as stack:
        try:
            reader = stack.enter_context(StateReader(request.path, spark, scratch=request.scratch))
            if request.other is None:
                return _answer(reader.read(request.query, request.operator, request.state), request.limit, {})
            other = stack.enter_context(StateReader(request.other, spark, scratch=request.scratch))
            found = reader.compare(other, request.query, request.operator, request.state).persist()
            counts = {row["change"]: row["count"] for row in found.groupBy("change").count().collect()}
            return _answer(found, request.limit, counts)
        except (PySparkException, Py4JJavaError) as error:
            return StateRows(problem=problem_of(error))
        except StoreError as error:
            return StateRows(problem=str(error))


def _answer(frame: DataFrame, limit: int, counts: dict[str, int]) -> StateRows:
    # One more than wanted shows whether there are more, without counting them all.
    columns = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
    found = [json.loads(row[0]) for row in frame.limit(limit + 1).select(columns).collect()]
    return StateRows(rows=found[:limit], has_more=len(found) > limit, counts=counts)


def main() -> None:
    request = StateRequest.model_validate_json(sys.stdin.read())
    spark = storage_session()
    try:
        print(state_rows(spark, request).model_dump_json())
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
