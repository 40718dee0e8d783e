"""What must be true of what is left of a killed driver, and of the whole when the job has come to its end."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from coord_control.durable.epochs.epoch_store import EpochStore
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder.lineage import Lineage, current_lineage, spark_position
from coord_control.durable.restore.seeds import seed_lineage
from coord_control.ids import NO_EPOCH, Generation, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.records import EventBatch
from coord_control.protocol.recovery import Facts, RecoveredOperator, recover
from tests.kill.books import PARTICIPANTS, RETAIN, Books, Ledger, Order, Page, Report
from tests.kill.life import Trial

__all__ = ["Balance", "audit", "balance", "check_counts", "check_output", "recovered", "recovered_in"]

_ORDERS: Final = TypeAdapter(list[Order])
_REPORTS: Final = TypeAdapter(list[Report])
_OPERATOR: Final = OperatorUid("accountant")


@dataclass(frozen=True, slots=True)
class Balance:
    """A consistent cut: what every side knows, after what was on its way has arrived."""

    committed: int
    books: Books
    ledgers: tuple[Ledger, ...]

    @property
    def orders(self) -> int:
        return sum(page.number for page in self.books.sent)

    @property
    def reports(self) -> int:
        return sum(page.number for page in self.books.received)


def audit(trial: Trial) -> Balance:
    """Recover from a copy of the records, as the next driver will, and hold invariants I1 and I2 against it.

    Python must be dead; the JVM may live.
    """
    return balance(*recovered(trial))


def recovered(trial: Trial) -> tuple[int, RecoveredOperator]:
    """Where the next driver's operator will start, and Spark's last commit."""
    lineage = current_lineage(LocalFiles(), str(trial.job / "queries" / "ledger"), QueryName("ledger"))
    if lineage is None:  # nothing was ever started
        return -1, recover(Facts((), NO_EPOCH, NO_EPOCH), _OPERATOR)
    return recovered_in(lineage, trial.folder / "audited", Generation(max(trial.generations()) + 1))


def recovered_in(lineage: Lineage, copy: Path, generation: Generation) -> tuple[int, RecoveredOperator]:
    """As :func:`recovered`, in any lineage; also in one that was restored, and in which nothing has run."""
    files = LocalFiles()
    committed, planned = spark_position(files, lineage.checkpoint)
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(lineage.folder, copy, ignore=shutil.ignore_patterns("spark"))
    lineage = replace(lineage, folder=str(copy))
    seed_lineage(files, lineage, generation, {_OPERATOR: (PARTICIPANTS, None)})
    store = EpochStore(files, lineage.epochs, generation, RETAIN)
    store.committed(committed)
    return committed, recover(Facts(tuple(store.open()), committed, planned), _OPERATOR)


def balance(committed: int, operator: RecoveredOperator) -> Balance:
    """What both sides know once everything has arrived that is on its way; they must agree."""
    books = Books() if operator.coordinator_state is None else Books.model_validate_json(operator.coordinator_state)
    for outbox in operator.undelivered:
        for report in _parsed(_REPORTS, outbox.events):
            books.received[outbox.subtask].enter(report)
    ledgers = []
    for index in range(PARTICIPANTS):
        data = operator.states.get(SubtaskIndex(index))
        ledger = Ledger() if data is None else Ledger.model_validate_json(data)
        waiting = operator.replay.inputs if operator.replay is not None else {}
        for inputs in (waiting, operator.mailboxes):
            for order in _parsed(_ORDERS, inputs.get(SubtaskIndex(index), ())):
                ledger.received.enter(order)
        _must_agree(f"orders to subtask {index}", books.sent[index], ledger.received)
        _must_agree(f"reports of subtask {index}", ledger.sent, books.received[index])
        ledgers.append(ledger)
    return Balance(committed, books, tuple(ledgers))


def check_output(rows: list[dict[str, Any]], keys: list[int], balance: Balance) -> None:
    """Every input row once; every event number once and in order, in what the rows say of their epochs."""
    assert sorted(row["n"] for row in rows) == list(range(len(keys)))
    subtask_of = {(keys[row["n"]], row["subtask"]) for row in rows}
    assert len(subtask_of) == len({key for key, _ in subtask_of}), "a key was in two subtasks"
    epochs: defaultdict[int, set[tuple[int, int, int, int]]] = defaultdict(set)
    for row in rows:
        entry = (row["epoch"], row["first_order"], row["last_order"], row["first_report"])
        epochs[row["subtask"]].add(entry)
    for subtask, entries in epochs.items():
        story = sorted(entries)
        assert len({epoch for epoch, *_ in story}) == len(story), f"subtask {subtask}: two attempts in one epoch"
        assert (story[0][1], story[0][3]) == (1, 1)
        for (epoch, _, last, report), (_, first, _, next_report) in itertools.pairwise(story):
            assert first == last + 1, f"subtask {subtask}: after epoch {epoch}, order {last} comes {first}"
            assert next_report == report + (epoch + subtask) % 3, f"subtask {subtask}: reports of epoch {epoch}"
        epoch, _, last, report = story[-1]
        assert last <= balance.ledgers[subtask].received.number
        assert balance.ledgers[subtask].sent.number == report - 1 + (epoch + subtask) % 3
        assert balance.ledgers[subtask].rows == sum(row["subtask"] == subtask for row in rows)


def check_counts(trial: Trial, keys: Iterable[int]) -> None:
    """The query without an operator counted every row once."""
    newest = max((trial.story / "counts").glob("*.json"), key=lambda path: int(path.stem))
    found: Mapping[str, int] = json.loads(newest.read_text())
    assert {int(key): count for key, count in found.items()} == Counter(keys)


def _parsed(events: TypeAdapter[Any], batches: Iterable[EventBatch]) -> list[Any]:
    return [event for batch in batches for event in events.validate_json(b"[" + batch.payload + b"]")]


def _must_agree(what: str, sent: Page, received: Page) -> None:
    assert sent == received, f"{what}: sent {sent!r}, received and on the way {received!r}"
