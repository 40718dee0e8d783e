from __future__ import annotations

import pytest

from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.checkpoint_folder import files_folder, stored_name
from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata, Kind
from coord_control.durable.checkpoints.verification import Problem, ProblemKind, verify_files
from coord_control.durable.files.filesystem import join
from tests.simulation.memory_files import MemoryFiles
from tests.unit.durable.checkpoint_kit import JOB, QUERY, StoreDriver, run_epoch


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    for epoch in range(5):
        run_epoch(files, epoch)
    return files


def made(files: MemoryFiles, kind: Kind) -> tuple[str, CheckpointMetadata, list[str]]:
    """The folder, the metadata, and where each file of the manifest lies."""
    StoreDriver(files, 1).make(4, kind)
    catalog = Catalog(files, JOB)
    entry = catalog.resolve("latest")
    metadata = catalog.read(entry)
    folder = files_folder(entry.path, metadata, QUERY)
    return entry.path, metadata, [join(folder, stored_name(file)) for file in metadata.queries[QUERY].files]


KINDS: tuple[Kind, ...] = ("checkpoint", "savepoint")


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_was_left_alone_is_intact(files: MemoryFiles, kind: Kind) -> None:
    path, metadata, names = made(files, kind)
    assert len(names) == 10
    assert list(verify_files(files, path, metadata)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_one_flipped_bit_in_any_file_is_found(files: MemoryFiles, kind: Kind) -> None:
    path, metadata, names = made(files, kind)
    for number, name in enumerate(names):
        damaged = files.copy()
        damaged.damage(name, flip_bit=number)
        [problem] = verify_files(damaged, path, metadata)
        assert (problem.query, problem.kind, problem.path) == (QUERY, ProblemKind.CHECKSUM, name)
        assert problem.is_fatal
        assert "content has changed" in problem.detail


@pytest.mark.parametrize("kind", KINDS)
def test_any_missing_file_is_found(files: MemoryFiles, kind: Kind) -> None:
    path, metadata, names = made(files, kind)
    for name in names:
        damaged = files.copy()
        damaged.delete(name)
        assert list(verify_files(damaged, path, metadata)) == [
            Problem(QUERY, ProblemKind.MISSING, name, "the file is missing")
        ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_file_is_told_with_both_sizes(files: MemoryFiles, kind: Kind) -> None:
    path, metadata, names = made(files, kind)
    size = len(files.read(names[-1]))
    files.damage(names[-1], keep=3)
    [problem] = verify_files(files, path, metadata)
    assert problem.kind is ProblemKind.SIZE
    assert str(problem) == f"{names[-1]}: it has 3 bytes instead of {size}"


def test_all_problems_are_told_and_extra_files_are_no_reason_to_refuse(files: MemoryFiles) -> None:
    path, metadata, names = made(files, "savepoint")
    extra = join(path, "queries", QUERY, "spark", "offsets/5")
    files.create(extra, b"of a later epoch")
    [problem] = verify_files(files, path, metadata)
    assert (problem.kind, problem.path, problem.is_fatal) == (ProblemKind.EXTRA, extra, False)
    files.delete(names[0])
    files.damage(names[1], flip_bit=0)
    kinds = [problem.kind for problem in verify_files(files, path, metadata)]
    assert kinds == [ProblemKind.MISSING, ProblemKind.CHECKSUM, ProblemKind.EXTRA]
