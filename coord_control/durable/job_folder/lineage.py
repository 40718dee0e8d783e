"""Where a query's durable facts lie: its lineage, and what Spark's own logs in it say.

A lineage is one Spark checkpoint directory with the files that we keep next to it. Its ``lineage.json`` is written
before the query starts for the first time, and says what must not change: the operators and their parallelism, the
query id, the place. The query id is ours: Spark's ``metadata`` file, which holds it, is made before Spark's first start
(spark-facts 10).

A restore builds another lineage and leaves the old one alone. Which one counts is what the newest committed restore
says (:mod:`.restore_log`). Until the first epoch after a restore is planned the declaration is compared with the
checkpoint and may still change: operators come and go if that was allowed, and get another parallelism if their
states can be redistributed. From then on nothing changes any more, as in every lineage. An epoch that was restored as
planned leaves one start for that: in it the operators' states are put in place for good (:func:`seeded`).

Threads: any; of one query, one at a time.
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.lineage_record import (
    FORMAT_VERSION,
    LineageOperator,
    LineageRecord,
    Reached,
    RestoredFrom,
    encode_record,
    lineage_names,
    next_name,
    read_record,
    record_path,
)
from coord_control.durable.job_folder.restore_log import newest_restore
from coord_control.errors import (
    AlreadyExists,
    DamagedRecord,
    EventTypesChanged,
    LineageMismatch,
    MissingRecord,
    NonRestoredState,
    NotACheckpoint,
    OperatorsChanged,
    ParallelismChanged,
    WakeChanged,
)
from coord_control.ids import NO_EPOCH, Epoch, OperatorUid, QueryName

__all__ = [
    "FORMAT_VERSION",
    "Lineage",
    "LineageOperator",
    "are_sinks_set_back",
    "begin_setting_sinks_back",
    "current_lineage",
    "has_location",
    "is_same_place",
    "is_sink_back",
    "last_commit",
    "open_lineage",
    "open_prepared",
    "read_query_id",
    "recorded_lineage",
    "seeded",
    "sink_is_back",
    "spark_position",
    "write_query_id",
]


_SINKS_BACK: Final = "sinks_set_back"
_SINK_IS_BACK: Final = "sink_is_back"


@dataclass(frozen=True, slots=True)
class Lineage:
    """One Spark checkpoint directory and the folder of its epoch store.

    Attributes:
        folder: holds all of it, but for an adopted Spark checkpoint directory.
        restored: where it was restored from, while nothing has run since; then None, like in any other lineage.
        earlier: how far the query had run in all its lineages when this one was restored, or None if it was not.
    """

    query: QueryName
    query_id: str
    checkpoint: str
    folder: str
    restored: RestoredFrom | None = None
    earlier: Reached | None = None

    @property
    def name(self) -> str:
        return self.folder.rpartition("/")[2]

    @property
    def epochs(self) -> str:
        return join(self.folder, "epochs")


def open_lineage(
    files: Files,
    folder: str,
    query: QueryName,
    operators: Mapping[OperatorUid, LineageOperator],
    checkpoint_location: str | None = None,
    *,
    rescalable: Collection[OperatorUid] = (),
) -> Lineage:
    """Continue the query's lineage, or begin its first one.

    Afterwards, when ``restored`` is set, the epoch store must be seeded (:mod:`coord_control.durable.restore.seeds`)
    before the query starts.

    Args:
        folder: the query's folder in the job's storage.
        checkpoint_location: an existing Spark checkpoint directory to adopt; None for a managed one, inside the
            lineage.
        rescalable: operators that can take another parallelism after a restore.

    Raises:
        NotACheckpoint: there is no Spark checkpoint to adopt; nothing was written.
        OperatorsChanged, ParallelismChanged, WakeChanged, EventTypesChanged, LineageMismatch, NonRestoredState: the
        declaration does not fit what has run, or what was restored. DamagedRecord, MissingRecord, UnsupportedFormat:
        what was recorded cannot be used.
    """
    name, recorded = _current(files, folder, query)
    lineage = join(folder, name)
    if recorded is None:
        record = _begin(files, lineage, query, operators, checkpoint_location)
        files.create(record_path(folder, name), encode_record(record))
        return _lineage(lineage, record)
    return _opened(files, folder, name, recorded, operators, checkpoint_location, rescalable)


def open_prepared(
    files: Files,
    folder: str,
    name: str,
    operators: Mapping[OperatorUid, LineageOperator],
    checkpoint_location: str | None = None,
    *,
    rescalable: Collection[OperatorUid] = (),
) -> Lineage:
    """As :func:`open_lineage`, with the lineage of a restore that has not been committed.

    Args:
        name: of the lineage.
    """
    recorded = read_record(files, folder, name)
    if recorded is None:
        raise MissingRecord(record_path(folder, name), "the restore in progress has made it")
    return _opened(files, folder, name, recorded, operators, checkpoint_location, rescalable)


def _opened(
    files: Files,
    folder: str,
    name: str,
    recorded: LineageRecord,
    operators: Mapping[OperatorUid, LineageOperator],
    checkpoint_location: str | None,
    rescalable: Collection[OperatorUid],
) -> Lineage:
    _check_location(recorded, checkpoint_location)
    _check_query_id(files, recorded)
    position = spark_position(files, recorded.checkpoint_location)
    restored = recorded.restored_from
    if restored is not None and restored.is_untouched_at(position):
        _check_restored(recorded.query, restored, operators, rescalable)
    else:
        restored = None
        # Before the first epoch nothing can be lost: a declaration that could not be started may be corrected.
        if position[1] != NO_EPOCH:
            _check(recorded, operators)
    record = recorded.model_copy(update={"operators": {str(uid): one for uid, one in operators.items()}})
    if record != recorded:  # corrected, event types added, or the state model renamed
        files.replace(record_path(folder, name), encode_record(record))
    return _lineage(join(folder, name), record, restored)


def seeded(files: Files, lineage: Lineage) -> None:
    """Remember that a restored lineage has its operators' states for good, when the next start could not see it.

    From the start on attempts of a planned epoch are answered, and Spark stands where it stood. Repeatable.
    """
    folder, _, name = lineage.folder.rpartition("/")
    record = read_record(files, folder, name)
    assert record is not None, "it was opened"
    restored = record.restored_from
    if restored is not None and restored.has_planned:
        changed = record.model_copy(update={"restored_from": restored.model_copy(update={"is_seeded": True})})
        files.replace(record_path(folder, name), encode_record(changed))


def begin_setting_sinks_back(files: Files, lineage: str) -> None:
    """Note that the sink of a query is set back with its restored lineage, before it is touched. Repeatable.

    Args:
        lineage: its folder.
    """
    with contextlib.suppress(AlreadyExists):
        files.create(join(lineage, _SINKS_BACK), b"")


def are_sinks_set_back(files: Files, lineage: str) -> bool:
    """Return whether the sink of a query was set back with a restored lineage, in whole or in part."""
    return files.exists(join(lineage, _SINKS_BACK))


def sink_is_back(files: Files, lineage: str) -> None:
    """Note that the sink of a query is back where its restored lineage begins. Repeatable."""
    with contextlib.suppress(AlreadyExists):
        files.create(join(lineage, _SINK_IS_BACK), b"")


def is_sink_back(files: Files, lineage: str) -> bool:
    """Return whether the sink of a query is back as a whole: it holds nothing that the lineage does not."""
    return files.exists(join(lineage, _SINK_IS_BACK))


def current_lineage(files: Files, folder: str, query: QueryName) -> Lineage | None:
    """Return the lineage that counts, as it was recorded, or None if the query has none yet.

    Raises:
        DamagedRecord, MissingRecord, UnsupportedFormat: what was recorded cannot be used.
    """
    found = recorded_lineage(files, folder, query)
    return None if found is None else found[0]


def recorded_lineage(files: Files, folder: str, query: QueryName) -> tuple[Lineage, LineageRecord] | None:
    """As :func:`current_lineage`, with its record."""
    name, record = _current(files, folder, query)
    if record is None:
        return None
    restored = record.restored_from
    if restored is not None and not restored.is_untouched_at(spark_position(files, record.checkpoint_location)):
        restored = None
    return _lineage(join(folder, name), record, restored), record


def spark_position(files: Files, checkpoint: str) -> tuple[Epoch, Epoch]:
    """Spark's last committed and last planned epoch, -1 when there is none.

    Raises:
        MissingRecord: Spark has planned more than one epoch that is not committed, so data would be skipped
        (spark-facts 8).
    """
    # In this order, because the query may be running: an epoch that is committed meanwhile makes no gap.
    planned = _newest(files.list(join(checkpoint, "offsets")))
    committed = last_commit(files, checkpoint)
    if planned > committed + 1:
        raise MissingRecord(
            join(checkpoint, "commits", str(planned - 1)),
            f"Spark has planned epoch {planned} but committed only {committed}",
        )
    return committed, max(planned, committed)


def last_commit(files: Files, checkpoint: str) -> Epoch:
    """Spark's last committed epoch, -1 when there is none."""
    return _newest(files.list(join(checkpoint, "commits")))


def read_query_id(files: Files, checkpoint: str) -> str:
    """Read Spark's file with the query id.

    Raises:
        FileNotFoundError: there is none: nothing was ever started there.
        DamagedRecord: it holds something else.
    """
    path = join(checkpoint, "metadata")
    data = files.read(path)
    try:
        return str(json.loads(data)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedRecord(path, f"it does not hold a query id ({error!r})") from error


def write_query_id(files: Files, checkpoint: str, query_id: str) -> None:
    """Make Spark's file with the query id; there must be none.

    Raises:
        AlreadyExists: there is one.
    """
    files.create(join(checkpoint, "metadata"), json.dumps({"id": query_id}).encode())


def _current(files: Files, folder: str, query: QueryName) -> tuple[str, LineageRecord | None]:
    """Return the name of the lineage that counts, and its record; without a record it is to be begun."""
    job_folder = folder.rstrip("/").rsplit("/", 2)[0]
    restore = newest_restore(files, job_folder)
    names = lineage_names(files, folder)
    if restore is not None and (name := restore.lineage_of(query)) is not None:
        record = read_record(files, folder, name) if name in names else None
        if record is None and query in restore.queries:
            raise MissingRecord(record_path(folder, name), f"the restore {restore.number} has made it")
        return name, record
    taken: list[str] = []
    for name in reversed(names):
        if (record := read_record(files, folder, name)) is not None:
            if record.restored_from is None:
                return name, record
            taken.append(name)  # of a restore that never took place
    return next_name(taken), None


def _newest(names: Sequence[str]) -> Epoch:
    return max((Epoch(int(name)) for name in names if name.isdigit()), default=NO_EPOCH)


def _begin(
    files: Files,
    lineage: str,
    query: QueryName,
    operators: Mapping[OperatorUid, LineageOperator],
    checkpoint_location: str | None,
) -> LineageRecord:
    # Spark's metadata file comes first: with a lineage record its id must exist, the other way round it is just read.
    checkpoint = checkpoint_location or join(lineage, "spark")
    if checkpoint_location is not None:
        _check_adoptable(files, query, checkpoint)
        if spark_position(files, checkpoint)[1] != NO_EPOCH:
            _check_wake(query, {}, operators)
    return LineageRecord(
        query=query,
        query_id=_query_id(files, checkpoint),
        checkpoint_location=checkpoint,
        operators={str(uid): operator for uid, operator in operators.items()},
    )


def _lineage(folder: str, record: LineageRecord, restored: RestoredFrom | None = None) -> Lineage:
    earlier = None if record.restored_from is None else record.restored_from.reached
    return Lineage(QueryName(record.query), record.query_id, record.checkpoint_location, folder, restored, earlier)


def _query_id(files: Files, checkpoint: str) -> str:
    try:
        return read_query_id(files, checkpoint)
    except FileNotFoundError:
        _check_never_ran(files, checkpoint)
        query_id = str(uuid.uuid4())
    try:
        write_query_id(files, checkpoint, query_id)
    except AlreadyExists:
        return read_query_id(files, checkpoint)
    return query_id


def _check_adoptable(files: Files, query: QueryName, checkpoint: str) -> None:
    """Refuse a folder that is no Spark checkpoint: with a mistyped path the query would begin at epoch 0."""
    if files.exists(join(checkpoint, "metadata")):
        return
    _check_never_ran(files, checkpoint)
    if not (names := files.list(checkpoint)):
        raise NotACheckpoint(query, checkpoint, "it does not exist, or is empty")
    raise NotACheckpoint(query, checkpoint, f"it holds {names[:3]}, and no file 'metadata' with a query id")


def _check_never_ran(files: Files, checkpoint: str) -> None:
    """Refuse a new id for a query that has run: its sink would accept the same batches twice (SPARK-55058)."""
    if files.list(join(checkpoint, "offsets")) or files.list(join(checkpoint, "commits")):
        raise MissingRecord(
            join(checkpoint, "metadata"),
            "it held the id of the query that has run there",
            'Nothing was started; put the file back: {"id":"..."} with the query id, which stands in every progress '
            "report and in the driver's log",
        )


def _check_query_id(files: Files, record: LineageRecord) -> None:
    """Not every version of Spark refuses to start without the file; some give the query another id."""
    path = join(record.checkpoint_location, "metadata")
    remedy = f'Nothing was started; it has to hold {{"id":"{record.query_id}"}}'
    try:
        found = read_query_id(files, record.checkpoint_location)
    except FileNotFoundError:
        raise MissingRecord(path, f"query {record.query} has been started there", remedy) from None
    if found != record.query_id:
        raise DamagedRecord(path, f"it holds the id {found}, which is not that of query {record.query}", remedy)


def _check_location(record: LineageRecord, declared: str | None) -> None:
    if declared is not None and not has_location(record, declared):
        raise LineageMismatch(record.query, record.checkpoint_location, declared)


def has_location(record: LineageRecord, declared: str) -> bool:
    """Return whether a lineage has its Spark checkpoint there, or had before it was restored."""
    return any(is_same_place(declared, one) for one in (record.checkpoint_location, record.named_location))


def is_same_place(one: str, other: str) -> bool:
    """Return whether two paths mean one folder: ``/a/b``, ``file:/a/b`` and ``file:///a/b/`` do."""
    first, second = (re.sub(r"^file:/+", "/", path).rstrip("/") for path in (one, other))
    return first == second


def _check_restored(
    query: str,
    restored: RestoredFrom,
    operators: Mapping[OperatorUid, LineageOperator],
    rescalable: Collection[OperatorUid],
) -> None:
    if set(restored.operators) != set(operators) and not restored.allow_non_restored_state:
        raise NonRestoredState(query, restored.path, sorted(restored.operators), sorted(operators))
    for uid in set(restored.operators) & set(operators):
        recorded, declared = restored.operators[uid], operators[OperatorUid(uid)]
        if recorded.parallelism != declared.parallelism and uid not in rescalable:
            raise ParallelismChanged(uid, recorded.parallelism, declared.parallelism, is_restored=True)
        _check_events(uid, recorded, declared)
    if restored.epoch != NO_EPOCH or restored.has_planned:
        _check_wake(query, restored.operators, operators)


def _check(record: LineageRecord, operators: Mapping[OperatorUid, LineageOperator]) -> None:
    if set(record.operators) != set(operators):
        raise OperatorsChanged(record.query, sorted(record.operators), sorted(operators))
    for uid, declared in operators.items():
        recorded = record.operators[uid]
        if recorded.parallelism != declared.parallelism:
            raise ParallelismChanged(uid, recorded.parallelism, declared.parallelism)
        _check_events(uid, recorded, declared)
    _check_wake(record.query, record.operators, operators)


def _check_wake(
    query: str, recorded: Mapping[str, LineageOperator], declared: Mapping[OperatorUid, LineageOperator]
) -> None:
    """Compare which operators have a source, also where operators may come and go."""
    before, now = ({str(uid) for uid, one in each.items() if one.wake} for each in (recorded, declared))
    for uid in sorted(before ^ now):
        raise WakeChanged(uid, query, uid in now)


def _check_events(uid: str, recorded: LineageOperator, declared: LineageOperator) -> None:
    for direction, before, now in (("down", recorded.down, declared.down), ("up", recorded.up, declared.up)):
        # Recorded events name their type by position, so known types keep theirs.
        if now[: len(before)] != before:
            raise EventTypesChanged(uid, direction, list(before), list(now))
