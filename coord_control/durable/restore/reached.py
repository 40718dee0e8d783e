"""How far a query has run in all its lineages, and so what its sinks may have received, despite later restores.

A restore sets back Spark and the operators, and the sinks only if that was asked for. So the lineage that counts now
does not say what the sinks have seen: an earlier one may have run farther. Each restore therefore records how far the
query had run by then, and each checkpoint takes that along, also to a place where the other lineages are not known.
"""

from __future__ import annotations

from coord_control.durable.checkpoints.metadata_file import QuerySnapshot
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.lineage import are_sinks_set_back, current_lineage, is_sink_back, spark_position
from coord_control.durable.job_folder.lineage_record import Reached, lineage_names, query_folder, read_record
from coord_control.durable.restore.seeds import read_seed
from coord_control.ids import NO_EPOCH, Epoch, QueryName

__all__ = ["reached_here", "reached_with", "set_back_to", "stands_at"]


def stands_at(files: Files, job_folder: str, query: QueryName, snapshot: QuerySnapshot) -> bool:
    """Say whether a query stands where a checkpoint has it: it has planned no epoch since, and was not restored.

    Raises:
        DamagedRecord, MissingRecord, UnsupportedFormat: what is recorded of the query cannot be used.
        StoreUnavailable: the storage.
    """
    lineage = current_lineage(files, query_folder(job_folder, query), query)
    if lineage is None or lineage.name != snapshot.lineage:
        return False
    return spark_position(files, lineage.checkpoint) == (snapshot.epoch, snapshot.planned)


def reached_here(files: Files, job_folder: str, query: QueryName) -> Reached | None:
    """Look at all lineages of a query in a job. Return None if the query is not known there.

    Raises:
        DamagedRecord, UnsupportedFormat: the record of a lineage cannot be used.
    """
    folder, found = query_folder(job_folder, query), None
    for name in lineage_names(files, folder):
        record = read_record(files, folder, name)
        if record is None:
            continue
        if is_sink_back(files, join(folder, name)):  # begun is not enough: it may hold everything still
            found = None  # the sink forgot what it had received
        reached = _position(files, record.checkpoint_location).joined(found)
        found = reached if record.restored_from is None else reached.joined(record.restored_from.reached)
    return found


def set_back_to(files: Files, job_folder: str, query: QueryName, lineage: str) -> Epoch | None:
    """Return up to which epoch of a lineage the sink holds its history, if it was set back in a later one, else None.

    Epochs have the same numbers in every line of history, so how far a sink has come does not say which it holds. -1:
    it was set back to another line.

    Raises:
        DamagedRecord, MissingRecord, UnsupportedFormat: what a restore has recorded cannot be used.
    """
    folder = query_folder(job_folder, query)
    names, held = lineage_names(files, folder), None
    for name in names[names.index(lineage) + 1 :] if lineage in names else ():
        if are_sinks_set_back(files, join(folder, name)):
            held = name  # the last one counts
    while held is not None:
        record = read_record(files, folder, held)
        if record is None or record.restored_from is None:
            return NO_EPOCH
        restored = read_seed(files, join(folder, held)).queries[query]
        if restored.lineage == lineage:
            return restored.epoch
        if restored.lineage >= held:  # of another root, whose lineages have the same names
            return NO_EPOCH
        held = restored.lineage
    return None


def reached_with(snapshot: QuerySnapshot, found: Reached | None) -> Reached:
    """Join what a checkpoint says with what is known of the query here."""
    return Reached(committed=snapshot.epoch, planned=snapshot.planned).joined(snapshot.reached).joined(found)


def _position(files: Files, checkpoint: str) -> Reached:
    # Not spark_position(): an old lineage with a gap cannot be started, but its sinks have seen what it says.
    committed, planned = (_newest(files, join(checkpoint, log)) for log in ("commits", "offsets"))
    return Reached(committed=committed, planned=max(planned, committed))


def _newest(files: Files, log: str) -> Epoch:
    return max((Epoch(int(name)) for name in files.list(log) if name.isdigit()), default=NO_EPOCH)
