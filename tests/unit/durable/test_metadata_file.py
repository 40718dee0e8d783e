from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from coord_control.durable.checkpoints.metadata_file import (
    FORMAT_VERSION,
    CheckpointMetadata,
    FileEntry,
    decode_metadata,
    encode_metadata,
)
from coord_control.errors import DamagedRecord, UnsupportedFormat
from coord_control.ids import Epoch, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.records import Ack, EventBatch
from coord_control.protocol.recovery import Outbox
from tests.unit.durable.metadata_kit import full_metadata

#: Written by releases. They must stay readable for ever and are never written again.
GOLDEN_1 = Path(__file__).parent / "golden" / "metadata-format-1.json"
GOLDEN_2 = Path(__file__).parent / "golden" / "metadata-format-2.json"
GOLDEN_3 = Path(__file__).parent / "golden" / "metadata-format-3.json"
GOLDEN = Path(__file__).parent / "golden" / "metadata-format-4.json"
PATH = "/job/checkpoints/7/_metadata"
DELAYS = QueryName("delays")
THRESHOLD = OperatorUid("threshold")


def with_checksum(body: bytes) -> bytes:
    return body + b'"checksum":"crc32:%08x"\n}\n' % zlib.crc32(body)


def body_of(data: bytes) -> bytes:
    return data[: data.rindex(b'"checksum"')]


def test_the_golden_file_can_be_read() -> None:
    assert decode_metadata(PATH, GOLDEN.read_bytes()) == full_metadata()


def without_live_values(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """What a release wrote that knew no live values, and woke no operators."""
    queries = {name: query.model_copy(update={"planned_live": None}) for name, query in metadata.queries.items()}
    operators = {uid: operator.model_copy(update={"wake": False}) for uid, operator in metadata.operators.items()}
    return metadata.model_copy(update={"queries": queries, "operators": operators, "live": {}})


def test_the_third_format_can_be_read_and_knows_no_live_values() -> None:
    assert decode_metadata(PATH, GOLDEN_3.read_bytes()) == without_live_values(full_metadata())


def without_sinks(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """What a release wrote that knew no sinks."""
    queries = {
        name: query.model_copy(update={"sink": None, "files": query.spark_files})
        for name, query in metadata.queries.items()
    }
    return without_live_values(metadata.model_copy(update={"queries": queries}))


def test_the_second_format_can_be_read_and_knows_no_sinks() -> None:
    assert decode_metadata(PATH, GOLDEN_2.read_bytes()) == without_sinks(full_metadata())


def test_the_log_of_a_file_sink_is_kept_apart_from_the_files_of_spark() -> None:
    query = full_metadata().queries[DELAYS]
    assert [entry.path for entry in query.sink_files] == ["_sink/39.compact"]
    assert [entry.path for entry in query.spark_files] == ["commits/41", "state/0/0/42.zip"]


def test_the_first_format_can_be_read_and_knows_no_planned_epoch() -> None:
    metadata = decode_metadata(PATH, GOLDEN_1.read_bytes())
    query, operator = metadata.queries[DELAYS], metadata.operators[THRESHOLD]
    assert (query.planned, query.planned_offsets, query.reached, operator.planned) == (query.epoch, None, None, None)
    newer = without_sinks(full_metadata())
    changes = {"planned_offsets": None, "reached": None}
    queries = {**newer.queries, DELAYS: newer.queries[DELAYS].model_copy(update=changes)}
    operators = {**newer.operators, THRESHOLD: newer.operators[THRESHOLD].model_copy(update={"planned": None})}
    assert metadata == newer.model_copy(update={"queries": queries, "operators": operators})


def test_a_release_that_knows_no_planned_epoch_refuses_what_has_one() -> None:
    assert json.loads(GOLDEN.read_bytes())["format_version"] == FORMAT_VERSION > 1


def test_the_golden_file_is_written_the_same() -> None:
    assert encode_metadata(full_metadata()) == GOLDEN.read_bytes()


def test_other_tools_can_read_it() -> None:
    document = json.loads(GOLDEN.read_bytes())
    assert next(iter(document)) == "format_version"
    query = document["queries"]["delays"]
    assert query["offsets"] == [{"logOffset": 40}, {"topic": {"0": 2**53 + 1}}, None, 12]
    assert query["files"][0] == ["commits/41", 29, "0a1b2c3d", None]
    operator = document["operators"]["threshold"]
    assert json.loads(operator["subtask_states"]["0"]) == {"city": "Zürich"}
    assert operator["down"] == {"3": [[1, 2, "{},{}"], [0, 1, '{"minutes":30.0}']]}
    assert operator["up"] == [[0, 41, [[0, 1, '{"late":3}']]]]
    assert operator["planned"]["inputs"] == {"1": [[1, 1, "{}"]]}
    assert operator["planned"]["acks"] == {"1": [55, None, [[0, 1, '{"late":4}']]]}
    assert query["reached"] == {"committed": 50, "planned": 51}
    assert query["sink"] == {"kind": "file", "place": "file:/out/delays", "position": "41", "unknown": ""}
    assert query["planned_live"] == {"limits": [3, '{"minutes":45.0}', 40]}
    assert {name: json.loads(value[1]) for name, value in document["live"].items()} == {
        "limits": {"minutes": 50.0, "city": "Zürich"}
    }
    assert document["completed_at"] == "2026-01-02T03:04:07Z"


def test_the_protocol_gets_back_what_it_gave() -> None:
    operator = decode_metadata(PATH, GOLDEN.read_bytes()).operators[OperatorUid("threshold")]
    assert operator.coordinator_state == b"\x00\xff{}"
    assert operator.subtask_states == {SubtaskIndex(0): '{"city":"Zürich"}'.encode(), SubtaskIndex(2): None}
    [first, second] = operator.down[SubtaskIndex(3)]
    assert (type(first), first, second) == (EventBatch, (1, 2, b"{},{}"), (0, 1, b'{"minutes":30.0}'))
    assert operator.outboxes() == (Outbox(SubtaskIndex(0), 41, (EventBatch(0, 1, b'{"late":3}'),)),)
    replay = operator.cut(THRESHOLD).replay
    assert replay is not None
    assert (replay.epoch, replay.barrier, replay.inputs) == (42, 3 << 32 | 9, {1: (EventBatch(1, 1, b"{}"),)})
    assert replay.acks == {1: Ack(THRESHOLD, SubtaskIndex(1), Epoch(42), 55, None, (EventBatch(0, 1, b'{"late":4}'),))}


def test_sizes_are_added_up() -> None:
    metadata = full_metadata()
    assert metadata.size == metadata.queries[QueryName("delays")].size == 29 + (1 << 33) + 4096
    assert metadata.file_count == 3


def test_every_flipped_bit_is_found() -> None:
    data = GOLDEN.read_bytes()
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((DamagedRecord, UnsupportedFormat), match=PATH):
            decode_metadata(PATH, bytes(flipped))


def test_every_truncation_is_found() -> None:
    data = GOLDEN.read_bytes()
    for length in range(len(data)):
        with pytest.raises(DamagedRecord, match=PATH):
            decode_metadata(PATH, data[:length])


@pytest.mark.parametrize("suffix", [b"\n", b" ", b"{}"])
def test_appended_bytes_are_found(suffix: bytes) -> None:
    with pytest.raises(DamagedRecord, match="last lines"):
        decode_metadata(PATH, GOLDEN.read_bytes() + suffix)


def test_a_newer_format_is_refused_before_anything_else_is_read() -> None:
    with pytest.raises(UnsupportedFormat, match="format version 5") as caught:
        decode_metadata(PATH, b'{ "format_version": 5, of a kind nobody knows')
    assert caught.value.path == PATH


def test_format_version_0_was_never_there() -> None:
    with pytest.raises(DamagedRecord, match="no format version 0"):
        decode_metadata(PATH, b'{"format_version":0}')


def damaged_document(data: bytes, old: bytes, new: bytes) -> bytes:
    body = body_of(data)
    assert old in body
    return with_checksum(body.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b'"checkpoint":7,\n', b"", "checkpoint"),
        (b'"kind":"savepoint"', b'"kind":"else"', "kind"),
        (b'"job":"flights"', b'"job":"flights","extra":1', "extra"),
        (b'["commits/41",29,"0a1b2c3d",null]', b'["commits/41","29","0a1b2c3d",null]', "files"),
        (b'["commits/41",29,"0a1b2c3d",null]', b'["a/../../41",29,"0a1b2c3d",null]', "leaves the directory"),
        (b'["commits/41",29,"0a1b2c3d",null]', b'["/etc/passwd",29,"0a1b2c3d",null]', "leaves the directory"),
        (b'"AP97fQ=="', b'"?"', "base64"),
        (b'"triggered_at":"2026-01-02T03:04:06Z"', b'"triggered_at":"2026-01-02T03:04:06"', "triggered_at"),
        (b'"job":"flights"', b'"job":"flights', "JSON"),
    ],
)
def test_nonsense_with_a_fitting_checksum_is_found(old: bytes, new: bytes, problem: str) -> None:
    with pytest.raises(DamagedRecord, match=problem):
        decode_metadata(PATH, damaged_document(GOLDEN.read_bytes(), old, new))


def test_the_error_says_what_to_do() -> None:
    with pytest.raises(DamagedRecord, match="Restore from another checkpoint"):
        decode_metadata(PATH, b"")


def test_a_hundred_thousand_files_come_back() -> None:
    files = tuple(
        FileEntry(f"state/0/{number % 200}/{number}.delta", number, f"{number:08x}") for number in range(100_000)
    )
    metadata = full_metadata()
    query = metadata.queries[QueryName("delays")].model_copy(update={"files": files})
    large = metadata.model_copy(update={"queries": {QueryName("delays"): query}})
    data = encode_metadata(large)
    found: CheckpointMetadata = decode_metadata(PATH, data)
    assert found == large
    assert len(data) < 60 * len(files)
