"""Tests against real servers, started from the jars that `make connectors` fetches.

Without the jars the tests are left out, and the head of the run says why; with `COORD_CONNECTORS=required`
(`.ci/run`) the run fails instead.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.hdfs_kit import HdfsCluster
from tests.kafka_kit import Broker, KafkaClient
from tests.s3_kit import S3Server
from tests.spark.conftest import _no_query_survives_its_test as _no_query_survives_its_test
from tests.spark.conftest import default_session as default_session
from tests.spark.conftest import file_stream as file_stream
from tests.spark.conftest import make_job as make_job
from tests.spark.conftest import own_session as own_session


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that the tests of a module share; each takes topics of its own."""
    broker = Broker(tmp_path_factory.mktemp("kafka") / "broker")
    yield broker
    broker.kill()


@pytest.fixture(scope="module")
def kafka(spark: SparkSession, broker: Broker) -> Iterator[KafkaClient]:
    """A client of that broker."""
    client = KafkaClient(spark, broker.bootstrap)
    yield client
    client.close()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server that the tests of a module share; each takes names of its own."""
    server = S3Server(tmp_path_factory.mktemp("s3") / "server")
    yield server
    server.stop()


@pytest.fixture
def s3_session(default_session: SparkSession, s3: S3Server) -> SparkSession:
    """A session that reaches that server."""
    for name, value in s3.settings.items():
        default_session.conf.set(name, value)
    return default_session


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    """A cluster that the tests of a module share; each takes folders of its own."""
    cluster = HdfsCluster(tmp_path_factory.mktemp("hdfs") / "cluster")
    yield cluster
    cluster.stop()
