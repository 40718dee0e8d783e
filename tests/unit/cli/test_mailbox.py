"""``coordctl mailbox``: shown, dropped after a question, and noted in the audit trail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coord_control.durable.epochs.epoch_store import EpochStore
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.holder import Holder
from coord_control.durable.job_folder.lineage import open_lineage
from coord_control.ids import BarrierId, Epoch, Generation, SubtaskIndex
from coord_control.protocol.records import Begin, EventBatch
from coord_control.storage.store import ControlStore
from tests import control_kit as kit
from tests.cli_kit import run, run_json
from tests.unit.durable.restore_kit import OP, QUERIES, RECORD, run_spark

DELAYS = QUERIES[0]
EVENTS = EventBatch(0, 2, b'{"n":1},{"n":2}')


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A folder with a job ``flights`` that has stopped; two events wait for subtask 1."""
    files, job = LocalFiles(), f"{tmp_path}/jobs/flights"
    claim = generations.claim(files, f"{job}/generations", Holder.of([os.getpid()]))
    lineage = open_lineage(files, f"{job}/queries/{DELAYS}", DELAYS, {OP: RECORD})
    run_spark(files, lineage.checkpoint, 3)
    store = EpochStore(files, lineage.epochs, Generation(1), 100)
    store.append([Begin(OP, Epoch(3), BarrierId(9), b"S", {SubtaskIndex(1): (EVENTS,)})])
    claim.release()
    return f"{tmp_path}/jobs"


def test_what_waits_is_shown(tmp_path: Path, root: str) -> None:
    shown = run(tmp_path, "mailbox", "show", "flights", "--root", root, "--sample", "1")
    assert f"{OP}[1]" in shown
    assert '{"n": 1}' in shown
    assert '{"n": 2}' not in shown
    (mailbox,) = run_json(tmp_path, "mailbox", "show", "flights", "--root", root)
    assert (mailbox["operator"], mailbox["subtask"], mailbox["events"], mailbox["bytes"]) == (OP, 1, 2, 15)


def test_a_mailbox_is_dropped_after_a_question(tmp_path: Path, root: str) -> None:
    drop = ("mailbox", "drop", "flights", OP, "1", "--root", root)
    assert "discard all events that wait for subtask 1" in run(tmp_path, *drop, text="n\n", code=1)
    assert run_json(tmp_path, "mailbox", "show", "flights", "--root", root)
    assert "2 events discarded" in run(tmp_path, *drop, text="y\n")
    assert "no events are waiting for subtasks of job flights" in run(
        tmp_path, "mailbox", "show", "flights", "--root", root
    )
    assert run_json(tmp_path, *drop, "--yes")["events"] == 0


def test_a_drop_stands_in_the_audit_trail(tmp_path: Path, root: str, store: ControlStore) -> None:
    drop = ("mailbox", "drop", "flights", OP, "1", "--root", root, "--yes")
    kit.put_job(store, generation=2, root=root, folder=f"{root}/flights")
    run(tmp_path, *drop)
    run(tmp_path, *drop)  # nothing was there any more
    (entry,) = run_json(tmp_path, "audit", "flights")
    assert (entry["action"], entry["subject"], entry["details"]) == ("drop_mailbox", f"{OP}[1]", {"events": 2})
