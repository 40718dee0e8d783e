"""Ask Kafka's brokers, before a restore takes place, whether they still have what the checkpoint has not read.

Retention removes records by age or size, and a topic may have been deleted and created again. Spark notices when it
reads them, which is after the restore. Here the client of the query's own connector asks, with the options of its
readers.

Threads: those that start queries, one at a time.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame

from coord_control.durable.restore.checks import ALLOW_MISSING_INPUT, Check, Verdict
from coord_control.ids import QueryName
from coord_control.spark.states.state_source import problem_of

__all__ = ["check_kafka", "missing_records", "needed_offsets"]

_NAME: Final = "kafka"
_PREFIX: Final = "kafka."
#: How long brokers that do not answer are waited for.
_WAITING: Final = {"default.api.timeout.ms": "10000", "request.timeout.ms": "5000"}
_WAY_OUT: Final = f"restore a newer checkpoint, or {ALLOW_MISSING_INPUT}, with failOnDataLoss=false at the reader"
_TOPIC_GONE: Final = "UnknownTopicOrPartitionException"


_Partition = tuple[str, int]  # topic, number
_Positions = Mapping[_Partition, int]
_Known = Mapping[_Partition, int | None]


def check_kafka(
    query: QueryName, frame: DataFrame, offsets: Iterable[Any], *, allow_missing_input: bool
) -> Iterator[Check]:
    """Compare the offsets of a checkpoint with those that the brokers have.

    Args:
        frame: of the query in the program.
        offsets: one per source, up to which the checkpoint has read it.
        allow_missing_input: only warn of what is gone.

    Yields:
        One check per reader of Kafka; none if the query has no such reader, or its checkpoint no offsets.
    """
    needed = needed_offsets(offsets)
    for options in _readers(frame) if needed else ():
        try:
            gone = _gone(frame, options, needed)
        except (Py4JError, TypeError) as error:
            found = f"the brokers could not be asked for their offsets: {problem_of(error)}"
            yield Check(_NAME, query, Verdict.WARNING, found, "Spark reports offsets that are gone when it reads them")
            continue
        if not gone:
            yield Check(_NAME, query, Verdict.OK, "the brokers have all records after the checkpoint")
            continue
        is_allowed = allow_missing_input or str(options.get("failondataloss", "true")).lower() == "false"
        verdict = Verdict.WARNING if is_allowed else Verdict.REFUSED
        found = f"records after the checkpoint are gone: {'; '.join(gone)}"
        yield Check(_NAME, query, verdict, found, "" if is_allowed else _WAY_OUT)


def needed_offsets(offsets: Iterable[Any]) -> dict[_Partition, int]:
    """Return the first offset that a restore reads, by topic and partition; none of a source that is not Kafka."""
    found: dict[_Partition, int] = {}
    for offset in offsets:
        topics = _parsed(offset)
        for topic, partitions in topics.items() if isinstance(topics, Mapping) else ():
            if isinstance(partitions, Mapping) and all(str(number).isdigit() for number in partitions):
                for number, position in partitions.items():
                    key = str(topic), int(number)
                    found[key] = min(found.get(key, int(position)), int(position))
    return found


def _parsed(offset: Any) -> Any:
    if not isinstance(offset, str):
        return offset
    try:
        return json.loads(offset)
    except ValueError:
        return None


def _readers(frame: DataFrame) -> Iterator[Mapping[str, str]]:
    """Yield the options of each reader of Kafka, names in lower case but for those of Kafka's client."""
    waiting: list[Any] = [frame._jdf.queryExecution().analyzed()]
    seen: list[dict[str, str]] = []
    while waiting:
        node = waiting.pop()
        children = node.children()
        waiting += [children.apply(index) for index in range(children.size())]
        if node.nodeName().startswith("StreamingRelationV2") and node.sourceName() == "kafka":
            options = dict(node.extraOptions().asCaseSensitiveMap())
            options = {name if name.startswith(_PREFIX) else name.lower(): value for name, value in options.items()}
            if options not in seen:
                seen.append(options)
                yield options


def _gone(frame: DataFrame, options: Mapping[str, str], needed: _Positions) -> list[str]:
    jvm: Any = frame.sparkSession._jvm
    kafka = jvm.org.apache.kafka
    if isinstance(kafka.clients.admin.AdminClient, JavaPackage):
        raise TypeError("the driver's JVM has no client of Kafka")
    properties = jvm.java.util.Properties()
    for name, value in {**_WAITING, **_client(options)}.items():
        properties.put(name, value)
    admin = kafka.clients.admin.AdminClient.create(properties)
    try:
        first, last = (_positions(jvm, admin, needed, is_first=is_first) for is_first in (True, False))
        return missing_records(needed, first, last)
    finally:
        admin.close(jvm.java.time.Duration.ofSeconds(1))


def _client(options: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(_PREFIX): value for name, value in options.items() if name.startswith(_PREFIX)}


def missing_records(needed: _Positions, first: _Known, last: _Known) -> list[str]:
    """Return what brokers do not have, a line per partition.

    Args:
        needed: the first offset that is read, by topic and partition.
        first: the first offset that the brokers have, or None for a partition that does not exist.
        last: the offset after the last one.
    """
    return [line for each in sorted(needed) if (line := _missing(each, needed[each], first[each], last[each]))]


def _missing(partition: _Partition, position: int, earliest: int | None, latest: int | None) -> str:
    topic, number = partition
    where = f"partition {number} of {topic}"
    if earliest is None or latest is None:
        return f"{where} does not exist"
    if position < earliest:
        return f"{where} begins at offset {earliest}, and the checkpoint has read up to {position}"
    if position > latest:
        return f"{where} ends at offset {latest}, before {position}, up to which the checkpoint has read"
    return ""


def _positions(
    jvm: Any, admin: Any, partitions: Collection[_Partition], *, is_first: bool
) -> dict[_Partition, int | None]:
    spec, asked = jvm.org.apache.kafka.clients.admin.OffsetSpec, jvm.java.util.HashMap()
    keys = {each: jvm.org.apache.kafka.common.TopicPartition(*each) for each in partitions}
    for key in keys.values():
        asked.put(key, spec.earliest() if is_first else spec.latest())
    result = admin.listOffsets(asked)
    return {each: _position(result.partitionResult(key)) for each, key in keys.items()}


def _position(future: Any) -> int | None:
    try:
        return int(future.get().offset())
    except Py4JJavaError as error:
        if _TOPIC_GONE in str(error.java_exception):
            return None
        raise
