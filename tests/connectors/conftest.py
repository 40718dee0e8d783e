"""Tests against real servers, started from the jars that `make connectors` fetches.

Without the jars the tests are left out, and the head of the run says why; with `COORD_CONNECTORS=required`
(`.ci/run`) the run fails instead.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.kafka_kit import Broker, KafkaClient
from tests.spark.conftest import _no_query_survives_its_test as _no_query_survives_its_test
from tests.spark.conftest import make_job as make_job


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
