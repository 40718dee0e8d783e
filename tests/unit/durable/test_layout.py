"""The logs, the sources and the borders of a checkpoint directory; its state is in `test_layout_state`."""

from __future__ import annotations

import pytest

from coord_control.durable.spark_layout.layout import layout_of
from coord_control.errors import DamagedRecord, StateFileMissing
from coord_control.ids import NO_EPOCH
from tests.unit.durable.layout_kit import Directory, versioned

# --- logs ------------------------------------------------------------------------------------------------------------


def test_a_query_that_has_not_committed_needs_what_its_sources_have_chosen() -> None:
    directory = Directory("metadata", "offsets/0", "state/0/_metadata/metadata", "state/0/0/1.delta")
    assert directory.needed(NO_EPOCH) == []
    assert directory.operators(NO_EPOCH) == []
    directory.add("sources/0/0", "sources/0/.0.crc", "sources/1/0")
    assert directory.needed(NO_EPOCH) == ["sources/0/0", "sources/1/0"]


def test_the_first_planned_epoch_fixes_how_far_its_sources_are_read() -> None:
    directory = Directory("metadata", "sources/0/0", "sources/0/1", "sources/0/2", "state/0/0/1.delta")
    directory.epochs(0, ['{"logOffset":1}']).add("commits/0")
    assert directory.needed(NO_EPOCH, planned=0) == ["offsets/0", "sources/0/0", "sources/0/1"]


def test_a_planned_epoch_needs_its_entry_and_what_its_sources_have_read_for_it() -> None:
    directory = Directory(*(f"sources/0/{number}" for number in range(9)))
    directory.epochs(3, ['{"logOffset":5}'])
    directory.add("offsets/4", content=directory.files["offsets/3"].replace(b"5", b"7"))
    assert directory.needed(3, "offsets/", planned=4) == ["2", "3", "4"]
    assert directory.needed(3, "commits/", planned=4) == ["2", "3"]
    assert directory.needed(3, "sources/0/", planned=4) == [str(number) for number in range(8)]
    assert directory.needed(3, planned=3) == directory.needed(3)
    assert directory.needed(3, "sources/0/")[-1] == "5"
    with pytest.raises(StateFileMissing, match=r"offsets/4.*epoch 4 was planned"):
        directory.without("offsets/4").needed(3, planned=4)
    directory.gone.add("offsets/4")
    with pytest.raises(StateFileMissing, match="offsets/4"):
        directory.needed(3, planned=4)


def test_an_epoch_needs_its_own_entries_and_the_ones_before_and_nothing_later() -> None:
    directory = Directory("metadata", ".metadata.crc").epochs(4)
    assert directory.needed(3) == ["commits/2", "commits/3", "offsets/2", "offsets/3"]
    assert directory.needed(0) == ["commits/0", "offsets/0"]


def test_with_asynchronous_progress_the_entry_before_may_be_several_epochs_older() -> None:
    directory = Directory().epochs(7).without("offsets/6", "offsets/5", "commits/6", "commits/5")
    assert directory.needed(7) == ["commits/4", "commits/7", "offsets/4", "offsets/7"]


@pytest.mark.parametrize("path", ["offsets/5", "commits/5", "offsets/4"])
def test_a_purged_entry_is_named_with_the_setting_that_keeps_it(path: str) -> None:
    directory = Directory().epochs(6).without("offsets/0", "offsets/1", "offsets/2", "offsets/3", path)
    with pytest.raises(StateFileMissing, match=r"spark\.sql\.streaming\.minBatchesToRetain") as caught:
        directory.needed(5)
    assert caught.value.path == path
    assert caught.value.retry


def test_the_commit_before_is_a_convenience_only() -> None:
    directory = Directory().epochs(5).without("commits/0", "commits/1", "commits/2", "commits/3", "commits/4")
    assert directory.needed(5) == ["commits/5", "offsets/4", "offsets/5"]


@pytest.mark.parametrize("path", ["offsets/5", "commits/5"])
def test_an_entry_that_is_purged_while_we_look_is_missing_too(path: str) -> None:
    directory = Directory().epochs(5)
    directory.gone.add(path)
    with pytest.raises(StateFileMissing, match=path):
        directory.needed(5)
    with pytest.raises(StateFileMissing, match=path):
        directory.operators(5)


def test_an_entry_of_no_known_form_is_damaged() -> None:
    directory = Directory().epochs(5).add("commits/5", content=b"\x00\x00")
    with pytest.raises(DamagedRecord, match="commits/5"):
        directory.needed(5)


# --- what is never there, and what always is -------------------------------------------------------------------------


def test_hidden_and_temporary_files_are_left_out() -> None:
    directory = Directory(
        ".hidden/file", "state/.tmp/x", "sources/0/.0.crc", "sources/0/1.tmp", "offsets/.1.4711.tmp", "other/x.tmp"
    )
    assert directory.epochs(0).needed(0) == ["commits/0", "offsets/0"]


def test_what_is_not_known_is_kept_but_not_the_query_id() -> None:
    directory = Directory("metadata", "schema-log/0", "notes", "state/readme", "state/0/0/custom.bin").epochs(0)
    assert directory.needed(0) == [
        "commits/0", "notes", "offsets/0", "schema-log/0", "state/0/0/custom.bin", "state/readme",
    ]  # fmt: skip


def test_a_checksum_of_sparks_own_goes_with_its_file_and_never_without() -> None:
    directory = Directory("offsets/0.crc", "offsets/1.crc", "commits/1.crc", "commits/9.crc", "notes", "notes.crc")
    assert directory.epochs(1).needed(0) == ["commits/0", "notes", "notes.crc", "offsets/0", "offsets/0.crc"]


def test_a_file_that_only_looks_like_a_checksum_is_kept() -> None:
    assert "other/table.crc" in Directory("other/table.crc").epochs(0).needed(0)


# --- sources ---------------------------------------------------------------------------------------------------------

COMPACTED = ("0", "1", "2.compact", "3", "4", "5.compact", "6", "7")


@pytest.mark.parametrize(
    ("newest", "expected"),
    [
        (-1, []),
        (0, ["0"]),
        (1, ["0", "1"]),
        (2, ["2.compact"]),
        (4, ["2.compact", "3", "4"]),
        (5, ["2.compact", "5.compact"]),
        (6, ["2.compact", "5.compact", "6"]),
    ],
)
def test_a_file_sources_log_is_taken_from_its_newest_compaction_to_its_own_offset(
    newest: int, expected: list[str]
) -> None:
    """The compacted entry before tells Spark the interval."""
    directory = Directory(*(f"sources/0/{name}" for name in COMPACTED)).epochs(3, [f'{{"logOffset":{newest}}}'])
    assert directory.needed(3, "sources/0/") == expected


def test_each_source_has_an_offset_of_its_own() -> None:
    directory = Directory(*(f"sources/{source}/{name}" for source in (0, 1) for name in COMPACTED))
    directory.epochs(9, ['{"logOffset":7}', '{"logOffset":3}'])
    assert directory.needed(9, "sources/") == ["0/2.compact", "0/5.compact", "0/6", "0/7", "1/2.compact", "1/3"]


def test_named_sources_are_found_by_name() -> None:
    directory = Directory(*(f"sources/clicks/{name}" for name in COMPACTED)).epochs(4)
    directory.add("offsets/4", content=b'v2\n{"batchWatermarkMs":0}\nclicks:{"logOffset":4}\nviews:-')
    assert directory.needed(4, "sources/clicks/") == ["2.compact", "3", "4"]


@pytest.mark.parametrize("offset", ['{"topic":{"0":17}}', "17", "-", '"text"', '{"logOffset":1,"more":2}', "{nonsense"])
def test_all_of_a_source_of_another_kind_is_kept(offset: str) -> None:
    directory = Directory("sources/0/0", "sources/0/9", "sources/0/schema/x").epochs(3, [offset])
    assert directory.needed(3, "sources/0/") == ["0", "9", "schema/x"]


def test_a_compacted_entry_wins_over_a_plain_one_of_the_same_number() -> None:
    directory = Directory("sources/0/2", "sources/0/2.compact", "sources/0/3").epochs(3, ['{"logOffset":3}'])
    assert directory.needed(3, "sources/0/") == ["2.compact", "3"]


def test_a_gap_in_a_file_sources_log_is_an_error() -> None:
    directory = Directory(*(f"sources/0/{name}" for name in COMPACTED)).epochs(3, ['{"logOffset":7}'])
    with pytest.raises(StateFileMissing, match="sources/0/6 is missing"):
        directory.without("sources/0/6").needed(3)
    with pytest.raises(StateFileMissing, match="sources/0/0 is missing"):
        Directory("sources/0/1").epochs(3, ['{"logOffset":1}']).needed(3)


# --- the reader ------------------------------------------------------------------------------------------------------


def test_a_stateless_query_costs_two_reads() -> None:
    directory = Directory(*(f"sources/0/{name}" for name in COMPACTED)).epochs(9, ['{"logOffset":7}'])
    reads: list[str] = []

    def read(path: str) -> bytes:
        reads.append(path)
        return directory.read(path)

    layout_of(dict.fromkeys(directory.files, 0), NO_EPOCH + 10, read)  # type: ignore[arg-type]
    assert reads == ["offsets/9", "commits/9"]


def test_the_version_of_a_log_is_not_what_decides() -> None:
    directory = Directory().epochs(1).add("commits/1", content=versioned(3, {"nextBatchWatermarkMs": 0, "sink": {}}))
    assert directory.needed(1) == ["commits/0", "commits/1", "offsets/0", "offsets/1"]
