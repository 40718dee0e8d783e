"""The tutorial from a topic to a Delta table, typed from its first command to its last (PySpark 4.2)."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from tests.acceptance.docs_reader import Reader, exported, reading
from tests.docs_kit import Block, blocks
from tests.kafka_kit import Broker, KafkaClient
from tests.patience import eventually
from tests.places import CHECKOUT
from tests.spark_session import session_jars

pytestmark = pytest.mark.spark

_BLOCKS: Final = list(blocks(CHECKOUT / "docs" / "tutorial-kafka-delta.md"))
_PLACE: Final = "/tmp/lake"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "broker")
    yield broker
    broker.kill()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    yield from reading(tmp_path, _PLACE, exported(_BLOCKS[0], session_jars()))


def test_a_table_is_spoilt_and_set_back_with_its_topic(
    spark: SparkSession, broker: Broker, reader: Reader, tmp_path: Path
) -> None:
    _environment, program, first, saved, wrong, back, look, tidy = _BLOCKS
    client = KafkaClient(spark, broker.bootstrap)

    def ids() -> list[int]:
        found = spark.read.format("delta").load(str(tmp_path / "large"))
        return sorted(row.id for row in found.collect())

    def follow(block: Block) -> list[str]:
        return [_typed(line, reader, client) for line in block.text.splitlines()]

    reader.save(
        "orders.py", dataclasses.replace(program, text=program.text.replace("localhost:9092", broker.bootstrap))
    )
    follow(first)
    eventually(lambda: (tmp_path / "large" / "_delta_log").exists() and ids() == [1])
    assert "good" in follow(saved)[1]
    follow(wrong)
    eventually(lambda: ids() in ([1, 3, 4], [1, 2, 3, 4]))  # order 2 may not have been read before the savepoint
    assert "can be restored; nothing was changed" in follow(back)[2]
    eventually(lambda: ids() == [1, 4])
    assert [line.split("|")[1].strip() for line in follow(look)[0].splitlines() if ".0|" in line] == ["1", "4"]
    follow(tidy)
    client.close()


def _typed(line: str, reader: Reader, client: KafkaClient) -> str:
    """Type a line; what the scripts of Kafka do, a client does."""
    words = shlex.split(line)
    if "kafka-console-producer.sh" in words:
        row = json.loads(words[1])
        client.send("orders", [{"key": row["id"], **row}])
    elif words[0] == "kafka-topics.sh":
        if "--create" in words:
            client.create("orders", int(words[-1]))
    elif words[0] in ("coordctl", "python"):
        return reader.type(f".venv/bin/{line}")
    elif words[0] != "rm":  # the folder is the test's
        return reader.type(line)
    return ""
