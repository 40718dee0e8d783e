"""Descriptions of stateful operators, and what must change in them when a checkpoint moves."""

from __future__ import annotations

import json

import pytest

from coord_control.durable.spark_layout.stateful_operators import relocated
from coord_control.errors import DamagedRecord, StateFileMissing
from tests.unit.durable.layout_kit import Directory, described, versioned

SCHEMA = "state/0/_stateSchema/default/0_a"
PROPERTIES = {"timeMode": "NoTime", "stateVariables": [{"stateName": "v"}]}


def evolving(*schemas: str) -> bytes:
    """The content of state/0/_metadata/v2/<epoch>."""
    store = {"storeName": "default", "numPartitions": 1, "stateSchemaFilePaths": list(schemas)}
    info = {"operatorId": 0, "operatorName": "transformWithStateExec"}
    fields = {"operatorInfo": info, "stateStoreInfo": [store], "operatorPropertiesJson": json.dumps(PROPERTIES)}
    return versioned(2, fields)


def test_an_operator_is_described_for_people() -> None:
    directory = Directory("state/1/0/1.delta", "state/1/1/1.delta").epochs(0)
    directory.add("state/1/_metadata/metadata", content=described("dedupe"))
    (operator,) = directory.operators(0)
    assert (operator.id, operator.name, operator.provider, operator.partitions) == (1, "dedupe", "hdfs", 2)
    assert (operator.stores, operator.checkpoint_format, operator.description_version) == (("default",), 1, 1)
    assert operator.provider_class.endswith("HDFSBackedStateStoreProvider")
    assert operator.properties == {}


def test_the_newest_description_up_to_the_epoch_counts() -> None:
    directory = Directory(*(f"state/0/0/{version}.changelog" for version in range(1, 5))).epochs(4, partitions=1)
    directory.add("state/0/_metadata/v2/0", content=versioned(2, {"stateStoreInfo": []}))
    directory.add("state/0/_metadata/v2/3", content=evolving(f"file:/old/{SCHEMA}"))
    directory.add("state/0/_metadata/v2/4", content=b"later")
    (operator,) = directory.operators(3)
    assert (operator.name, operator.description_version) == ("transformWithStateExec", 2)
    assert operator.properties == PROPERTIES


def test_descriptions_and_schemas_of_later_starts_are_not_of_an_epoch() -> None:
    directory = Directory(*(f"state/0/0/{version}.changelog" for version in range(1, 6))).epochs(4, partitions=1)
    directory.add("state/0/_metadata/v2/0", "state/0/_metadata/v2/3", "state/0/_metadata/v2/4", content=evolving())
    directory.add(*(f"state/0/_stateSchema/default/{epoch}_id" for epoch in (0, 3, 4)))
    assert [name for name in directory.needed(3, "state/0/") if name.startswith("_")] == [
        "_metadata/v2/0", "_metadata/v2/3", "_stateSchema/default/0_id", "_stateSchema/default/3_id",
    ]  # fmt: skip


def test_state_of_a_spark_that_did_not_describe_operators_is_still_state() -> None:
    directory = Directory("state/0/0/1.changelog").add("commits/0", content=versioned(1, {}))
    directory.add("offsets/0", content=b"v1\n\n5")
    (operator,) = directory.operators(0)
    assert (operator.name, operator.provider, operator.partitions, operator.description_version) == (
        "",
        "rocksdb",
        1,
        0,
    )
    assert directory.needed(0, "state/") == ["0/0/1.changelog"]


def test_a_provider_that_is_not_sparks_is_named_and_its_files_are_kept() -> None:
    directory = Directory("state/0/0/1.mine", "state/0/1/1.mine").epochs(0, provider="org.example.Mine")
    directory.add("state/0/_metadata/metadata", content=described())
    (operator,) = directory.operators(0)
    assert (operator.provider, operator.provider_class) == ("unknown", "org.example.Mine")
    assert directory.needed(0, "state/0/") == ["0/1.mine", "1/1.mine", "_metadata/metadata"]


def test_a_described_operator_without_any_state_is_missing() -> None:
    directory = Directory().epochs(0).add("state/0/_metadata/metadata", content=described())
    with pytest.raises(StateFileMissing, match="state/0/0 is missing"):
        directory.needed(0)


@pytest.mark.parametrize("content", [b"", b"v1", b"v1\n[]", b'v1\n{"operatorInfo":{}}', b"v1\n{", b"\xff\xfe"])
def test_a_description_that_cannot_be_understood_is_damaged(content: bytes) -> None:
    directory = Directory("state/0/0/1.delta").epochs(0).add("state/0/_metadata/metadata", content=content)
    with pytest.raises(DamagedRecord, match="state/0/_metadata/metadata"):
        directory.operators(0)


# --- moving a checkpoint ---------------------------------------------------------------------------------------------


def test_schemas_of_a_description_are_found_in_the_new_place() -> None:
    old = evolving(f"file:/old/checkpoint/{SCHEMA}", f"s3a://bucket/state/0/x/{SCHEMA}")
    moved = relocated("state/0/_metadata/v2/3", old, "hdfs://name:8020/new/")
    assert moved.startswith(b"v2\n{")
    assert json.loads(moved[3:])["stateStoreInfo"][0]["stateSchemaFilePaths"] == [f"hdfs://name:8020/new/{SCHEMA}"] * 2
    expected = old.replace(b"file:/old/checkpoint", b"/n").replace(b"s3a://bucket/state/0/x", b"/n")
    assert json.loads(relocated("state/0/_metadata/v2/3", old, "/n")[3:]) == json.loads(expected[3:])


@pytest.mark.parametrize("path", ["state/0/_metadata/metadata", "offsets/3", SCHEMA, "state/0/0/3.zip"])
def test_no_other_file_changes(path: str) -> None:
    assert relocated(path, b"anything", "/new") == b"anything"


def test_a_schema_that_lies_elsewhere_cannot_be_moved() -> None:
    with pytest.raises(DamagedRecord, match="outside a checkpoint directory, file:/elsewhere/schema"):
        relocated("state/0/_metadata/v2/0", evolving("file:/elsewhere/schema"), "/new")
