"""Executors in processes of their own: TLS without being asked for, and `kill -9` of executors, which costs nothing.

The driver (`cluster_driver.py`) is a process of its own, because a JVM has one master. Its protocol is simple enough
to judge from outside: what it reports, and what the next driver would find on the storage.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil
import pyspark
import pytest

from coord_control.durable.epochs.epoch_store import EpochStore
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder.lineage import spark_position
from coord_control.ids import Generation, OperatorUid, SubtaskIndex
from coord_control.protocol.recovery import Facts, RecoveredOperator, recover
from coord_control.spark.worker.model_codec import EventTypes
from tests.patience import SECONDS, eventually
from tests.spark.cluster_driver import OPERATOR, PARALLELISM, Moment
from tests.spark.jobs import (
    Book,
    Dialogue,
    Memory,
    Number,
    Report,
    rows,
)

pytestmark = pytest.mark.spark

_CHECKOUT: Final = Path(__file__).resolve().parents[2]
#: For a busy machine; a quiet one takes a tenth.
_MARK: Final = "COORD_CLUSTER_TRIAL"  # in the environment of everything that the test starts
_LOG_CHARACTERS: Final = 6_000

Run = Callable[[Path], Mapping[str, Any]]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Runs the driver to its end and gives its result; afterwards nothing of it is left."""
    mark = uuid.uuid4().hex
    environment = {
        **os.environ,
        _MARK: mark,
        "PYTHONPATH": str(_CHECKOUT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(_home(tmp_path / "spark")),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }

    def run(folder: Path) -> Mapping[str, Any]:
        folder.mkdir()
        command = [sys.executable, str(Path(__file__).with_name("cluster_driver.py")), str(folder)]
        with (folder / "log").open("wb") as log:
            ended = subprocess.run(command, env=environment, cwd=folder, stdout=log, stderr=log, timeout=SECONDS)
        assert ended.returncode == 0, (folder / "log").read_text()[-_LOG_CHARACTERS:]
        eventually(lambda: not _processes(mark))  # a JVM lives on for moments when its Python or its driver has ended
        result: Mapping[str, Any] = json.loads((folder / "result.json").read_text())
        return result

    yield run
    for process in _processes(mark):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def test_executors_that_are_killed_lose_nothing_and_double_nothing(run: Run, tmp_path: Path) -> None:
    result = run(tmp_path / "trial")

    assert not result["master_is_local"]
    assert result["pinned"] is not None, "TLS is on without being asked for"
    assert result["served"] == result["pinned"]

    epochs: int = result["epochs"]
    assert epochs >= 8
    assert (result["restarts"], result["failure"]) == (0, None), "the loss of an executor is not the query's failure"
    book = Book.model_validate(result["book"])
    dialogue = Dialogue()
    dialogue.state = book
    values = [row["value"] for epoch in range(epochs) for row in rows(epoch)]
    dialogue.check(values)
    assert sorted(book.heard) == list(range(PARALLELISM))
    assert sorted(row["value"] for row in result["rows"]) == values
    _check_storage(result, book)
    _check_processes(result)

    totals = result["totals"]
    assert totals["epochs"] == epochs
    assert totals["events_up"] == PARALLELISM * epochs
    assert totals["attempts_failed"] >= 1, Moment.RUNNING
    assert totals["acks"] > PARALLELISM * epochs, Moment.ACKED
    assert totals["stale_refused"] == 1, Moment.ORPHANED
    assert totals["nondeterministic"] == 0


def _check_processes(result: Mapping[str, Any]) -> None:
    driver = set(result["driver"])
    workers = {place["python"] for place in result["places"]}
    executors = {place["executor"] for place in result["places"]}
    assert not (workers | executors) & driver
    for place in result["places"]:
        assert "CoarseGrainedExecutorBackend" in place["command"]
    killed = {victim["executor"] for victim in result["victims"].values()}
    assert len(killed) == len(Moment)
    assert killed < executors
    # Two at first, and one more for each that was lost.
    assert len(executors) >= 2 + len(killed)


def _check_storage(result: Mapping[str, Any], book: Book) -> None:
    """What the next driver goes on with is what this one has seen."""
    recovered = _recovered(result["checkpoint"], result["records"])
    assert recovered.replay is None, "everything that was planned is committed"
    assert recovered.coordinator_state is not None
    stored = Book.model_validate_json(recovered.coordinator_state)
    up, down = EventTypes(OPERATOR, "up", [Report]), EventTypes(OPERATOR, "down", [Number])
    for outbox in recovered.undelivered:
        stored.heard[outbox.subtask] += [event for event in up.decode(outbox.events) if isinstance(event, Report)]
    assert stored.heard == book.heard
    for index in range(PARALLELISM):
        state = recovered.states[SubtaskIndex(index)]
        assert state is not None
        memory = Memory.model_validate_json(state)
        assert memory.values == book.heard[index][-1].values
        assert memory.reports == len(book.heard[index])
        waiting = down.decode(recovered.mailboxes.get(SubtaskIndex(index), ()))
        numbers = memory.numbers + [event.number for event in waiting if isinstance(event, Number)]
        assert numbers == list(range(stored.sent[index]))


def _recovered(checkpoint: str, records: str) -> RecoveredOperator:
    files = LocalFiles()
    committed, planned = spark_position(files, checkpoint)
    store = EpochStore(files, records, Generation(2), 100)
    return recover(Facts(tuple(store.open()), committed, planned), OperatorUid(OPERATOR))


def _home(folder: Path) -> Path:
    """Spark's own home, in a folder where its workers may write; they would make theirs beside the jars."""
    folder.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def _processes(mark: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _is_ours(process, mark)]


def _is_ours(process: psutil.Process, mark: str) -> bool:
    try:
        return bool(process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
