from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from coord_control.durable.checkpoints.pins import LiveFiles
from coord_control.durable.files.filesystem import FileInfo, Listing, LocalFiles, join
from coord_control.errors import StateFileMissing
from coord_control.ids import Epoch
from tests.unit.durable.layout_kit import Directory


class _PurgedListing:
    """Spark removes a file after it was listed."""

    def __init__(self, listing: Listing, doomed: Path) -> None:
        self._listing = listing
        self._doomed = doomed

    @property
    def names(self) -> Collection[str]:
        return self._listing.names

    def infos(self, names: Sequence[str]) -> Sequence[FileInfo]:
        self._doomed.unlink(missing_ok=True)
        return self._listing.infos(names)


class _PurgedFiles(LocalFiles):
    def __init__(self, doomed: Path) -> None:
        super().__init__()
        self._doomed = doomed

    def listing(self, path: str) -> Listing:
        return _PurgedListing(super().listing(path), self._doomed)


def _written(folder: Path) -> str:
    directory = Directory().epochs(1).add("metadata", "state/0/0/1.delta", "state/0/0/2.delta")
    directory.add("state/0/1/1.delta", "state/0/1/2.delta")
    for name, content in directory.files.items():
        LocalFiles().create(join(str(folder), name), content)
    return str(folder)


def test_what_is_live_is_looked_at_once_and_in_the_order_of_the_layout(tmp_path: Path) -> None:
    folder = _written(tmp_path / "spark")
    live = LiveFiles.of(LocalFiles(), folder, Epoch(1), "lineage-000001")
    assert [info.path for info in live.infos] == list(live.layout.files)
    assert {info.path for info in live.infos} >= {"offsets/1", "commits/1", "state/0/1/2.delta"}
    assert all(info.size == Path(folder, info.path).stat().st_size for info in live.infos)


@pytest.mark.parametrize("doomed", ["state/0/1/2.delta", "offsets/1", "commits/1"])
def test_a_file_that_spark_removes_after_the_listing_is_said_to_be_missing(tmp_path: Path, doomed: str) -> None:
    """Not that the storage cannot be used: the caller cuts again, at a newer epoch."""
    folder = _written(tmp_path / "spark")
    with pytest.raises(StateFileMissing, match=doomed):
        LiveFiles.of(_PurgedFiles(Path(folder, doomed)), folder, Epoch(1), "lineage-000001")
