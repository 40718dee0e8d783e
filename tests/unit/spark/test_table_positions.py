"""Which version of a table holds nothing behind an epoch, from what Delta and Iceberg say of their versions."""

from __future__ import annotations

import pytest

from coord_control.ids import Epoch
from coord_control.spark.sinks.delta import Commit, epochs_at, newest_version
from coord_control.spark.sinks.iceberg import Snapshot, newest_snapshot

#: Created; epochs 0, 1 and 2 of q; a row of another writer; epochs 3 and 4; back to version 3; another row; epoch 3.
_HISTORY = [
    Commit(10, "q", 3),
    Commit(9),
    Commit(8),  # the transactions that were set back
    Commit(7, restored=3),
    Commit(6, "q", 4),
    Commit(5, "q", 3),
    Commit(4),
    Commit(3, "q", 2),
    Commit(2, "q", 1),
    Commit(1, "q", 0),
    Commit(0),
]


@pytest.mark.parametrize(
    ("newest", "epoch", "version"),
    [
        (4, 2, 4),  # what others have written is kept
        (6, 2, 4),  # later epochs are in the table already
        (6, 3, 5),
        (6, 9, 6),
        (6, -1, 0),
        (7, 2, 7),  # the table was set back
        (7, 1, 2),
        (9, 2, 9),
        (10, 2, 9),
        (10, 3, 10),
        (10, 0, 1),
    ],
)
def test_the_newest_version_that_holds_nothing_of_the_query_behind_an_epoch(
    newest: int, epoch: int, version: int
) -> None:
    history = [commit for commit in _HISTORY if commit.version <= newest]
    assert newest_version(history, "q", Epoch(epoch)) == version


def test_a_history_that_does_not_reach_back_says_so() -> None:
    recent = [commit for commit in _HISTORY if 3 < commit.version <= 6]
    assert newest_version(recent, "q", Epoch(2)) is None
    assert newest_version(recent, "q", Epoch(3)) == 5
    assert newest_version([], "q", Epoch(3)) is None


def test_a_query_that_has_not_written_leaves_the_newest_version() -> None:
    assert newest_version(_HISTORY, "other", Epoch(-1)) == 10


@pytest.mark.parametrize(("version", "epoch"), [(10, 3), (4, 2), (6, 4), (8, 2), (0, -1)])
def test_the_epochs_that_a_version_holds_of_each_query(version: int, epoch: int) -> None:
    assert epochs_at(_HISTORY, version) == {"q": epoch}


def test_going_forward_again_restores_the_epochs_that_going_back_has_taken() -> None:
    """Fault: the transaction stayed where going back had set it, and an epoch that ran again was doubled."""
    assert epochs_at([commit for commit in _HISTORY if commit.version <= 8], 6) == {"q": 4}


def test_of_queries_of_which_the_history_says_nothing_only_those_behind_the_version_start_again() -> None:
    history = [Commit(60, "q", 7), Commit(59, restored=20), Commit(58, "other", 5)]
    assert epochs_at(history, 59) == {"q": -1}


#: 1 is the root; 2, 3 and 4 are epochs 0, 1 and 2; 5 is another writer's on top; 6 was made after a return to 3.
_SNAPSHOTS = {
    1: Snapshot(None),
    2: Snapshot(1, 0),
    3: Snapshot(2, 1),
    4: Snapshot(3, 2),
    5: Snapshot(4),
    6: Snapshot(3, 2),
}


@pytest.mark.parametrize(
    ("current", "epoch", "snapshot"),
    [(5, 2, 5), (5, 1, 3), (5, 0, 2), (5, -1, 1), (6, 2, 6), (6, 1, 3), (4, 9, 4), (1, 0, 1)],
)
def test_the_newest_ancestor_that_holds_nothing_of_the_query_behind_an_epoch(
    current: int, epoch: int, snapshot: int
) -> None:
    assert newest_snapshot(_SNAPSHOTS, current, Epoch(epoch)) == snapshot


@pytest.mark.parametrize(("snapshots", "current"), [({}, None), ({4: Snapshot(3, 2)}, 4)])
def test_a_table_that_had_no_snapshot_or_has_expired_it_says_so(
    snapshots: dict[int, Snapshot], current: int | None
) -> None:
    with pytest.raises(LookupError, match="had no snapshot at epoch 1, or it has expired"):
        newest_snapshot(snapshots, current, Epoch(1))
