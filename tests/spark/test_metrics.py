"""A real running job as Prometheus sees it."""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import coord_control as cc
from coord_control.metrics.metric import Source
from coord_control.metrics.names import METRICS
from tests.metrics_kit import Scraped, read
from tests.patience import SECONDS, eventually
from tests.spark.jobs import (
    Dialogue,
    MakeJob,
    Memory,
    Number,
    Once,
    Trouble,
    apply,
    followed,
    query_status,
    rows,
    talk,
    write,
)
from tests.spark.streams import FileStream

#: What this job never does: it has no watermark, no state of Spark's and no source that
#: reports a backlog, fails no checkpoint, is restored from none, has no live value.
NEVER = {
    "live_value",
    "live_value_change_timestamp_seconds",
    "live_value_query_version",
    "live_value_version",
    "query_backlog",
    "query_watermark_lag_seconds",
    "query_watermark_timestamp_seconds",
    "query_state_rows",
    "last_failed_checkpoint_id",
    "last_failed_checkpoint_timestamp_seconds",
    "last_restored_checkpoint_id",
    "last_restored_checkpoint_timestamp_seconds",
}


def scrape(job: cc.Job, query: str = "") -> Scraped:
    with urllib.request.urlopen(f"http://{job.metrics_address}/metrics{query}", timeout=SECONDS) as answer:
        return read(answer.read().decode())


def held(epoch: int, release: str, trouble: list[Once]) -> Callable[[cc.Subtask[Memory]], None]:
    """Fails epoch 1 as often as there is trouble, and keeps another epoch open until a file is there."""

    def before(subtask: cc.Subtask[Memory]) -> None:
        if subtask.epoch == 1 and subtask.index == 0 and any(each() for each in trouble):
            raise Trouble("on purpose")
        while subtask.epoch == epoch and not os.path.exists(release):
            time.sleep(0.02)

    return before


def test_a_running_job_says_what_is_blocked_by_what_and_what_has_happened(
    make_job: MakeJob, source: FileStream, tmp_path: Path
) -> None:
    job = make_job(metrics="127.0.0.1:0", control=f"sqlite:///{tmp_path / 'control.db'}")
    coordinator, release = Dialogue(), tmp_path / "release"
    operator = talk(job, coordinator)
    trouble = [Once(tmp_path / f"trouble-{attempt}") for attempt in range(3)]  # as many as Spark makes
    frame = apply(operator, source.read(), followed(held(3, str(release), trouble)))
    job.start("q", write(frame).trigger(processingTime="50 milliseconds"))
    eventually(lambda: query_status(job).committed == 2)
    first = job.trigger_checkpoint().wait(SECONDS)

    source.add(rows(3))
    eventually(lambda: scrape(job).all("operator_epoch"))
    eventually(lambda: scrape(job).get("closed_gateways") == 2)
    coordinator.context.send(0, Number(number=99))
    eventually(lambda: scrape(job).get("blocked_events", cause="epoch") == 1)
    snapshots = scrape(job).get("coordinator_snapshot_duration_seconds_count")
    handle = job.trigger_savepoint()
    eventually(lambda: scrape(job).get("coordinator_snapshot_duration_seconds_count") == snapshots + 1)
    coordinator.context.send(1, Number(number=99))
    eventually(lambda: scrape(job).get("blocked_events", cause="checkpoint") == 1)

    busy = scrape(job, "?subtasks=10")
    where = {"job_name": "job", "query": "q", "operator": "op"}
    assert busy.get("blocked_checkpoint_id", **where) == handle.id
    assert busy.get("blocked_age_seconds", **where) > 0
    assert [busy.get("subtask_blocked_events", subtask=str(subtask), **where) for subtask in range(2)] == [1, 1]
    assert busy.get("checkpoints_in_progress", kind="savepoint") == 1
    assert busy.get("checkpoint_in_progress_subtasks", kind="savepoint") == 2
    release.touch()
    second = handle.wait(SECONDS)
    eventually(lambda: scrape(job).get("checkpoints_completed_total", kind="savepoint") == 1)
    eventually(lambda: query_status(job).committed == 3)

    found = scrape(job, "?subtasks=10")
    driver = {name for name, metric in METRICS.items() if metric.source is Source.DRIVER}
    only_now = {"blocked_checkpoint_id", "operator_epoch", "checkpoint_in_progress_start_timestamp_seconds"}
    assert driver - found.names - only_now == NEVER
    assert found.get("job_up") == found.get("generation") == 1
    assert found.get("query_epoch", query="q") == 3
    assert found.get("query_restarts_total") == 1
    assert found.get("recoveries_total", cause="query_failed", query="q") == 1
    assert found.get("events_blocked_total", **where) >= 2
    assert found.get("blocked_seconds_total", **where) > 0
    assert sum(sample.value for sample in found.all("blocked_events")) == 0
    assert found.get("last_checkpoint_id", kind="checkpoint") == first.id
    assert found.get("last_checkpoint_id", kind="savepoint") == second.id
    assert found.get("last_checkpoint_state_bytes", kind="savepoint") > 0
    assert found.get("epoch_duration_seconds_count", **where) >= 3
    assert found.get("coordinator_snapshot_duration_seconds_count", **where) >= 5
    assert found.get("endpoint_connections_accepted_total") >= 1
    assert found.get("agent_connected") == 1
    assert found.get("group_commit_duration_seconds_count") == found.get("group_commits_total") > 0

    address = job.metrics_address
    assert address is not None
    with cc.ControlClient(f"sqlite:///{tmp_path / 'control.db'}") as client:
        eventually(lambda: (live := client.job("job").live) is not None and live.metrics == address)
    job.stop()
    assert job.metrics_address is None
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://{address}/metrics", timeout=SECONDS)


def test_two_jobs_on_one_machine_both_serve_and_none_serves_nothing(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORD_METRICS", "")
    one, two = make_job("one", control="none"), make_job("two", control="none")
    for job in (one, two):
        assert job.metrics_address is not None
        assert job.metrics_address.startswith("127.0.0.1:")
        found = scrape(job)
        assert found.get("job_up", job_name=job.name) == 1
        assert not {name for name in found.names if name.startswith("agent_")}
    assert one.metrics_address != two.metrics_address
    assert make_job("three", metrics="none", control="none").metrics_address is None
