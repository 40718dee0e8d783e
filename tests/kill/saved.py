"""What must be true of the checkpoints that killed drivers leave behind."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from coord_control.durable.checkpoints.checkpoint_folder import (
    VOID,
    CheckpointEntry,
    StoredState,
    list_entries,
    shared_names,
)
from coord_control.durable.checkpoints.checkpoint_source import open_checkpoint
from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata
from coord_control.durable.checkpoints.verification import verify_files
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder.lineage import current_lineage
from coord_control.durable.restore.prepared_restore import prepare_restore
from coord_control.ids import CheckpointId, Generation, QueryName
from tests.kill.audit import Balance, balance, recovered_in
from tests.kill.life import Trial

__all__ = ["Saved", "check_nothing_is_left", "check_saved"]


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that can be restored."""

    entry: CheckpointEntry
    metadata: CheckpointMetadata
    balance: Balance


def check_saved(trial: Trial, known: dict[CheckpointId, Saved]) -> None:
    """Every ``_metadata`` belongs to a complete checkpoint; all of them are intact; the new ones can be restored.

    Python must be dead. No complete savepoint that is ``known`` may have gone.

    Args:
        known: from the look before; gets those of this one.
    """
    entries = list(list_entries(LocalFiles(), str(trial.job)))
    completed = {entry.checkpoint: entry for entry in entries if entry.is_completed}
    others = {entry.state for entry in entries if not entry.is_completed}
    assert others <= {StoredState.UNFINISHED, StoredState.VOID}, entries
    paths = {Path(entry.path) for entry in completed.values()}
    found = {path.parent for path in trial.job.glob("*points/*/_metadata") if path.read_bytes() != VOID}
    assert found == paths
    for checkpoint, saved in list(known.items()):
        if saved.entry.kind == "savepoint":
            assert checkpoint in completed, f"savepoint {checkpoint} has gone"
        elif checkpoint not in completed:
            del known[checkpoint]
    for checkpoint, entry in completed.items():
        with open_checkpoint(LocalFiles(), entry.path) as source:
            assert not list(verify_files(LocalFiles(), entry.path, source.metadata))
            if checkpoint not in known:
                known[checkpoint] = Saved(entry, source.metadata, _restored(trial, entry))


def check_nothing_is_left(trial: Trial) -> None:
    """After an orderly end: nothing is half made, and no file lies among the shared ones that nobody names."""
    files = LocalFiles()
    entries = list(list_entries(files, str(trial.job)))
    assert {entry.state for entry in entries} <= {StoredState.COMPLETED, StoredState.VOID}
    # Of those that do not exist any more one claim may stay: the one that keeps the highest id.
    assert [entry.checkpoint for entry in entries if not entry.is_completed] in ([], [entries[-1].checkpoint])
    named: set[str] = set()
    for entry in entries:
        if entry.is_completed and entry.kind == "checkpoint":
            with open_checkpoint(files, entry.path) as source:
                named.update(shared_names(source.metadata))
    assert {info.path for info in files.walk(str(trial.job / "shared"))} == named
    folders = set((trial.job / "savepoints").glob("*"))
    assert folders == {Path(entry.path) for entry in entries if entry.kind == "savepoint" and entry.is_completed}


def _restored(trial: Trial, entry: CheckpointEntry) -> Balance:
    """Restore it as another job, and recover the operator there: both sides must agree."""
    files, folder = LocalFiles(), trial.folder / "forks" / "fork"
    shutil.rmtree(folder, ignore_errors=True)
    with open_checkpoint(files, entry.path) as source:
        generation = Generation(source.metadata.generation + 1)
        prepare_restore(
            files,
            str(folder),
            source,
            generation=generation,
            verify_claim=lambda: None,
            ref=entry.path,
            is_fork=True,
        ).commit()
    name = QueryName("ledger")
    lineage = current_lineage(files, str(folder / "queries" / name), name)
    assert lineage is not None
    committed, operator = recovered_in(lineage, trial.folder / "audited", generation)
    assert committed == source.metadata.queries[name].epoch
    return balance(committed, operator)
