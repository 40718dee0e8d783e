"""One operator, three forms of its function: values are as in Spark's own functions, and the protocol is the same."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

import coord_control as cc
from coord_control import errors
from tests.spark.conftest import MakeStream
from tests.spark.jobs import FORMS, SCHEMA, Dialogue, MakeJob, apply, drain, follow, rows, talk, write
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark

#: Far from the time zone of any machine that runs tests, and with a summer time.
_ZONE: Final = "Australia/Lord_Howe"
_TYPES: Final = (
    "key string, flag boolean, small tinyint, number int, value long, single float, real double, price decimal(20, 4), "
    "day date, moment timestamp, clock timestamp_ntz, raw binary, items array<int>, nested struct<a: int, b: string>, "
    "counts map<string, int>, deep array<struct<at: timestamp, price: decimal(10, 2)>>"
)
_SHOWN: Final = "text string"


def everything() -> list[tuple[Any, ...]]:
    """A row of values, a row of nulls, and one of values at an edge, the moment in a repeated hour of :data:`_ZONE`."""
    utc = dt.UTC
    moment = dt.datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=utc)
    repeated = dt.datetime(2024, 4, 6, 15, 15, tzinfo=utc)
    clock = repeated.replace(tzinfo=None)
    first = ("a", True, 1, 2, 3, 0.5, 0.25, Decimal("12345.6789"), dt.date(2024, 2, 29), moment, clock, b"\x00\xff")
    last = ("b", False, -128, -(2**31), 2**62, -0.0, 1e300, Decimal("-0.0001"), dt.date(1, 1, 1), repeated, clock, b"")
    return [
        (*first, [1, None, 3], Row(a=1, b="x"), {"one": 1, "none": None}, [Row(at=moment, price=Decimal("1.50"))]),
        (None,) * 16,
        (*last, [], Row(a=None, b=None), {}, [None, Row(at=moment, price=None)]),
    ]


@pytest.fixture
def session(own_session: SparkSession) -> SparkSession:
    own_session.conf.set("spark.sql.session.timeZone", _ZONE)
    return own_session


@pytest.fixture
def saved(session: SparkSession, tmp_path: Path) -> Path:
    """A folder with all of :func:`everything`, in one file and so in one epoch."""
    path = tmp_path / "everything"
    session.createDataFrame(everything(), _TYPES).coalesce(1).write.parquet(str(path))
    return path


def run(job: cc.Job, form: str, frame: DataFrame, function: Any, schema: str, target: Path) -> list[Row]:
    """What an operator makes of a stream, in the order of its subtask's rows."""
    operator = talk(job, Dialogue(), parallelism=1)
    out = apply(operator, frame, function, form=form, schema=schema)
    drain(job, out.writeStream.format("parquet").option("path", str(target)))
    return frame.sparkSession.read.schema(schema).parquet(str(target)).collect()


def passed_on(subtask: cc.Subtask[Any], some: Iterator[Any]) -> Iterator[Any]:
    yield from some


@pytest.mark.parametrize("form", FORMS)
def test_every_type_and_every_null_comes_out_as_it_went_in(
    make_job: MakeJob, session: SparkSession, saved: Path, tmp_path: Path, form: str
) -> None:
    stream = session.readStream.schema(_TYPES).parquet(str(saved))
    with make_job(session=session) as job:
        found = run(job, form, stream, passed_on, _TYPES, tmp_path / "out")
    expected = session.read.schema(_TYPES).parquet(str(saved))
    if form == "pandas":  # an hour that is repeated cannot come back from local times without an offset
        expected = expected.mapInPandas(lambda frames: frames, _TYPES)
    assert found == expected.collect()


def shown_frames(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """What Python sees of a DataFrame: types and values."""
    for frame in frames:
        types = [str(kind) for kind in frame.dtypes]
        yield pd.DataFrame({"text": [repr((types, row)) for row in frame.astype(object).values.tolist()]})


def test_pandas_sees_what_it_sees_in_spark_s_own_function(
    make_job: MakeJob, session: SparkSession, saved: Path, tmp_path: Path
) -> None:
    def shown(subtask: cc.Subtask[Any], frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        yield from shown_frames(frames)

    stream = session.readStream.schema(_TYPES).parquet(str(saved))
    with make_job(session=session) as job:
        found = run(job, "pandas", stream, shown, _SHOWN, tmp_path / "out")
    expected = session.read.schema(_TYPES).parquet(str(saved)).mapInPandas(shown_frames, _SHOWN).collect()
    assert found == expected
    assert "Timestamp('2024-02-29 23:30:15.123456')" in found[0].text  # local time of the session: UTC+11


def test_rows_are_those_that_collect_returns(
    make_job: MakeJob, session: SparkSession, saved: Path, tmp_path: Path
) -> None:
    def shown(subtask: cc.Subtask[Any], some: Iterator[Row]) -> Iterator[tuple[str]]:
        for row in some:
            yield (repr(row),)

    stream = session.readStream.schema(_TYPES).parquet(str(saved))
    with make_job(session=session) as job:
        found = run(job, "rows", stream, shown, _SHOWN, tmp_path / "out")
    assert [row.text for row in found] == [repr(r) for r in session.read.schema(_TYPES).parquet(str(saved)).collect()]


def test_rows_may_be_yielded_as_rows_tuples_and_dicts(
    make_job: MakeJob, file_stream: MakeStream, tmp_path: Path
) -> None:
    def mixed(subtask: cc.Subtask[Any], some: Iterator[Row]) -> Iterator[Row | tuple[Any, ...] | dict[str, Any]]:
        same: dict[str, Any] = {}
        for row in some:
            same["value"] = row.value  # the same dict again and again
            yield same
            yield row.key, row.value * 10
            yield Row(key=row.key, value=row.value * 100)

    source = file_stream(SCHEMA)
    source.add(rows(0, 3))
    with make_job() as job:
        found = run(job, "rows", source.read(), mixed, SCHEMA, tmp_path / "out")
    assert sorted(tuple(row) for row in found if row.key) == [
        ("k0", 0),
        ("k0", 0),
        ("k1", 10),
        ("k1", 100),
        ("k2", 20),
        ("k2", 200),
    ]
    assert sorted(row.value for row in found if row.key is None) == [0, 1, 2]


def test_pandas_may_change_what_it_gets_and_sees_no_column_of_ours(
    make_job: MakeJob, source: FileStream, tmp_path: Path
) -> None:
    def changed(subtask: cc.Subtask[Any], frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        import warnings  # in the worker

        with warnings.catch_warnings():
            warnings.simplefilter("error")  # pandas warns when a slice of another DataFrame is changed
            for frame in frames:
                frame["double"] = frame["value"] * 2
                frame["columns"] = ",".join(frame.columns)
                yield frame[["columns", "value", "double"]]

    schema = "value long, double long, columns string"
    with make_job() as job:
        found = run(job, "pandas", source.read(), changed, schema, tmp_path / "out")
    assert sorted((row.value, row.double) for row in found) == [(n, 2 * n) for n in range(24)]
    assert {row.columns for row in found} == {"key,value,double"}


def test_the_form_may_change_between_two_runs(make_job: MakeJob, file_stream: MakeStream) -> None:
    source, coordinator = file_stream(SCHEMA), Dialogue()
    for epoch, form in enumerate(FORMS):
        source.add(rows(epoch))
        coordinator = Dialogue()
        with make_job() as job:
            drain(job, write(apply(talk(job, coordinator), source.read(), follow, form=form)))
    coordinator.check(range(24))


def test_two_forms_share_a_query(make_job: MakeJob, source: FileStream) -> None:
    first, second = Dialogue(), Dialogue()
    with make_job() as job:
        frames = apply(
            talk(job, first, "frames"), source.read().withColumn("value", sf.col("value") + 1), form="pandas"
        )
        drain(job, write(apply(talk(job, second, "rows", 3), frames, form="rows")))
        assert [operator.uid for operator in job.status().operators] == ["frames", "rows"]
    first.check(range(1, 25))
    second.check(range(1, 25))


# What the function yields is refused at once, with the cause and what to do.


def sends_text(subtask: cc.Subtask[Any], some: Iterator[Any]) -> Iterator[Any]:
    list(some)
    yield "a", "many"


def sends_texts(subtask: cc.Subtask[Any], some: Iterator[Any]) -> Iterator[Any]:
    list(some)
    table = {"key": ["a"], "value": ["many"]}
    yield pa.RecordBatch.from_pydict(table)


def sends_another_column(subtask: cc.Subtask[Any], frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame.rename(columns={"value": "values"})


@pytest.mark.parametrize(
    ("form", "function", "problem"),
    [
        (
            "arrow",
            sends_texts,
            "yielded a pyarrow.RecordBatch with string in column 'value' instead of int64; .* or corr",
        ),
        ("pandas", sends_another_column, r"\['key', 'values'\] instead of \['key', 'value'\]; .* or correct schema="),
        ("rows", sends_text, r"column 'value' \(bigint\) cannot hold 'many', a str: .*; convert it .* or correct sch"),
    ],
)
def test_a_function_that_yields_something_else_is_refused_at_once(
    make_job: MakeJob, source: FileStream, form: str, function: Any, problem: str
) -> None:
    with make_job() as job:
        out = apply(talk(job, Dialogue(), parallelism=1), source.read(), function, form=form)
        with pytest.raises(errors.QueryFailed, match=rf"query 'q' failed: .*OutputInvalid: .*{problem}"):
            drain(job, write(out))


def sends_text_frames(subtask: cc.Subtask[Any], some: Iterator[Any]) -> Iterator[Any]:
    list(some)
    yield pd.DataFrame({"key": ["a"], "value": ["many"]})


@pytest.mark.slow
def test_pandas_values_of_another_type_are_refused_by_spark(make_job: MakeJob, source: FileStream) -> None:
    with make_job(restart=cc.RestartPolicy(max_restarts=0)) as job:
        out = apply(talk(job, Dialogue()), source.read(), sends_text_frames, form="pandas")
        with pytest.raises(errors.QueryFailed, match="value of the column 'value' with type 'object' to"):
            drain(job, write(out))
