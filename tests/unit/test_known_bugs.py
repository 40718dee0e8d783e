"""Bugs by which other control planes lost data, snapshots or their way: each by its number, on the least that shows it.

These belong to parts that do not exist yet, or have no counterpart:

| bug                      | what went wrong                                           | why there is no test |
| ------------------------ | --------------------------------------------------------- | ------------------------ |
| FLINK-35265              | the path of a completed snapshot could not be looked up   | it is part of the outcome |
| FLINK-37354, FLINK-35126 | health checks restarted healthy jobs                      | there are no such checks yet |
| FLINK-36162, FLINK-36109 | snapshots of other namespaces, labels                     | Kubernetes |
| Dagster 21476, 23406     | a terminated run hung, or was called a failed one         | Dagster |
| Dagster 33967            | the result of a check was lost with the next of its asset | Dagster |
"""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Final

import pytest

import coord_control as cc
from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.files.filesystem import LocalFiles, join
from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.holder import Aliveness, Holder
from coord_control.durable.job_folder.lineage import current_lineage, open_lineage, spark_position
from coord_control.durable.restore.checks import Verdict
from coord_control.durable.restore.preflight_sinks import SinkOptions, check_sinks
from coord_control.durable.restore.prepared_restore import applied_restore
from coord_control.errors import CheckpointInUse, DamagedRecord, MissingRecord, StateFileMissing, StoreUnavailable
from coord_control.ids import CheckpointId, CheckpointKind, QueryName
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.scheduler.checkpoint_options import CheckpointOptions
from coord_control.protocol.scheduler.scheduler import CheckpointScheduler, FailJob, StartCheckpoint
from coord_control.protocol.scheduler.tickets import CheckpointRequest
from tests.simulation.memory_files import MemoryFiles
from tests.unit.durable import restore_kit
from tests.unit.durable.checkpoint_kit import (
    JOB,
    StoreDriver,
    check_all_verify,
    check_nothing_is_left,
    completed,
    driver_after_five_epochs,
    ids,
    shared_files,
)
from tests.unit.durable.layout_kit import Directory

QUERY: Final = QueryName("q")


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def driver(files: MemoryFiles) -> StoreDriver:
    return driver_after_five_epochs(files)


# --- cleaning up -----------------------------------------------------------------------------------------------------


def test_flink_38033_what_an_upgrade_goes_on_from_is_not_cleaned_up(files: MemoryFiles, driver: StoreDriver) -> None:
    """The periodic cleanup disposed of the savepoint that the upgrade was just about to restore."""
    driver.make(3, "savepoint", label="upgrade")
    for _ in range(3):
        driver.make(4)
    with Catalog(files, JOB).hold("upgrade"), Catalog(files, JOB).hold("2"):
        assert driver.retain(1) == [3]
        for checkpoint in (1, 2):
            with pytest.raises(CheckpointInUse):
                driver.store.dispose(CheckpointId(checkpoint))
        check_all_verify(files)
        assert ids(files) == [1, 2, 4]
    assert driver.retain(1) == [2]
    assert ids(files) == [1, 4]


def test_flink_39439_what_could_not_be_removed_is_not_forgotten(files: MemoryFiles, driver: StoreDriver) -> None:
    """The entry went from the history before its files were gone; when that failed, nobody knew of them any more."""

    class Hiccups:
        left = 1

        def before_write(self, path: str) -> None:
            if Hiccups.left and "/shared/" in path:
                Hiccups.left -= 1
                raise StoreUnavailable(path, "delete", "the storage hiccups")

        def after_write(self, path: str) -> None:
            pass

    driver.make(2)
    driver.make(4)
    failing = StoreDriver(files.seen_by(Hiccups()), 2)
    with pytest.raises(StoreUnavailable):
        failing.store.retain(1)
    failing.store.retain(1)
    check_nothing_is_left(failing, files)
    assert ids(files) == [2]


def test_flink_40384_what_is_being_made_is_not_cleaned_up(files: MemoryFiles, driver: StoreDriver) -> None:
    """The cleanup deleted snapshots that were still being made, which then failed, again and again."""
    driver.make(3)
    pending = driver.claim("checkpoint")
    snapshot = driver.pin(pending, 4)
    driver.make(4)
    assert driver.retain(1) == [1]
    with pytest.raises(CheckpointInUse, match="being made"):
        driver.store.dispose(pending)
    driver.complete(pending, "checkpoint", snapshot)
    check_all_verify(files)
    assert ids(files) == [2, 3]


# --- going on --------------------------------------------------------------------------------------------------------


def test_flink_39270_a_storage_that_does_not_answer_is_not_an_empty_one(tmp_path: Path) -> None:
    """While the job manager was slow to answer, the upgrade took it that there was no state, and began without."""
    files, folder = LocalFiles(), tmp_path / "job" / "queries" / "q"
    before = open_lineage(files, str(folder), QUERY, {})
    away = folder.rename(tmp_path / "away")
    folder.symlink_to(folder)  # whatever is looked for below it, the system refuses to say
    with pytest.raises(StoreUnavailable):
        open_lineage(files, str(folder), QUERY, {})
    folder.unlink()
    away.rename(folder)
    assert open_lineage(files, str(folder), QUERY, {}) == before


def test_flink_33522_a_savepoint_whose_stop_failed_is_used(files: MemoryFiles, driver: StoreDriver) -> None:
    """The savepoint of a stop was there, the stop failed: the savepoint was forgotten, and the next one taken."""
    key = "stop-for-upgrade"
    driver.make(4, "savepoint", key=key)
    # Its driver dies before it has told anybody, and does not stop the job either.
    scheduler = CheckpointScheduler(CheckpointOptions())
    for request, checkpoint, path in StoreDriver(files, 2).store.completed_requests():
        scheduler.remember(request, checkpoint, 0.0, path)
    scheduler.resume(0.0)
    asked = CheckpointRequest(kind=CheckpointKind.SAVEPOINT, key=key, cause="test")
    ticket = scheduler.submit(asked, 1.0)
    assert ticket.outcome is not None
    assert (ticket.checkpoint, ticket.outcome.path) == (1, completed(files)[0].path)
    assert not any(isinstance(effect, StartCheckpoint) for effect in scheduler.take())


def test_flink_35857_a_restart_goes_on_from_the_newest_point_and_not_from_where_it_was_once_restored(
    files: MemoryFiles,
) -> None:
    """A failed job was deployed again from its first savepoint, although it had newer checkpoints."""
    path = "/savepoints/first"
    source = restore_kit.put_checkpoint(files, path)
    restore_kit.prepared(files, source).commit()
    query = restore_kit.QUERIES[0]
    restored = restore_kit.opened(files, query)
    for name, data in restore_kit.spark_files(90, restored.checkpoint).items():
        files.replace(join(restored.checkpoint, name), data)
    # The next driver is told the same savepoint again.
    assert applied_restore(files, restore_kit.JOB, path, source)
    again = restore_kit.opened(files, query)
    assert (again.folder, again.restored) == (restored.folder, None)
    assert spark_position(files, again.checkpoint)[0] == 90


def test_flink_39043_a_checkpoint_that_cannot_be_addressed_blocks_nothing(
    files: MemoryFiles, driver: StoreDriver
) -> None:
    """The last checkpoint of a finished job could not be found any more, and no change of the job was accepted."""
    driver.make(3)
    driver.make(4)
    files.damage(join(JOB, "checkpoints/2/_metadata"), flip_bit=900)
    after = StoreDriver(files, 2)
    assert Catalog(files, JOB).resolve("latest").checkpoint == 1
    assert after.make(4) == 3
    after.dispose(CheckpointId(2))
    assert ids(files) == [1, 3]
    assert shared_files(files)


# --- again and again -------------------------------------------------------------------------------------------------


def test_flink_37372_failures_do_not_make_a_loop() -> None:
    """What failed was tried again at once, for ever."""
    scheduler = CheckpointScheduler(CheckpointOptions(interval_seconds=10.0))
    scheduler.resume(0.0)
    now, started = 0.0, 0
    while now < 1000.0:
        for effect in scheduler.take():
            if isinstance(effect, StartCheckpoint):
                started += 1
                scheduler.failed(effect.checkpoint, FailureReason.DISK_FULL, now)
        wakeup = scheduler.next_wakeup()
        assert wakeup is not None
        assert wakeup > now, "it would spin"
        now = wakeup
        scheduler.tick(now)
    assert 90 <= started <= 101


def test_flink_39967_no_number_means_something_else() -> None:
    """A limit of -1 was meant as none, and taken as reached."""
    with pytest.raises(ValueError, match="tolerable_consecutive_failures is -1"):
        CheckpointOptions(tolerable_consecutive_failures=-1)
    with pytest.raises(ValueError, match="max_restarts is -1"):
        cc.RestartPolicy(max_restarts=-1)
    scheduler = CheckpointScheduler(CheckpointOptions(tolerable_consecutive_failures=None))
    scheduler.resume(0.0)
    for number in range(1, 2001):
        scheduler.submit(CheckpointRequest(cause="test"), float(number))
        scheduler.failed(CheckpointId(number), FailureReason.DISK_FULL, float(number))
    assert not any(isinstance(effect, FailJob) for effect in scheduler.take())
    policy = cc.RestartPolicy(max_restarts=10**6)
    delays = [policy.delay(restarts) for restarts in (0, 1, 2, 10**4)]
    assert all(earlier < later for earlier, later in itertools.pairwise(delays))
    assert delays[-1] == policy.maximum_seconds


def test_google_392_a_savepoint_is_not_triggered_again_while_it_is_taken() -> None:
    """The operator asked again while the savepoint was being taken, and so again and again."""
    scheduler = CheckpointScheduler(CheckpointOptions())
    scheduler.resume(0.0)
    request = CheckpointRequest(kind=CheckpointKind.SAVEPOINT, key="nightly", cause="test")
    tickets = {scheduler.submit(request, float(now)).id for now in range(5)}
    assert len(tickets) == 1
    assert sum(isinstance(effect, StartCheckpoint) for effect in scheduler.take()) == 1


def test_spotify_1040_a_driver_that_is_alive_is_waited_for(tmp_path: Path) -> None:
    """A new job was submitted while the old one had not come to its end."""
    files, folder = LocalFiles(), str(tmp_path / "generations")
    first = generations.claim(files, folder, Holder.of([os.getpid()]))
    second = generations.claim(files, folder, Holder.of([os.getpid()]))
    assert generations.previous_may_live(second) is Aliveness.ALIVE
    first.release()
    assert generations.previous_may_live(second) is Aliveness.DEAD


# --- where and what --------------------------------------------------------------------------------------------------


def test_flink_39814_a_savepoint_lies_where_it_was_wanted(files: MemoryFiles, driver: StoreDriver) -> None:
    """The savepoint folder of a job was ignored, and another one used."""
    driver.make(4, "savepoint", target="/archive/mine")
    assert [entry.path for entry in completed(files)] == ["/archive/mine"]
    assert files.exists("/archive/mine/_metadata")
    assert not files.list(join(JOB, "savepoints"))


def test_spark_38716_a_checkpoint_with_a_hole_does_not_come_to_be() -> None:
    """A query was resumed although the change of one version was missing, and lost what was in it."""
    state = [f"state/0/{partition}/{version}.delta" for partition in range(2) for version in range(1, 5)]
    complete = Directory(*state).epochs(3)
    assert "state/0/1/2.delta" in complete.needed(3)
    with pytest.raises(StateFileMissing, match=r"state/0/1/2\.delta"):
        complete.without("state/0/1/2.delta").needed(3)


def test_spark_55058_a_query_whose_id_was_lost_does_not_get_another_one(tmp_path: Path) -> None:
    """Without the file with its id a query got a new one, and its sink took everything again."""
    files, folder, spark = LocalFiles(), tmp_path / "job" / "queries" / "q", tmp_path / "spark"
    for log in ("offsets", "commits"):
        files.replace(str(spark / log / "0"), b"v1\n{}")
    with pytest.raises(MissingRecord, match="id"):
        open_lineage(files, str(folder), QUERY, {}, str(spark))
    assert not (spark / "metadata").exists()
    assert current_lineage(files, str(folder), QUERY) is None
    (spark / "metadata").write_text('{"id":"known"}')
    assert open_lineage(files, str(folder), QUERY, {}, str(spark)).query_id == "known"
    # Not either when it is lost later; then it is known what was in it.
    (spark / "metadata").unlink()
    with pytest.raises(MissingRecord, match=re.escape('{"id":"known"}')):
        open_lineage(files, str(folder), QUERY, {}, str(spark))
    (spark / "metadata").write_text('{"id":"another"}')
    with pytest.raises(DamagedRecord, match="another"):
        open_lineage(files, str(folder), QUERY, {}, str(spark))


def test_delta_1813_a_restore_says_which_epochs_a_sink_will_skip(files: MemoryFiles) -> None:
    """After the stream was set back, the sink took the epochs that were run again for known ones, and said nothing."""
    restore_kit.run_before(files)
    source = restore_kit.put_checkpoint(files, "/savepoints/one")
    for is_fork in (False, True):
        options = SinkOptions(is_fork=is_fork)
        checks = check_sinks(files, restore_kit.JOB, source, lambda path: files, options)
        assert {check.verdict for check in checks} == {Verdict.WARNING}
        assert all("skip" in check.found.lower() for check in checks)
        assert all(check.way_out for check in checks)
    # What remembers ids of queries takes a fork for somebody else, and a restored query for itself.
    restore_kit.prepared(files, source).commit()
    query = restore_kit.QUERIES[0]
    assert restore_kit.opened(files, query).query_id == source.metadata.queries[query].query_id
