"""A real job whose driver died between the savepoint of a stop and the stop, while the control database was away."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from coord_control.driver_process import SUPERVISED_VARIABLE
from coord_control.storage.records import CheckpointState, CommandKind
from tests.patience import SECONDS, eventually
from tests.spark.jobs import (
    MakeJob,
    rows,
)
from tests.spark.streams import FileStream
from tests.spark.test_checkpoints import check_nothing_was_processed_after
from tests.spark.test_control_plane import Client, Listening, _start, client, url

__all__ = ["client", "url"]  # fixtures


def test_a_stop_whose_driver_died_behind_its_savepoint_ends_the_job_with_another_one(
    make_job: MakeJob, source: FileStream, url: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: the supervisor's next driver processed epochs while the database was away. Then the job ended with a
    savepoint without them, or ran on."""
    monkeypatch.setenv(SUPERVISED_VARIABLE, "the supervisor")
    job = make_job(control=url)
    _start(job, source, Listening())
    eventually(lambda: job.status().queries[0].committed >= 0)
    has_died = threading.Event()
    monkeypatch.setattr(job._port, "stop", lambda *_, **__: has_died.set())
    command = client.submit(CommandKind.STOP_WITH_SAVEPOINT, label="last", target=None)
    assert has_died.wait(SECONDS)
    eventually(lambda: client.store.checkpoints.list("job", state=CheckpointState.COMPLETED))
    [listed] = client.store.checkpoints.list("job", state=CheckpointState.COMPLETED)
    stale = client.store.checkpoints.get("job", listed.id)
    boundary = stale.queries[0].boundary
    assert boundary is not None
    client.store.close()
    for path in tmp_path.glob("control.db*"):
        path.rename(path.with_name(f"away-{path.name}"))
    (tmp_path / "control.db").mkdir()
    following = make_job(control=url)
    _start(following, source, Listening())
    source.add(rows(50))
    eventually(lambda: following.status().queries[0].committed > boundary)
    (tmp_path / "control.db").rmdir()
    for path in tmp_path.glob("away-control.db*"):
        path.rename(path.with_name(path.name.removeprefix("away-")))
    done = client.outcome(command)
    assert done.result is not None, done.error
    assert following.await_termination(SECONDS)
    savepoint = done.result["savepoint"]
    assert savepoint["label"] == "last"
    assert savepoint["checkpoint"] > stale.id
    check_nothing_was_processed_after(savepoint["path"])
    assert not Path(str(stale.path)).exists()
