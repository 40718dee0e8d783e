"""The third part of the check before a restore: a query as the program declares it, and as the checkpoint knows it.

Spark compares some of this too, but only when the query starts, and with errors that do not say what to do; and what it
does not compare at all is lost in silence.

Threads: pure functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from coord_control.durable.checkpoints.metadata_file import CheckpointMetadata, QuerySnapshot
from coord_control.durable.job_folder.lineage_record import LineageOperator
from coord_control.durable.restore.checks import ALLOW, Check, Verdict
from coord_control.durable.restore.lineage_builder import operator_records
from coord_control.errors import ParallelismFixed, WakeChanged
from coord_control.ids import OperatorUid, QueryName

__all__ = ["DeclaredQuery", "check_declared"]


@dataclass(frozen=True, slots=True)
class DeclaredQuery:
    """A query as the program declares it; None marks what is unknown.

    Attributes:
        rescalable: operators with a function that redistributes their states.
        settings: of the Spark session.
        sources: how many the query reads.
    """

    query: QueryName
    operators: Mapping[OperatorUid, LineageOperator]
    rescalable: Collection[OperatorUid] = ()
    settings: Mapping[str, str] | None = None
    sources: int | None = None


def check_declared(
    metadata: CheckpointMetadata, declared: DeclaredQuery, *, allow_non_restored_state: bool
) -> list[Check]:
    """Compare a query of the program with the checkpoint."""
    snapshot = metadata.queries.get(declared.query)
    if snapshot is None:
        verdict = Verdict.WARNING if allow_non_restored_state else Verdict.REFUSED
        found = f"it is not in the checkpoint (which has {sorted(metadata.queries)}) and would begin empty"
        way_out = "" if allow_non_restored_state else f"name it as in the checkpoint, or {ALLOW}"
        return [Check("query", declared.query, verdict, found, way_out)]
    return [
        Check("query", declared.query, Verdict.OK, f"at epoch {snapshot.epoch}"),
        *_check_operators(operator_records(metadata, declared.query), declared, allow_non_restored_state),
        *_check_planned(metadata, declared),
        *_check_wake(snapshot, operator_records(metadata, declared.query), declared),
        *_check_sources(snapshot, declared),
        *_check_state(snapshot, declared),
    ]


def _check_operators(
    recorded: Mapping[str, LineageOperator], declared: DeclaredQuery, allow_non_restored_state: bool
) -> Iterable[Check]:
    for uid in sorted(set(recorded) ^ set(declared.operators)):
        gone = uid in recorded
        found = "it is not declared, its state would be left behind" if gone else "it is new, it would begin empty"
        verdict = Verdict.WARNING if allow_non_restored_state else Verdict.REFUSED
        way_out = "" if allow_non_restored_state else f"keep the uids of operators, or {ALLOW}"
        yield Check("operator", uid, verdict, found, way_out)
    for uid, now in declared.operators.items():
        if (before := recorded.get(uid)) is not None:
            yield from _check_operator(uid, before, now, uid in declared.rescalable)


def _check_operator(
    uid: OperatorUid, before: LineageOperator, now: LineageOperator, is_rescalable: bool
) -> Iterable[Check]:
    if before.parallelism == now.parallelism:
        yield Check("parallelism", uid, Verdict.OK, str(now.parallelism))
    elif is_rescalable:
        found = f"{before.parallelism} before, {now.parallelism} now; its rescale function redistributes the states"
        yield Check("parallelism", uid, Verdict.OK, found)
    else:
        found = f"{before.parallelism} before, {now.parallelism} now"
        way_out = f"declare {before.parallelism}, or give job.operator() a rescale function"
        yield Check("parallelism", uid, Verdict.REFUSED, found, way_out)
    if before.state == now.state:
        yield Check("state model", uid, Verdict.OK, now.state)
    else:
        found = f"{before.state} before, {now.state} now"
        way_out = "fine if the model was renamed: what was saved must be valid for the new one"
        yield Check("state model", uid, Verdict.WARNING, found, way_out)
    for direction, known, types in (("down", before.down, now.down), ("up", before.up, now.up)):
        if types[: len(known)] == known:
            yield Check(f"events {direction}", uid, Verdict.OK, ", ".join(types) or "none")
        else:
            found = f"{list(known)} before, {list(types)} now"
            way_out = "keep the recorded types first, in their order, and add new ones after them"
            yield Check(f"events {direction}", uid, Verdict.REFUSED, found, way_out)


def _check_planned(metadata: CheckpointMetadata, declared: DeclaredQuery) -> Iterable[Check]:
    for uid, now in declared.operators.items():
        before = metadata.operators.get(uid)
        if before is not None and before.parallelism != now.parallelism and not before.is_rescalable:
            error = ParallelismFixed(uid, before.parallelism, now.parallelism)
            yield Check("planned epoch", uid, Verdict.REFUSED, error.problem, error.way_out)


def _check_wake(
    snapshot: QuerySnapshot, recorded: Mapping[str, LineageOperator], declared: DeclaredQuery
) -> Iterable[Check]:
    if snapshot.planned < 0:
        return
    before, now = ({str(uid) for uid, one in each.items() if one.wake} for each in (recorded, declared.operators))
    for uid in sorted(before ^ now):
        error = WakeChanged(uid, declared.query, uid in now)
        yield Check("wake", uid, Verdict.REFUSED, error.problem, error.way_out)


def _check_sources(snapshot: QuerySnapshot, declared: DeclaredQuery) -> Iterable[Check]:
    offsets = snapshot.offsets if snapshot.epoch >= 0 else snapshot.planned_offsets
    if declared.sources is None or offsets is None:
        return
    before, now = len(offsets), declared.sources
    if before == now:
        yield Check("sources", declared.query, Verdict.OK, str(now))
    else:
        # Spark counts them itself when it plans the query, which a driver lets it do before the restore takes place.
        found = f"{before} before {list(snapshot.sources)}, {now} now"
        way_out = "read the same sources in the same order: offsets belong to a source by its position"
        yield Check("sources", declared.query, Verdict.WARNING, found, way_out)


def _check_state(snapshot: QuerySnapshot, declared: DeclaredQuery) -> Iterable[Check]:
    if declared.settings is None or not snapshot.state_operators:
        return
    partitions = declared.settings.get("spark.sql.shuffle.partitions")
    if snapshot.shuffle_partitions is not None and partitions != str(snapshot.shuffle_partitions):
        found = f"{snapshot.shuffle_partitions} in the checkpoint, {partitions} in the session"
        way_out = (
            f"Spark stays with {snapshot.shuffle_partitions}: the state is kept in that many partitions; for another "
            "number use coordctl restore --shuffle-partitions N"
        )
        yield Check("shuffle partitions", declared.query, Verdict.WARNING, found, way_out)
    else:
        yield Check("shuffle partitions", declared.query, Verdict.OK, str(partitions))
    session = declared.settings.get("spark.sql.streaming.stateStore.providerClass", "")
    recorded = {operator.provider_class for operator in snapshot.state_operators} - {""}
    if session and recorded and recorded != {session}:
        found = f"{_short(recorded.pop())} in the checkpoint, {_short(session)} in the session"
        way_out = "Spark stays with the one of the checkpoint"
        yield Check("state provider", declared.query, Verdict.WARNING, found, way_out)
    elif recorded:
        yield Check("state provider", declared.query, Verdict.OK, _short(recorded.pop()))


def _short(provider: str) -> str:
    return provider.rpartition(".")[2]
