"""What tests on the shared session (`tests/spark_session.py`) need. They must not share anything else:

* what a test writes lies under its own `tmp_path` (`checkpoint`, `file_stream`, `probe` do that);
* a test that changes a `spark.sql.*` setting takes `own_session`, which has settings of its own;
* queries that a test leaves running are stopped after it.

`tests/spark/streams.py` has the helpers themselves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from pyspark.sql import SparkSession

import coord_control as cc
from tests.spark.jobs import QUICK, SCHEMA, MakeJob, Once, rows
from tests.spark.streams import FileStream, Probe
from tests.spark_session import FILE_MANAGER


class MakeStream(Protocol):
    """Makes a `FileStream` in a directory of its own; call it once for each source of a test."""

    def __call__(
        self, schema: str = ..., *, file_format: str = ..., session: SparkSession | None = ...
    ) -> FileStream: ...


@pytest.fixture
def own_session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with settings, views and queries of its own on the shared JVM."""
    session = spark.newSession()
    yield session
    _stop_queries(session)


@pytest.fixture
def default_session(own_session: SparkSession) -> SparkSession:
    """A session that writes files with the class that Spark chooses for their storage."""
    own_session.conf.unset(FILE_MANAGER)
    return own_session


@pytest.fixture(autouse=True)
def _no_query_survives_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    # Asked for by name: a test in this directory that needs no Spark must not start one.
    session = request.getfixturevalue("spark") if "spark" in request.fixturenames else None
    yield
    if session is not None:
        _stop_queries(session)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A path for a checkpoint directory; nothing is there yet."""
    return tmp_path / "checkpoint"


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    """A recorder of the calls of Python functions in tasks."""
    return Probe(tmp_path / "probe")


@pytest.fixture
def file_stream(spark: SparkSession, tmp_path: Path) -> MakeStream:
    """A factory of file sources with one batch per file."""
    count = 0

    def make(
        schema: str = "key STRING, value LONG", *, file_format: str = "json", session: SparkSession | None = None
    ) -> FileStream:
        nonlocal count
        count += 1
        return FileStream(session or spark, tmp_path / f"source-{count}", schema, file_format)

    return make


@pytest.fixture
def source(file_stream: MakeStream) -> FileStream:
    """Three epochs of eight rows: the values 0..23."""
    stream = file_stream(SCHEMA)
    for epoch in range(3):
        stream.add(rows(epoch))
    return stream


@pytest.fixture
def once(tmp_path: Path) -> Once:
    """True once, in whatever process it is asked."""
    return Once(tmp_path / "once")


@pytest.fixture
def make_job(spark: SparkSession, tmp_path: Path) -> Iterator[MakeJob]:
    """A factory of jobs below one root; restarts are quick, and all jobs are stopped after the test."""
    with contextlib.ExitStack() as stack:

        def make(name: str = "job", **options: Any) -> cc.Job:
            options = {"root": str(tmp_path / "jobs"), "restart": QUICK, **options}
            job = cc.Job(name, options.pop("session", spark), **options)
            stack.callback(job.stop, 5.0)
            return job

        yield make


@pytest.fixture
def spark_log(spark: SparkSession) -> Iterator[Callable[[], str]]:
    """What the JVM logs from now on: level, logger, message."""
    jvm: Any = spark.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    layout = log4j.core.layout.PatternLayout.newBuilder().withPattern("%p %c{1} %m%n").build()
    written = jvm.java.io.StringWriter()
    appender = log4j.core.appender.WriterAppender.createAppender(layout, None, written, "test", False, True)
    appender.start()
    root = log4j.LogManager.getContext(False).getConfiguration().getRootLogger()
    root.addAppender(appender, None, None)
    yield lambda: str(written.toString())
    root.removeAppender("test")


def _stop_queries(session: SparkSession) -> None:
    for query in session.streams.active:
        query.stop()
