"""A Kafka broker of the test's own, and a client of it.

The broker (KRaft, one node that is its own controller) runs from the jars of the set `kafka-broker` on free loopback
ports, which it keeps when it is killed and started again. The client is that of the shared session's JVM.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from scripts.connectors import jars
from tests.patience import SECONDS, eventually

__all__ = ["Broker", "KafkaClient", "read_topic"]

_JAVA_OPTIONS: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true")
_STARTS: Final = 3
_SERIALIZER: Final = "org.apache.kafka.common.serialization.StringSerializer"


class Broker:
    """One node; made formatted and running."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._class_path = os.pathsep.join(str(path) for path in jars("kafka-broker"))
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._configure()
        # As `random-uuid` of the tool, which takes a JVM for it. What begins with a dash would be taken for an option.
        cluster = "c" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        self._tool("format", "--cluster-id", cluster, "--config", str(self._folder / "server.properties"))
        for attempt in range(_STARTS):
            with contextlib.suppress(ChildProcessError):
                self.start()
                return
            assert attempt < _STARTS - 1, self.log()
            self._configure()  # another process has taken a port meanwhile

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it where it was, and wait until it answers.

        Raises:
            ChildProcessError: it has ended.
        """
        command = [*self._java(), "kafka.Kafka", str(self._folder / "server.properties")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        eventually(self._answers, self.log)

    def kill(self) -> None:
        """`kill -9`."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(SECONDS)

    def log(self) -> str:
        """What it has said."""
        return (self._folder / "log").read_text(errors="replace")

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise ChildProcessError(self.log())
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1.0).close()
        except OSError:
            return False
        return True

    def _configure(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            self._port, controller = one.getsockname()[1], other.getsockname()[1]
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": self._folder / "data",
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
        }
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        (self._folder / "server.properties").write_text(text)

    def _java(self) -> list[str]:
        java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
        return [shutil.which(java) or java, *_JAVA_OPTIONS, "-cp", self._class_path]

    def _tool(self, *arguments: str) -> str:
        command = [*self._java(), "kafka.tools.StorageTool", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()[-1]


class KafkaClient:
    """Topics and records, by the client in the JVM of a session."""

    def __init__(self, spark: SparkSession, bootstrap: str) -> None:
        session: Any = spark
        self._jvm = session._jvm
        self._gateway = session.sparkContext._gateway
        settings = {"bootstrap.servers": bootstrap, "key.serializer": _SERIALIZER, "value.serializer": _SERIALIZER}
        properties = self._jvm.java.util.Properties()
        for name, value in settings.items():
            properties.put(name, value)
        self._admin = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
        self._producer = self._jvm.org.apache.kafka.clients.producer.KafkaProducer(properties)

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic."""
        optional = self._jvm.java.util.Optional
        new = self._jvm.org.apache.kafka.clients.admin.NewTopic(topic, optional.of(partitions), optional.empty())
        self._admin.createTopics(self._jvm.java.util.Collections.singleton(new)).all().get()

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        to = self._jvm.org.apache.kafka.clients.admin.NewPartitions.increaseTo(partitions)
        self._admin.createPartitions(self._map({topic: to})).all().get()

    def forget(self, topic: str, before: Mapping[int, int]) -> None:
        """Remove the records before these offsets, as retention does."""
        key = self._jvm.org.apache.kafka.common.TopicPartition
        wanted = {key(topic, partition): self._records_before(offset) for partition, offset in before.items()}
        self._admin.deleteRecords(self._map(wanted)).all().get()

    def send(self, topic: str, rows: Iterable[Mapping[str, Any]], *, partition: int | None = None) -> None:
        """Write rows as JSON, and return when the broker has them, each once; it may be away for a while."""
        record = self._jvm.org.apache.kafka.clients.producer.ProducerRecord
        sent = [self._producer.send(record(topic, partition, str(row["key"]), json.dumps(row))) for row in rows]
        for each in sent:
            each.get()

    def close(self) -> None:
        """End the client's threads."""
        self._producer.close()
        self._admin.close()

    def _records_before(self, offset: int) -> Any:
        # The factory has the name of a property, so py4j does not find it.
        types, arguments = self._array("Class", self._jvm.java.lang.Long.TYPE), self._array("Object", offset)
        loader = self._admin.getClass().getClassLoader()
        found = loader.loadClass("org.apache.kafka.clients.admin.RecordsToDelete").getMethod("beforeOffset", types)
        return found.invoke(None, arguments)

    def _array(self, kind: str, item: Any) -> Any:
        array = self._gateway.new_array(getattr(self._jvm.java.lang, kind), 1)
        array[0] = self._jvm.java.lang.Long(item) if kind == "Object" else item
        return array

    def _map(self, items: Mapping[Any, Any]) -> Any:
        found = self._jvm.java.util.HashMap()
        for key, value in items.items():
            found.put(key, value)
        return found


def read_topic(spark: SparkSession, bootstrap: str, topic: str, schema: str, **options: Any) -> DataFrame:
    """Return a stream of the rows of a topic, which are JSON, from its beginning unless the options say otherwise."""
    settings = {"startingOffsets": "earliest", **options}
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    return (
        reader.options(**settings)
        .load()
        .selectExpr(f"from_json(cast(value as string), '{schema}') row")
        .select("row.*")
    )
