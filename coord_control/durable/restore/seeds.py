"""Keep the operators' part of a restored checkpoint, and put it into the epoch store.

A restore keeps the operators' part of the checkpoint's metadata next to the lineage. When the query starts, and nothing
has run in that lineage yet, it becomes the first records of the epoch store: as if the boundary of the checkpoint were
an epoch of this lineage. So recovery needs to know nothing of restores.

Not before the start, because only then it is known what the operators are now: some may be gone or new, and the states
of those with another number of subtasks are redistributed by a function of the user's. As long as Spark has planned
nothing, the records are written again at each start; those of an earlier start are thrown away. So a crash, or a change
of the program, between two starts does no harm. When Spark has planned the first epoch already, because the cut holds
it, they are written again until the query is started for the first time
(:func:`coord_control.durable.job_folder.lineage.seeded`): its attempts may be answered from then on.

Threads: one at a time, before the query starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from coord_control.durable.checkpoints.metadata_file import (
    CheckpointMetadata,
    OperatorSnapshot,
    decode_metadata,
    encode_metadata,
)
from coord_control.durable.epochs.generation_log import GenerationLog
from coord_control.durable.epochs.records_codec import Header
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.lineage import Lineage
from coord_control.errors import MissingRecord, ParallelismFixed
from coord_control.ids import NO_CHECKPOINT, Epoch, Generation, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.cut import OperatorCut, seed
from coord_control.protocol.job import first_barrier
from coord_control.protocol.records import LiveFrozen, Record
from coord_control.protocol.recovery import Inputs, Outbox

__all__ = ["Redistribution", "Rescale", "read_seed", "seed_lineage", "write_seed"]

_NAME: Final = "restored_metadata"


@dataclass(frozen=True, slots=True)
class Redistribution:
    """States and waiting events of an operator's subtasks, one entry for each of them."""

    states: Mapping[SubtaskIndex, bytes | None]  #: None, or no entry: the default state
    events: Inputs


#: Gives the new subtasks what the old ones had: (of the old ones, how many there were) -> of the new ones.
Rescale: TypeAlias = Callable[[Redistribution, int], Redistribution]


def write_seed(files: Files, lineage: str, metadata: CheckpointMetadata, query: QueryName) -> None:
    """Keep the operators' part of a checkpoint next to a new lineage; of the files only the log of a file sink."""
    snapshot = metadata.queries[query]
    part = metadata.model_copy(
        update={
            "queries": {query: snapshot.model_copy(update={"files": snapshot.sink_files})},
            "operators": {uid: one for uid, one in metadata.operators.items() if one.query == query},
            "statistics": {},
        }
    )
    files.create(join(lineage, _NAME), encode_metadata(part))


def read_seed(files: Files, lineage: str) -> CheckpointMetadata:
    """Read what :func:`write_seed` has written.

    Raises:
        MissingRecord, DamagedRecord, UnsupportedFormat: it cannot be used.
    """
    path = join(lineage, _NAME)
    try:
        data = files.read(path)
    except FileNotFoundError:
        raise MissingRecord(path, "the restore of this lineage has written it") from None
    return decode_metadata(path, data)


def seed_lineage(
    files: Files,
    lineage: Lineage,
    generation: Generation,
    operators: Mapping[OperatorUid, tuple[int, Rescale | None]],
) -> None:
    """Put the operators' states of a restored lineage into its epoch store; does nothing once anything has run in it.

    Args:
        lineage: as it was opened.
        generation: ours; what is written belongs to it.
        operators: the declared ones, with their parallelism and how their states are redistributed if it is another
            one.

    Raises:
        MissingRecord, DamagedRecord, UnsupportedFormat: the restored states cannot be read.
        RescaleFailed: a user's function did not redistribute them.
        ParallelismFixed: they cannot be redistributed before a planned epoch has been run again.
    """
    if lineage.restored is not None:
        _write(files, lineage, generation, operators)


def _write(
    files: Files,
    lineage: Lineage,
    generation: Generation,
    operators: Mapping[OperatorUid, tuple[int, Rescale | None]],
) -> None:
    metadata = read_seed(files, lineage.folder)
    boundary = metadata.queries[lineage.query].epoch
    # Where no query ran, no barrier went through; a coordinator still needs one, or else it is not reset.
    barrier = metadata.barrier if metadata.barrier != NO_CHECKPOINT else first_barrier(metadata.generation)
    records: list[Record] = [
        record
        for uid, (parallelism, rescale) in sorted(operators.items())
        if (snapshot := metadata.operators.get(uid)) is not None
        for record in seed(_adapted(uid, snapshot, parallelism, rescale), boundary, barrier)
    ]
    if (live := metadata.queries[lineage.query].planned_live) is not None:
        records.append(LiveFrozen(Epoch(boundary + 1), live))
    if not (operators or records):
        return
    log = GenerationLog(files, lineage.epochs, generation)
    log.remove()
    # Nothing before the boundary can be recovered in this lineage: a Spark checkpoint that is set back is refused.
    log.write(Header(True, generation, 0, Epoch(boundary + 1)), records)


def _adapted(uid: OperatorUid, snapshot: OperatorSnapshot, parallelism: int, rescale: Rescale | None) -> OperatorCut:
    cut = snapshot.cut(uid)
    if snapshot.parallelism == parallelism:
        return cut
    if not snapshot.is_rescalable:
        raise ParallelismFixed(uid, snapshot.parallelism, parallelism)
    assert rescale is not None, "opening the lineage has refused it"
    given = rescale(Redistribution(cut.states, cut.down), snapshot.parallelism)
    up = tuple(_of_subtask(outbox, parallelism) for outbox in cut.up)
    return replace(cut, states={**dict.fromkeys(_all(parallelism)), **given.states}, down=given.events, up=up)


def _of_subtask(outbox: Outbox, parallelism: int) -> Outbox:
    # Events of a subtask that does not exist any more still have to arrive, from one that does.
    return Outbox(SubtaskIndex(outbox.subtask % parallelism), outbox.attempt, outbox.events)


def _all(parallelism: int) -> list[SubtaskIndex]:
    return [SubtaskIndex(index) for index in range(parallelism)]
