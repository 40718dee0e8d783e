"""Entries of Spark's offset and commit logs."""

from __future__ import annotations

import pytest

from coord_control.durable.spark_layout.query_logs import (
    file_source_log,
    parse_commit,
    parse_offsets,
    parse_source_files,
)
from coord_control.errors import DamagedRecord


def test_an_offset_entry_lists_its_sources_in_the_order_of_the_plan() -> None:
    content = b'v1\n{"batchWatermarkMs":7,"conf":{"spark.sql.shuffle.partitions":"2"}}\n{"logOffset":5}\n-\n17'
    entry = parse_offsets("offsets/3", content)
    assert entry.by_source == {"0": '{"logOffset":5}', "1": None, "2": "17"}
    assert entry.metadata["batchWatermarkMs"] == 7
    assert entry.settings == {"spark.sql.shuffle.partitions": "2"}


def test_an_offset_entry_of_version_2_names_its_sources() -> None:
    entry = parse_offsets("offsets/3", b'v2\n{}\nclicks:{"topic":{"0":1}}\nviews:-')
    assert (entry.version, entry.by_source) == (2, {"clicks": '{"topic":{"0":1}}', "views": None})


def test_an_offset_entry_may_have_no_metadata() -> None:
    entry = parse_offsets("offsets/0", b"v1\n\n0")
    assert (entry.metadata, entry.settings, entry.by_source) == ({}, {}, {"0": "0"})


def test_a_commit_entry_gives_the_ids_of_each_partition() -> None:
    content = b'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["a","b"],["c","d"]],"1":[["e"]]}}'
    entry = parse_commit("commits/3", content)
    assert entry.state_ids == {0: (frozenset("ab"), frozenset("cd")), 1: (frozenset("e"),)}


@pytest.mark.parametrize("content", [b"v1", b'v1\n{"nextBatchWatermarkMs":0}', b"v2\n{}", b'v2\n{"stateUniqueIds":{}}'])
def test_a_commit_entry_may_have_no_ids(content: bytes) -> None:
    assert parse_commit("commits/3", content).state_ids is None


@pytest.mark.parametrize("content", [b"", b"1\n{}", b"v\n{}", b"v1\n{", b"v1\n[]", b"v1\n\xff"])
def test_what_is_no_entry_is_damaged(content: bytes) -> None:
    for parse in (parse_offsets, parse_commit):
        with pytest.raises(DamagedRecord, match="somewhere/3"):
            parse("somewhere/3", content)


@pytest.mark.parametrize("ids", [b"[]", b'{"x":[["a"]]}', b'{"0":5}', b'{"0":[5]}', b'"text"'])
def test_ids_of_another_shape_are_damaged(ids: bytes) -> None:
    with pytest.raises(DamagedRecord, match="stateUniqueIds"):
        parse_commit("commits/3", b'v2\n{"stateUniqueIds":' + ids + b"}")


def test_a_source_of_version_2_without_a_name_is_damaged() -> None:
    with pytest.raises(DamagedRecord, match="offsets/3"):
        parse_offsets("offsets/3", b"v2\n{}\n17")


def test_the_log_of_a_file_source_names_its_files() -> None:
    content = b'v1\n{"path":"file:///a%20b","timestamp":7,"batchId":3}\n{"path":"s3a://b/c","timestamp":8,"batchId":4}'
    assert [(file.path, file.batch) for file in parse_source_files("sources/0/4", content)] == [
        ("file:///a%20b", 3),
        ("s3a://b/c", 4),
    ]
    assert parse_source_files("sources/0/4", b"v1") == []


@pytest.mark.parametrize(
    ("names", "whole"),
    [
        (["0", "1", "2"], ["0", "1", "2"]),
        (["10", "9", "0"], ["0", "9", "10"]),
        (["0", "1", "2", "2.compact", "3", "5.compact", "5", "6"], ["5.compact", "6"]),
        (["9.compact", "10", "19.compact"], ["19.compact"]),
        (["notes", ".3.crc", "3.tmp"], []),
    ],
)
def test_the_newest_compacted_entry_holds_all_before_it(names: list[str], whole: list[str]) -> None:
    assert file_source_log(names) == whole


@pytest.mark.parametrize("content", [b"", b"v1\n{}", b'v1\n{"path":5,"batchId":1}', b"v1\n17", b"v1\n{"])
def test_what_is_no_log_of_files_is_damaged(content: bytes) -> None:
    with pytest.raises(DamagedRecord, match="sources/0/1"):
        parse_source_files("sources/0/1", content)
