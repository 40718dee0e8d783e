from __future__ import annotations

from collections.abc import Iterator

import pytest

from coord_control.durable.spark_layout.file_sink_log import entries_up_to, newest_entry
from coord_control.errors import StateFileMissing
from coord_control.ids import Epoch


def names(*epochs: int, interval: int = 3) -> Iterator[str]:
    """What Spark calls the entries; every third one is compacted."""
    return (f"{epoch}.compact" if (epoch + 1) % interval == 0 else str(epoch) for epoch in epochs)


@pytest.mark.parametrize(
    ("up_to", "wanted"),
    [
        (-1, []),
        (0, ["0"]),
        (1, ["0", "1"]),
        (2, ["2.compact"]),
        (4, ["2.compact", "3", "4"]),
        (5, ["2.compact", "5.compact"]),
        (7, ["2.compact", "5.compact", "6", "7"]),
        (9, ["5.compact", "8.compact", "9"]),
        (99, ["5.compact", "8.compact", "9", "10"]),
    ],
)
def test_an_epoch_is_read_from_the_last_compacted_entry_and_what_follows(up_to: int, wanted: list[str]) -> None:
    """The compacted entry before tells Spark the interval."""
    assert entries_up_to(names(*range(11)), Epoch(up_to)) == wanted


def test_entries_that_spark_has_removed_are_not_missed_below_a_compacted_one() -> None:
    assert entries_up_to(names(8, 9, 10), Epoch(9)) == ["8.compact", "9"]


@pytest.mark.parametrize(
    ("present", "up_to"), [((8, 9, 10), 7), ((1,), 1), ((0, 1, 3, 4), 4), ((2, 3, 5, 6), 4), ((5, 6), 0)]
)
def test_a_log_that_lacks_an_entry_of_the_epoch_is_not_taken_for_a_shorter_one(
    present: tuple[int, ...], up_to: int
) -> None:
    with pytest.raises(StateFileMissing, match="_spark_metadata"):
        entries_up_to(names(*present), Epoch(up_to))


def test_a_log_that_begins_later_held_nothing_before() -> None:
    assert entries_up_to(names(0, 1), Epoch(-1)) == []
    assert entries_up_to([], Epoch(7)) == []


def test_other_files_are_not_entries() -> None:
    assert newest_entry(["1", "12.tmp", ".3.crc", "2.compact", "x"]) == 2
    assert newest_entry([]) == -1
    assert entries_up_to(["1", "12.tmp", "0", "x"], Epoch(20)) == ["0", "1"]
