"""Savepoints on a full disk, and savepoints that somebody has damaged, on real Spark and a real file system."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

import coord_control as cc
from coord_control.durable.checkpoints.checkpoint_folder import (
    CheckpointEntry,
    files_folder,
    list_entries,
    shared_names,
    stored_name,
)
from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata, decode_metadata
from coord_control.durable.checkpoints.verification import ProblemKind, verify_files
from coord_control.durable.files import posix
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder.restore_log import newest_restore
from coord_control.errors import (
    CheckpointNotCompleted,
    CoordControlError,
    DamagedRecord,
    QueryFailed,
    RestoreRefused,
    StoreError,
)
from coord_control.ids import QueryName
from tests.patience import SECONDS, eventually
from tests.spark.jobs import (
    Dialogue,
    MakeJob,
    apply,
    drain,
    rows,
    talk,
)
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark

QUERY: Final = QueryName("q")


def run(job: cc.Job, source: FileStream, coordinator: cc.OperatorCoordinator) -> None:
    """A query that goes on for ever, with an operator and a state of Spark's, and all rows of the source behind it."""
    counts = apply(talk(job, coordinator), source.read()).groupBy("key").count()
    job.start(QUERY, counts.writeStream.format("noop").outputMode("update").trigger(processingTime="50 milliseconds"))
    eventually(lambda: committed(job) == 2)


def committed(job: cc.Job) -> int:
    return job.status().queries[0].committed


def read(path: Path | str) -> CheckpointMetadata:
    name = Path(path, "_metadata")
    return decode_metadata(str(name), name.read_bytes())


# --- a full disk -----------------------------------------------------------------------------------------------------


@dataclass
class Disk:
    """The disk of the checkpoints, which has no hard links; from a certain file on it is full.

    The kernel itself says so: the file is opened, and then it is `/dev/full`.
    """

    fills_at: Callable[[str], bool] | None = None
    refused: list[str] = field(default_factory=list)

    def open_new(self, path: str, original: Callable[[str], int] = posix.open_new) -> int:
        descriptor = original(path)
        if self.fills_at is not None and _is_of_a_checkpoint(path) and (self.refused or self.fills_at(path)):
            self.refused.append(path)
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, descriptor)
            os.close(full)
        return descriptor

    def link(self, source: str, target: str, *, original: Callable[..., None] = os.link, **options: Any) -> None:
        if options.get("dst_dir_fd") is not None:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        original(source, target, **options)


def _is_of_a_checkpoint(path: str) -> bool:
    return any(f"/{folder}/" in path for folder in ("checkpoints", "savepoints", "shared"))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    with monkeypatch.context() as patch:
        patch.setattr(posix, "open_new", disk.open_new)
        patch.setattr(os, "link", disk.link)
        yield disk


@pytest.mark.parametrize(
    ("kind", "files"),
    [("checkpoint", ["_claim", "offsets", "state", "_metadata"]), ("savepoint", ["_claim", "state", "_completed"])],
)
def test_a_full_disk_fails_the_checkpoint_and_nothing_else(
    make_job: MakeJob, source: FileStream, disk: Disk, tmp_path: Path, kind: str, files: list[str]
) -> None:
    job, coordinator = make_job(checkpoints=cc.CheckpointOptions(retained=2)), Dialogue()
    run(job, source, coordinator)
    trigger = job.trigger_checkpoint if kind == "checkpoint" else job.trigger_savepoint
    folder = tmp_path / "jobs" / "job"
    epoch = 2
    for victim in files:
        source.add(rows(epoch := epoch + 1))  # something that no checkpoint has yet
        reaches(job, epoch)
        disk.fills_at = fills_at(victim)
        with pytest.raises(CheckpointNotCompleted, match="space") as failed:
            trigger().wait(SECONDS)
        assert failed.value.reason == "disk_full"
        assert disk.refused
        left = [Path(entry.path, "_metadata") for entry in completed_ones(folder)]
        source.add(rows(epoch := epoch + 1))
        reaches(job, epoch)

        disk.fills_at = None
        disk.refused.clear()
        taken = trigger().wait(SECONDS)
        assert read(taken.path).queries[QUERY].epoch == epoch
        assert not list(verify_files(LocalFiles(), taken.path, read(taken.path)))
        assert kind == "checkpoint" or all(path.exists() for path in left)
        eventually(lambda: nothing_half_made(folder))
    assert job.checkpoint_statistics().counts.failed == len(files)
    assert job.status().queries[0].restarts == 0
    job.stop()
    coordinator.check(range(8 * (epoch + 1)))


def fills_at(victim: str) -> Callable[[str], bool]:
    """Files are written under another name first, which begins with a dot."""
    return lambda path: f"/{victim}" in path or f"/.{victim}" in path


def reaches(job: cc.Job, epoch: int) -> None:
    eventually(lambda: committed(job) == epoch)


def completed_ones(folder: Path) -> list[CheckpointEntry]:
    return [entry for entry in list_entries(LocalFiles(), str(folder)) if entry.is_completed]


def nothing_half_made(folder: Path) -> bool:
    """All that lies there is part of something complete."""
    entries = list(list_entries(LocalFiles(), str(folder)))
    metadata = [read(entry.path) for entry in entries if entry.is_completed]
    named = {name for one in metadata if one.kind == "checkpoint" for name in shared_names(one)}
    return (
        len(metadata) == len(entries)
        and {info.path for info in LocalFiles().walk(str(folder / "shared"))} == named
        and {path.parent for path in folder.glob("savepoints/*/_metadata")} == set(folder.glob("savepoints/*"))
        and not list(folder.glob("*points/**/.*.tmp"))
    )


# --- damage ----------------------------------------------------------------------------------------------------------


def remove(file: Path) -> None:
    file.unlink()


def shorten(file: Path) -> None:
    rewrite(file, file.read_bytes()[:-1])


def flip(file: Path) -> None:
    """One bit of one byte."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    rewrite(file, bytes(content))


def rewrite(file: Path, content: bytes) -> None:
    """Not into the file itself: it has other names."""
    file.unlink()
    file.write_bytes(content)


DAMAGES: Final = {remove: ProblemKind.MISSING, shorten: ProblemKind.SIZE, flip: ProblemKind.CHECKSUM}
FILES: Final = ("offsets/2", "commits/2", "sources/0/2", "state/0/1/3.delta", "state/0/_metadata/metadata")


@dataclass(frozen=True)
class Taken:
    """A savepoint and a retained checkpoint of a job that has ended; each test gets a copy."""

    root: Path
    paths: dict[str, Path]


@pytest.fixture
def taken(make_job: MakeJob, source: FileStream, tmp_path: Path) -> Taken:
    job = make_job()
    run(job, source, Dialogue())
    paths = {"checkpoint": job.trigger_checkpoint().wait(SECONDS).path}
    paths["savepoint"] = job.trigger_savepoint(target=str(tmp_path / "savepoint")).wait(SECONDS).path
    job.stop()
    return Taken(tmp_path / "jobs", {kind: Path(path) for kind, path in paths.items()})


def refused(make_job: MakeJob, path: Path) -> CoordControlError:
    """Neither the job itself nor a fork can be restored from it, and both are left as they were."""
    errors = []
    for name in ("job", "fork"):
        with pytest.raises((RestoreRefused, StoreError)) as caught:
            make_job(name, restore_from=str(path))
        errors.append(caught.value)
    return errors[-1]


def test_whatever_is_damaged_is_found_and_refused(make_job: MakeJob, taken: Taken) -> None:
    files = LocalFiles()
    for path in taken.paths.values():
        metadata = read(path)
        folder = Path(files_folder(str(path), metadata, QUERY))
        entries = {entry.path: entry for entry in metadata.queries[QUERY].files}
        assert not list(verify_files(files, str(path), metadata))
        # Each file in one of the ways; tests/unit/durable/test_verification.py has all of both.
        for name, (damage, kind) in zip(FILES, itertools.cycle(DAMAGES.items()), strict=False):
            victim = folder / stored_name(entries[name])
            content = victim.read_bytes()
            damage(victim)
            [problem] = verify_files(files, str(path), metadata)
            assert (problem.kind, problem.path) == (kind, str(victim))
            assert str(victim) in str(refused(make_job, path))
            victim.unlink(missing_ok=True)
            victim.write_bytes(content)
    lineages = {lineage.name for lineage in taken.root.glob("*/queries/*/*")}
    assert lineages == {"lineage-000001"}
    assert not [job for job in taken.root.iterdir() if newest_restore(files, str(job))]
    assert make_job("fork", restore_from=str(taken.paths["savepoint"])).generation > 1


def test_damaged_metadata_is_found_and_refused(make_job: MakeJob, taken: Taken) -> None:
    for path in taken.paths.values():
        name = path / "_metadata"
        content = name.read_bytes()
        for damage in (remove, shorten, flip):
            damage(name)
            if damage is not remove:
                with pytest.raises(DamagedRecord, match="_metadata"):
                    read(path)
            assert str(path) in str(refused(make_job, path))
            name.unlink(missing_ok=True)
            name.write_bytes(content)
    assert not [job for job in taken.root.iterdir() if newest_restore(LocalFiles(), str(job))]


def test_a_savepoint_is_restored_where_it_was_carried_to(
    make_job: MakeJob, source: FileStream, taken: Taken, tmp_path: Path
) -> None:
    """It is self-contained: all that it was taken of is gone."""
    moved = tmp_path / "archive" / "of-2026"
    shutil.copytree(taken.paths["savepoint"], moved)
    shutil.rmtree(taken.paths["savepoint"])
    shutil.rmtree(taken.root)
    source.add(rows(3))
    coordinator = Dialogue()
    job = make_job("elsewhere", restore_from=str(moved))
    counts = apply(talk(job, coordinator), source.read()).groupBy("key").count()
    job.start(QUERY, counts.writeStream.format("noop").outputMode("update"))
    eventually(lambda: committed(job) == 3)
    job.stop()
    coordinator.check(range(32))


def test_the_file_sink_of_a_fork_needs_the_log_of_the_original(
    make_job: MakeJob, own_session: SparkSession, source: FileStream, tmp_path: Path
) -> None:
    """Why the check before a restore says so: every tenth epoch, here every fifth, Spark merges all of that log."""
    own_session.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "5")

    def drained(job: cc.Job, output: Path) -> None:
        drain(job, source.read(own_session).writeStream.format("parquet").option("path", str(output)))

    job = make_job(session=own_session)
    drained(job, tmp_path / "out")
    path = job.trigger_savepoint(target=str(tmp_path / "savepoint")).wait(SECONDS).path
    for epoch in range(3, 5):
        source.add(rows(epoch))
    with pytest.raises(QueryFailed, match="BATCH_METADATA_NOT_FOUND"):
        drained(make_job("fork", restore_from=path, session=own_session), tmp_path / "empty")
    shutil.copytree(tmp_path / "out" / "_spark_metadata", tmp_path / "prepared" / "_spark_metadata")
    drained(make_job("prepared", restore_from=path, session=own_session), tmp_path / "prepared")
    written = [row.value for row in own_session.read.parquet(str(tmp_path / "prepared")).collect()]
    assert sorted(written) == list(range(24, 40))
