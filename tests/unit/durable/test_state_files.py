"""Which files make a version of a state store, for each provider and format."""

from __future__ import annotations

import pytest

from coord_control.errors import DamagedRecord, StateFileMissing
from tests.unit.durable.layout_kit import Directory, described, index, versioned

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def numbered(kind: str, *versions: int, store: str = "state/0/0") -> list[str]:
    return [f"{store}/{version}.{kind}" for version in versions]


def one_store(*names: str, last: int = 9, provider: str = ROCKSDB) -> Directory:
    return Directory(*names).epochs(last, partitions=1, provider=provider)


# --- HDFS-backed -----------------------------------------------------------------------------------------------------


def test_without_a_snapshot_all_deltas_are_needed() -> None:
    directory = one_store(*numbered("delta", 1, 2, 3, 4, 5))
    assert directory.needed(2, "state/0/0/") == ["1.delta", "2.delta", "3.delta"]


def test_the_newest_snapshot_up_to_the_version_stands_for_the_deltas_before_it() -> None:
    directory = one_store(*numbered("delta", *range(1, 10)), *numbered("snapshot", 3, 6, 9))
    assert directory.needed(6, "state/0/0/") == ["6.snapshot", "7.delta"]
    assert directory.needed(5, "state/0/0/") == ["6.snapshot"]
    assert directory.needed(4, "state/0/0/") == ["3.snapshot", "4.delta", "5.delta"]


def test_deltas_below_the_snapshot_may_be_purged_but_none_above_it() -> None:
    directory = one_store(*numbered("delta", 7, 8, 9), *numbered("snapshot", 6))
    assert directory.needed(8, "state/0/0/") == ["6.snapshot", "7.delta", "8.delta", "9.delta"]
    with pytest.raises(StateFileMissing, match=r"state/0/0/8\.delta is missing.*version 9"):
        directory.without("state/0/0/8.delta").needed(8)
    with pytest.raises(StateFileMissing, match=r"state/0/0/6\.delta is missing"):
        directory.without("state/0/0/6.snapshot").needed(8)
    with pytest.raises(StateFileMissing, match=r"state/0/0/5\.delta"):
        directory.needed(4)


def test_an_epoch_whose_version_a_partition_does_not_have_is_missing() -> None:
    directory = Directory(*numbered("delta", 1, 2, 3), *numbered("delta", 1, 2, store="state/0/1")).epochs(3)
    with pytest.raises(StateFileMissing, match=r"state/0/1/3\.delta"):
        directory.needed(2)


# --- RocksDB ---------------------------------------------------------------------------------------------------------


def test_a_snapshot_of_rocksdb_comes_with_the_files_that_it_names() -> None:
    directory = one_store("state/0/0/SSTs/1-a.sst", "state/0/0/SSTs/2-b.sst", "state/0/0/SSTs/3-c.sst", last=3)
    directory.add("state/0/0/logs/8-d.log", "state/0/0/logs/9-e.log")
    directory.add("state/0/0/2.zip", content=index(["1-a.sst"]))
    directory.add("state/0/0/3.zip", content=index(["1-a.sst", "3-c.sst"], ["9-e.log"]))
    assert directory.needed(2, "state/0/0/") == ["3.zip", "SSTs/1-a.sst", "SSTs/3-c.sst", "logs/9-e.log"]
    assert directory.needed(1, "state/0/0/") == ["2.zip", "SSTs/1-a.sst"]
    for missing in ("SSTs/3-c.sst", "logs/9-e.log"):
        with pytest.raises(StateFileMissing, match=f"state/0/0/{missing} is missing.*3.zip refers to it"):
            directory.without(f"state/0/0/{missing}").needed(2)


def test_without_changes_every_version_needs_its_own_snapshot() -> None:
    directory = one_store(last=3).add(*numbered("zip", 1, 2, 4), content=index())
    with pytest.raises(StateFileMissing, match=r"state/0/0/3\.zip"):
        directory.needed(2)


def test_changes_follow_the_newest_snapshot() -> None:
    directory = one_store(*numbered("changelog", *range(1, 10)), "state/0/0/SSTs/1-a.sst")
    directory.add(*numbered("zip", 3, 6), content=index(["1-a.sst"]))
    assert directory.needed(6, "state/0/0/") == ["6.zip", "7.changelog", "SSTs/1-a.sst"]
    assert directory.needed(1, "state/0/0/") == ["1.changelog", "2.changelog"]
    with pytest.raises(StateFileMissing, match=r"state/0/0/5\.changelog"):
        directory.without("state/0/0/5.changelog").needed(4)


def test_a_store_that_began_without_changes_goes_on_with_them() -> None:
    directory = one_store(*numbered("changelog", 3, 4)).add(*numbered("zip", 1, 2), content=index())
    assert directory.needed(3, "state/0/0/") == ["2.zip", "3.changelog", "4.changelog"]


def test_a_snapshot_that_is_purged_while_we_look_is_missing() -> None:
    directory = one_store().add(*numbered("zip", 5), content=index())
    directory.gone.add("state/0/0/5.zip")
    with pytest.raises(StateFileMissing, match=r"state/0/0/5\.zip"):
        directory.needed(4)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"not a zip", index()[:-30]])
def test_a_snapshot_that_is_not_a_zip_is_damaged(content: bytes) -> None:
    with pytest.raises(DamagedRecord, match=r"state/0/0/5\.zip"):
        one_store().add("state/0/0/5.zip", content=content).needed(4)


# --- format 2: unique ids --------------------------------------------------------------------------------------------


def with_ids(last: int, partitions: int = 1) -> Directory:
    """Epoch e commits the ids e<e>p<partition>."""
    ids = {epoch: {"0": [[f"e{epoch}p{number}"] for number in range(partitions)]} for epoch in range(last + 1)}
    return Directory().epochs(last, partitions=partitions, provider=ROCKSDB, ids=ids)


def test_only_the_tries_that_were_committed_are_taken() -> None:
    directory = with_ids(5).add(
        *(f"state/0/0/{version}_e{version - 1}p0.changelog" for version in range(1, 7)),
        "state/0/0/3_failed.changelog",
        "state/0/0/4_failed.changelog",
        "state/0/0/6_another.changelog",
    )
    directory.add("state/0/0/2_e1p0.zip", "state/0/0/3_failed.zip", content=index())
    assert directory.needed(4, "state/0/0/") == [
        "2_e1p0.zip", "3_e2p0.changelog", "4_e3p0.changelog", "5_e4p0.changelog",
    ]  # fmt: skip
    with pytest.raises(StateFileMissing, match=r"state/0/0/4\.changelog"):
        directory.without("state/0/0/4_e3p0.changelog").needed(4)


def test_several_stores_have_their_ids_in_one_list() -> None:
    stores = ("left-keyToNumValues", "right-keyToNumValues")
    directory = Directory().epochs(0, partitions=1, provider=ROCKSDB, ids={0: {"0": [["l", "r"]]}})
    directory.add("state/0/_metadata/metadata", content=described("symmetricHashJoin", stores, 1))
    for name, id in zip(stores, "lr", strict=True):
        directory.add(f"state/0/0/{name}/1_{id}.changelog", f"state/0/0/{name}/1_x.changelog")
    assert directory.needed(0, "state/0/0/") == [
        "left-keyToNumValues/1_l.changelog", "right-keyToNumValues/1_r.changelog",
    ]  # fmt: skip


def test_sparks_checksums_go_with_changes_and_snapshots() -> None:
    directory = with_ids(1).add("state/0/0/1_e0p0.zip", content=index())
    directory.add("state/0/0/1_e0p0.zip.crc", "state/0/0/2_e1p0.changelog", "state/0/0/2_e1p0.changelog.crc")
    directory.add("state/0/0/1_e0p0.changelog", "state/0/0/1_e0p0.changelog.crc", "state/0/0/.1_e0p0.zip.crc.crc")
    assert directory.needed(1, "state/0/0/") == [
        "1_e0p0.zip", "1_e0p0.zip.crc", "2_e1p0.changelog", "2_e1p0.changelog.crc",
    ]  # fmt: skip


def test_versions_whose_commits_are_purged_are_known_by_the_only_id_they_have() -> None:
    directory = with_ids(6).add(*(f"state/0/0/{version}_e{version - 1}p0.changelog" for version in range(2, 8)))
    directory.add("state/0/0/2_e1p0.zip", content=index())
    purged = directory.without(*(f"{log}/{epoch}" for log in ("commits", "offsets") for epoch in range(5)))
    assert purged.needed(6, "state/0/0/") == [
        "2_e1p0.zip", *(f"{version}_e{version - 1}p0.changelog" for version in range(3, 8)),
    ]  # fmt: skip


def test_where_the_id_cannot_be_known_all_tries_are_taken() -> None:
    directory = with_ids(3).add(
        "state/0/0/1_e0p0.changelog", "state/0/0/2_e1p0.changelog", "state/0/0/2_failed.changelog",
        "state/0/0/3_e2p0.changelog", "state/0/0/4_e3p0.changelog",
    )  # fmt: skip
    purged = directory.without("commits/0", "commits/1")
    assert purged.needed(3, "state/0/0/") == [
        "1_e0p0.changelog", "2_e1p0.changelog", "2_failed.changelog", "3_e2p0.changelog", "4_e3p0.changelog",
    ]  # fmt: skip


def test_a_snapshot_that_may_be_of_a_failed_try_does_not_end_the_search_but_may_be_its_end() -> None:
    directory = with_ids(3).add(
        "state/0/0/2_e1p0.changelog", "state/0/0/3_e2p0.changelog", "state/0/0/4_e3p0.changelog"
    )
    directory.add("state/0/0/2_other.zip", content=index())
    purged = directory.without("commits/0", "commits/1")
    expected = ["2_e1p0.changelog", "2_other.zip", "3_e2p0.changelog", "4_e3p0.changelog"]
    assert purged.needed(3, "state/0/0/") == expected
    purged.add("state/0/0/1_e0p0.changelog")
    assert purged.needed(3, "state/0/0/") == ["1_e0p0.changelog", *expected]


def test_a_commit_that_is_purged_while_we_look_leaves_the_only_id() -> None:
    directory = with_ids(1).add("state/0/0/1_e0p0.changelog", "state/0/0/2_e1p0.changelog")
    directory.gone.add("commits/0")
    assert directory.needed(1, "state/0/0/") == ["1_e0p0.changelog", "2_e1p0.changelog"]


def test_versions_from_before_the_change_of_format_have_no_ids() -> None:
    directory = with_ids(2).add("commits/0", content=versioned(1, {"nextBatchWatermarkMs": 0}))
    directory.add("state/0/0/1.zip", content=index())
    directory.add("state/0/0/1_failed.changelog", "state/0/0/2_e1p0.changelog", "state/0/0/3_e2p0.changelog")
    assert directory.needed(2, "state/0/0/") == ["1.zip", "2_e1p0.changelog", "3_e2p0.changelog"]


def test_partitions_beyond_those_that_were_committed_are_not_of_this_epoch() -> None:
    directory = with_ids(0, partitions=2).add("state/0/0/1_e0p0.changelog", "state/0/1/1_e0p1.changelog")
    directory.add("state/0/2/1_old.changelog")
    assert directory.needed(0, "state/0/") == ["0/1_e0p0.changelog", "1/1_e0p1.changelog"]


# --- partitions and stores -------------------------------------------------------------------------------------------


def test_each_store_of_each_partition_has_a_chain_of_its_own() -> None:
    stores = ("left-keyToNumValues", "left-keyWithIndexToValue")
    directory = Directory().epochs(1).add("state/0/_metadata/metadata", content=described("join", stores))
    for partition in (0, 1):
        for name in stores:
            directory.add(*numbered("delta", 1, 2, 3, store=f"state/0/{partition}/{name}"))
    directory.add("state/0/1/left-keyToNumValues/2.snapshot", "state/0/0/left-keyToNumValues/_metadata/schema")
    assert directory.needed(1, "state/0/") == [
        "0/left-keyToNumValues/1.delta",
        "0/left-keyToNumValues/2.delta",
        "0/left-keyToNumValues/_metadata/schema",
        "0/left-keyWithIndexToValue/1.delta",
        "0/left-keyWithIndexToValue/2.delta",
        "1/left-keyToNumValues/2.snapshot",
        "1/left-keyWithIndexToValue/1.delta",
        "1/left-keyWithIndexToValue/2.delta",
        "_metadata/metadata",
    ]
    lost = directory.without(*numbered("delta", 1, 2, 3, store="state/0/1/left-keyWithIndexToValue"))
    with pytest.raises(StateFileMissing, match="state/0/1/left-keyWithIndexToValue"):
        lost.needed(1)


def test_a_partition_without_any_file_is_missing() -> None:
    directory = Directory(*numbered("delta", 1), *numbered("delta", 1, store="state/0/2")).epochs(0, partitions=3)
    with pytest.raises(StateFileMissing, match="state/0/1 is missing"):
        directory.needed(0)


def test_an_operator_that_gathers_all_rows_has_partition_0_alone() -> None:
    directory = Directory(*numbered("delta", 1)).epochs(0, partitions=200)
    directory.add("state/0/_metadata/metadata", content=described("globalLimit", partitions=200))
    assert directory.needed(0, "state/0/0/") == ["1.delta"]
    assert [operator.partitions for operator in directory.operators(0)] == [1]


def test_partitions_that_a_repartitioned_query_left_behind_are_not_taken() -> None:
    directory = Directory(*numbered("snapshot", 3), *numbered("snapshot", 3, store="state/0/1")).epochs(2)
    directory.add(*numbered("delta", 1, 2, store="state/0/2"), *numbered("delta", 1, 2, store="state/0/3"))
    assert directory.needed(2, "state/0/") == ["0/3.snapshot", "1/3.snapshot"]


def test_all_operators_of_a_query_are_taken() -> None:
    stores = [f"state/{operator}/{partition}" for operator in (0, 1, 10) for partition in (0, 1)]
    directory = Directory(*(f"{store}/1.delta" for store in stores)).epochs(0)
    assert directory.needed(0, "state/") == sorted(f"{store}/1.delta".removeprefix("state/") for store in stores)
