"""Change the number of shuffle partitions of a restored job, if that is possible.

Spark keeps a state in as many partitions as the query began with, whatever the session says later. It can rewrite the
state of a stopped query into another number of them. A restore has that done to its new lineages before they are used,
so an attempt that fails changes nothing.

Spark writes the result as one epoch more, with the offsets of the last one: it has no input, no sink gets it, and no
operator takes part in it. The next epoch's number is therefore higher by one than it would have been. What was linked
from the checkpoint stays as it is, because Spark writes new files only.

Only Spark can do this, so the caller of the restore passes the function that does it (:data:`Repartition`).

Threads: any, one restore of a job at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata, QuerySnapshot
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.lineage import spark_position
from coord_control.durable.job_folder.lineage_record import encode_record, query_folder, read_record, record_path
from coord_control.durable.restore.checks import Check, Verdict
from coord_control.durable.restore.reached import reached_here, reached_with
from coord_control.errors import RestoreRefused
from coord_control.ids import QueryName

__all__ = ["NAME", "Repartition", "StateToRepartition", "check_repartition", "repartition_lineages"]

#: Of the check.
NAME: Final = "shuffle partitions"
#: Always in one partition.
_LIMIT: Final = "globalLimit"
_WAY_OUT: Final = "restore without --shuffle-partitions; the number of partitions stays"


@dataclass(frozen=True, slots=True)
class StateToRepartition:
    """One query's state, in a Spark checkpoint directory that is not in use yet.

    Attributes:
        checkpoint: the directory.
        checkpoint_format: of Spark's state stores; Spark asks for it in the session that rewrites them.
    """

    query: QueryName
    checkpoint: str
    partitions: int
    checkpoint_format: int
    aggregations: tuple[int, ...] = ()  #: the ids of its operators that aggregate


#: Has Spark rewrite states, one after the other, and returns why it refused, by query; empty: all are done.
Repartition: TypeAlias = Callable[[Sequence[StateToRepartition]], Mapping[QueryName, str]]


def check_repartition(
    files: Files, job_folder: str, metadata: CheckpointMetadata, partitions: int, *, is_fork: bool
) -> list[Check]:
    """Say of each query whether its state can be rewritten, and what that means for its sink.

    What only Spark knows shows when it is done.
    """
    checks = []
    for query, snapshot in metadata.queries.items():
        check = _check_state(query, snapshot, partitions)
        checks.append(check)
        if check.verdict is Verdict.OK and not is_fork and _is_changed(snapshot, partitions):
            checks += _check_sink(files, job_folder, query, snapshot)
    return checks


def repartition_lineages(
    files: Files,
    job_folder: str,
    metadata: CheckpointMetadata,
    lineages: Mapping[str, str],
    partitions: int,
    repartition: Repartition,
    path: str,
) -> None:
    """Have the states of new lineages rewritten; they must not be in use yet.

    Args:
        lineages: their names, by query.
        path: of the checkpoint that they were built from.

    Raises:
        RestoreRefused: Spark cannot do it.
        MissingRecord, DamagedRecord: what was just built is not there any more.
    """
    todo = [
        StateToRepartition(
            query,
            join(query_folder(job_folder, query), lineages[query], "spark"),
            partitions,
            max(operator.checkpoint_format for operator in snapshot.state_operators),
            tuple(one.id for one in snapshot.state_operators if "statestoresave" in one.name.lower()),
        )
        for query, snapshot in metadata.queries.items()
        if _is_changed(snapshot, partitions)
    ]
    if problems := repartition(todo) if todo else {}:
        refused = [
            Check(NAME, query, Verdict.REFUSED, f"Spark says: {text}", _WAY_OUT) for query, text in problems.items()
        ]
        raise RestoreRefused(path, [str(check) for check in refused])
    for one in todo:
        _record_position(files, query_folder(job_folder, one.query), lineages[one.query])


def _record_position(files: Files, folder: str, name: str) -> None:
    # Where Spark stands now is where nothing has run since the restore.
    record = read_record(files, folder, name)
    assert record is not None, "it was just built"
    assert record.restored_from is not None, "by a restore"
    committed, _ = spark_position(files, record.checkpoint_location)
    restored = record.restored_from.model_copy(update={"epoch": committed, "planned": None})
    files.replace(record_path(folder, name), encode_record(record.model_copy(update={"restored_from": restored})))


def _is_changed(snapshot: QuerySnapshot, partitions: int) -> bool:
    return bool(snapshot.state_operators) and snapshot.epoch >= 0 and snapshot.shuffle_partitions != partitions


def _check_state(query: QueryName, snapshot: QuerySnapshot, partitions: int) -> Check:
    if snapshot.planned > snapshot.epoch and (snapshot.epoch < 0 or _is_changed(snapshot, partitions)):
        found = (
            f"epoch {snapshot.planned} is planned, for the number of partitions that the query has; Spark rewrites "
            "the state behind a committed epoch only"
        )
        way_out = "restore without --shuffle-partitions and let that epoch end; then save the job and restore that"
        return Check(NAME, query, Verdict.REFUSED, found, way_out)
    if not snapshot.state_operators:
        return Check(NAME, query, Verdict.OK, "it has no state: nothing is to be done")
    if not _is_changed(snapshot, partitions):
        return Check(NAME, query, Verdict.OK, f"{partitions} in the checkpoint already")
    for operator in snapshot.state_operators:
        kept = f"the state of {operator.name} (operator {operator.id}) is kept"
        if operator.provider != "rocksdb":
            found = f"{kept} by {operator.provider_class or operator.provider}; Spark rewrites that of RocksDB only"
            return Check(NAME, query, Verdict.REFUSED, found, _WAY_OUT)
        if snapshot.shuffle_partitions not in (None, operator.partitions) or operator.name == _LIMIT:
            found = f"{kept} in one partition, whatever the setting says: it would not be found in another"
            return Check(NAME, query, Verdict.REFUSED, found, _WAY_OUT)
    found = f"{snapshot.shuffle_partitions} in the checkpoint; Spark rewrites the state into {partitions}"
    return Check(NAME, query, Verdict.OK, f"{found}, as epoch {snapshot.epoch + 1}, which has no input")


def _check_sink(files: Files, job_folder: str, query: QueryName, snapshot: QuerySnapshot) -> list[Check]:
    reached = reached_with(snapshot, reached_here(files, job_folder, query)).planned
    if reached <= snapshot.epoch:
        return []
    found = (
        f"epoch {snapshot.epoch + 1} is that of the rewritten state, so every epoch that is run again has a number "
        "higher by one than it had: sinks that remember (query id, batch id) or batch ids take the rows of epoch "
        f"{reached} twice"
    )
    way_out = "set the sink back as well, or restore as a fork (--as NAME) with a separate output"
    return [Check("sink", query, Verdict.WARNING, found, way_out)]
