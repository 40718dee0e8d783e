"""One driver after another: restarts, clean stops, stops in a hurry, and two at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

import coord_control as cc
from coord_control import errors
from coord_control.durable.files.filesystem import join
from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.holder import Holder
from coord_control.ids import QueryName
from coord_control.protocol.query_state import Wish
from tests.patience import SECONDS, eventually
from tests.spark.jobs import (
    Dialogue,
    MakeJob,
    Once,
    Trouble,
    apply,
    drain,
    follow,
    followed,
    query_status,
    rows,
    talk,
    write,
)
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark


def test_the_next_job_goes_on_where_the_last_one_stood(make_job: MakeJob, source: FileStream) -> None:
    with make_job() as first:
        drain(first, write(apply(talk(first, Dialogue()), source.read())))
    for epoch in range(3, 5):
        source.add(rows(epoch))
    coordinator = Dialogue()
    with make_job() as second:
        assert second.generation == first.generation + 1
        drain(second, write(apply(talk(second, coordinator), source.read())))
        assert query_status(second).committed == 4
    coordinator.check(range(40))


def test_a_clean_stop_cuts_no_epoch_in_half(make_job: MakeJob, source: FileStream, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    calls.mkdir()
    folder = str(calls)

    def noted(subtask: cc.Subtask[Any], batches: Any) -> Any:
        # One file per call of the function: an epoch that was cut off and run again would leave more of them.
        number = 0
        while not Once(f"{folder}/{subtask.epoch}-{subtask.index}-{number}")():
            number += 1
        yield from follow(subtask, batches)

    for epoch in range(3, 60):
        source.add(rows(epoch))
    with make_job() as first:
        first.start("q", write(apply(talk(first, Dialogue()), source.read(), noted)))
        eventually(lambda: query_status(first).committed >= 1)
        first.stop(SECONDS)
    coordinator = Dialogue()
    with make_job() as second:
        second.start("q", write(apply(talk(second, coordinator), source.read(), noted)))
        eventually(lambda: query_status(second).committed >= 4)
        second.stop(SECONDS)
        committed = second._driver.queries[QueryName("q")].last_committed
    assert 4 <= committed < 59
    # The epoch that Spark had planned when the first job stopped had not begun: it is run with empty inputs.
    coordinator.check(range(8 * (committed + 1)), prompt=False)
    assert sorted(path.name for path in calls.iterdir()) == sorted(
        f"{epoch}-{subtask}-0" for epoch in range(committed + 1) for subtask in range(2)
    )


def test_a_stop_without_time_cuts_the_epoch_off_and_loses_nothing(
    make_job: MakeJob, source: FileStream, once: Once
) -> None:
    stuck, cut_off = threading.Event(), threading.Event()

    def hang(frame: DataFrame, epoch: int) -> None:
        frame.collect()
        if epoch == 1 and once():
            stuck.set()
            assert cut_off.wait(SECONDS)
            frame.collect()  # of a run that Spark was told to end

    first = make_job()
    first.start("q", apply(talk(first, Dialogue()), source.read()).writeStream.foreachBatch(hang))
    assert stuck.wait(SECONDS)
    stopping = threading.Thread(target=first.stop, args=(0.0,))
    stopping.start()
    eventually(lambda: first._driver.queries[QueryName("q")]._wish is Wish.STOP)
    cut_off.set()
    stopping.join(SECONDS)
    assert not stopping.is_alive()
    coordinator = Dialogue()
    with make_job() as second:
        drain(second, apply(talk(second, coordinator), source.read()).writeStream.foreachBatch(hang))
    coordinator.check(range(24), prompt=False)


def test_a_second_driver_fences_the_first_one_off(make_job: MakeJob, source: FileStream) -> None:
    endings: list[BaseException] = []
    first = make_job()
    query = first.start("q", write(apply(talk(first, Dialogue()), source.read())))
    eventually(lambda: query_status(first).committed == 2)

    def wait() -> None:
        try:
            first.await_termination()
        except BaseException as error:
            endings.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    coordinator = Dialogue()
    with make_job() as second:
        # Making it has waited until the first one has ended and said so.
        assert second._driver.claim.is_previous_released()
        assert not second._driver.claim.has_ended_cleanly(first.generation), "what it was asked for may be unfinished"
        waiting.join(SECONDS)
        assert not query.isActive
        source.add(rows(3))
        drain(second, write(apply(talk(second, coordinator), source.read())))
    coordinator.check(range(32))
    (ending,) = endings
    assert isinstance(ending, errors.Fenced)
    assert (ending.job, ending.generation) == ("job", 1)
    with pytest.raises(errors.Fenced, match="Only one driver of a job may run at a time"):
        first.status()


def test_a_driver_that_nobody_waits_for_ends_too_when_it_is_fenced(make_job: MakeJob, source: FileStream) -> None:
    first = make_job()
    query = first.start("q", write(apply(talk(first, Dialogue()), source.read())))
    eventually(lambda: query_status(first).committed == 2)
    with make_job() as second:
        assert second._driver.claim.is_previous_released()
        assert not query.isActive


def stop_cleanly(job: cc.Job, source: FileStream, sink: str, folder: Path) -> None:
    """Stop a query that goes from epoch to epoch without a pause."""
    for epoch in range(3, 60):
        source.add(rows(epoch))
    out = apply(talk(job, Dialogue()), source.read())
    job.start("q", out.writeStream.format(sink).option("path", str(folder)))
    eventually(lambda: query_status(job).committed >= 2)
    job.stop(SECONDS)


@pytest.mark.parametrize("sink", ["noop", "parquet"])
def test_a_clean_stop_alarms_nobody(
    make_job: MakeJob, source: FileStream, tmp_path: Path, spark_log: Callable[[], str], sink: str
) -> None:
    stop_cleanly(make_job(), source, sink, tmp_path / "out")
    assert "ERROR" not in spark_log()


def test_after_a_clean_stop_spark_reports_errors_as_before(
    make_job: MakeJob, source: FileStream, tmp_path: Path, spark_log: Callable[[], str]
) -> None:
    def fail(subtask: cc.Subtask[Any]) -> None:
        raise Trouble("in a task")

    stop_cleanly(make_job(), source, "noop", tmp_path)
    once = cc.RestartPolicy(max_restarts=0)
    with make_job("other", restart=once) as job, pytest.raises(errors.QueryFailed):
        drain(job, write(apply(talk(job, Dialogue()), source.read(), followed(fail))))
    assert "ERROR Executor Exception in task" in spark_log()
    assert "INFO" not in spark_log()


def test_a_storage_that_fails_does_not_end_the_watch_for_newer_drivers_and_is_said_once(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job()
    claim = job._driver.claim
    is_current, looks = claim.is_current, list[bool]()

    def fails() -> bool:
        looks.append(len(looks) >= 4)
        if not looks[-1]:
            error = OSError(5, "Input/output error")
            raise error if len(looks) % 2 else errors.StoreUnavailable("/generations", "look", error)
        return is_current()

    monkeypatch.setattr(claim, "is_current", fails)
    eventually(lambda: len(looks) > 5)
    said = [each.message for each in caplog.records if "generation" in each.message]
    assert len([each for each in said if each.startswith("x the generation cannot be checked")]) == 1
    generations.claim(job._driver.place.files, join(job._driver.place.folder, "generations"), Holder.of([1]))
    eventually(lambda: isinstance(job._life.error, errors.Fenced))
