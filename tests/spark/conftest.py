"""One small Spark for all tests below this directory.

A JVM takes seconds to start, so one session per pytest process is shared (with pytest-xdist: one per worker). Its
master is `local[2,3]`: two task slots, three attempts per task, so that Spark's own task retries exist as on a cluster.
Tests share the session and must not share anything else:

* what a test writes lies under its own `tmp_path` (`checkpoint`, `file_stream`, `probe` do that);
* a test that changes a `spark.sql.*` setting takes `own_session`, which has settings of its own;
* queries that a test leaves running are stopped after it.

`tests/spark/streams.py` has the helpers themselves.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from pyspark.sql import SparkSession

import coord_control as cc
from tests.spark.jobs import QUICK, SCHEMA, MakeJob, Once, rows
from tests.spark.streams import FileStream, Probe

CHECKOUT = Path(__file__).resolve().parents[2]


class MakeStream(Protocol):
    """Makes a `FileStream` in a directory of its own; call it once for each source of a test."""

    def __call__(
        self, schema: str = ..., *, file_format: str = ..., session: SparkSession | None = ...
    ) -> FileStream: ...


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The shared session of this process; never change its settings, take `own_session` for that."""
    directory = tmp_path_factory.mktemp("spark")
    owner = os.getpid()
    with pytest.MonkeyPatch.context() as patch:
        # Python workers inherit the JVM's environment: they must run this interpreter and import this checkout.
        patch.setenv("PYTHONPATH", str(CHECKOUT), prepend=os.pathsep)
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = _start(directory)
        yield session
        # A child that a test forked shares the connection to the JVM, but not the right to end it.
        if os.getpid() == owner:
            session.stop()


@pytest.fixture
def own_session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with settings, views and queries of its own on the shared JVM."""
    session = spark.newSession()
    yield session
    _stop_queries(session)


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


def _start(directory: Path) -> SparkSession:
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={directory} -Dderby.system.home={directory}",
    }
    builder = SparkSession.builder.master("local[2,3]").appName("coord_control tests")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _stop_queries(session: SparkSession) -> None:
    for query in session.streams.active:
        query.stop()
