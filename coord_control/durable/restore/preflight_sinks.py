"""The check of the sinks before a restore: what they hold, and what they will do with the epochs that run again.

A sink that skips epochs that it has received would lose what they now produce. So a restore behind them is refused,
unless the sinks go back as well (``roll_back_sinks``), or that loss is accepted. A sink that writes such epochs twice,
and one whose kind is not known, is only reported. What counts is the sink to which the query wrote last: the one of the
checkpoint can be another, or not be known. A file sink is asked here; tables are asked by the driver
(``spark/job/sink_rollback.py``), and until then how far the query has run says what they may hold.

Threads: reads; any thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from coord_control.durable.checkpoints.checkpoint_folder import Storage
from coord_control.durable.checkpoints.checkpoint_source import CheckpointSource
from coord_control.durable.checkpoints.metadata_file import SINK_LOG, QuerySnapshot, SinkSnapshot
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.lineage_record import Reached
from coord_control.durable.job_folder.sink_record import SinkRecord, newest_sink
from coord_control.durable.restore.checks import ROLL_BACK_SINKS, SKIP_EPOCHS, Check, Verdict
from coord_control.durable.restore.file_sink import holds, newest_epoch
from coord_control.durable.restore.prepared_restore import queries_of
from coord_control.durable.restore.reached import reached_here, reached_with, set_back_to
from coord_control.durable.restore.sink_kinds import Repeated, SinkKind, kind_of
from coord_control.durable.spark_layout.file_sink_log import FILE_SINK
from coord_control.ids import NO_EPOCH, Epoch, QueryName

__all__ = ["SinkOptions", "check_sinks"]

_NOT_RECORDED: Final = SinkSnapshot(kind="unknown", unknown="an older release has taken the checkpoint")
_FORK: Final = "restore as a fork (--as NAME) with a separate output"
_BY_HAND: Final = (
    "set it back yourself to a version that fits all of them, and restore with --accept-skipped-epochs instead of "
    "--roll-back-sinks"
)
_ELSEWHERE: Final = "be sure that the job does not run elsewhere (--root), where it would keep writing to the sink"
_EMPTY: Final = "empty the sink, or let the query write elsewhere"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What is to happen to the sinks.

    Attributes:
        is_fork: the checkpoint is restored as another job.
        roll_back: set them back.
        accept_skipped: restore although they skip epochs, or lack some.
    """

    is_fork: bool = False
    roll_back: bool = False
    accept_skipped: bool = False


def check_sinks(
    files: Files, job_folder: str, source: CheckpointSource, storage: Storage, options: SinkOptions
) -> list[Check]:
    """Report what the sinks of each query will do.

    Args:
        files: the storage of the restored job.
        storage: returns the storage of a file sink.

    Raises:
        StoreUnavailable: the log of a file sink was listed, and cannot be read.
    """
    queries = source.metadata.queries
    if options.is_fork:
        return [_fork_check(query, snapshot, options, source.folder_of(query)) for query, snapshot in queries.items()]
    found = [
        _SinkCheck(
            files,
            job_folder,
            query,
            snapshot,
            newest_sink(files, job_folder, query),
            storage,
            options,
            has_state=bool(snapshot.state_operators)
            or any(each.query == query for each in source.metadata.operators.values()),
        )
        for query, snapshot in queries.items()
    ]
    begun = (query for query in queries_of(files, job_folder) if query not in queries)
    return [
        *(each.rolled_back(found) if options.roll_back else each.left() for each in found),
        *(check for query in begun if (check := _begun_check(files, job_folder, query, options)) is not None),
    ]


@dataclass(frozen=True, slots=True)
class _SinkCheck:
    files: Files
    job_folder: str
    query: QueryName
    snapshot: QuerySnapshot
    current: SinkRecord | None  # to which the query wrote last
    storage: Storage
    options: SinkOptions
    has_state: bool  # of Spark, or of an operator

    @property
    def sink(self) -> SinkSnapshot:
        """The sink that gets the epochs; where it stood is known only if the checkpoint is of the same one."""
        then, now = self.snapshot.sink or _NOT_RECORDED, self.current
        if now is None or (now.kind, now.place) == (then.kind, then.place):
            return then
        why = ""
        if kind_of(now.kind).has_versions or kind_of(then.kind).has_versions:
            is_known = then.kind != _NOT_RECORDED.kind
            why = f"the query wrote to {_named(then)} when the checkpoint was taken" if is_known else then.unknown
        return SinkSnapshot(kind=now.kind, place=now.place, unknown=why)

    @property
    def kind(self) -> SinkKind:
        return kind_of(self.sink.kind)

    def rolled_back(self, checks: Sequence[_SinkCheck]) -> Check:
        """Check that the sink can be set back.

        Args:
            checks: those of all queries of the checkpoint.
        """
        if self.sink.position is not None:
            same = [str(each.query) for each in checks if _place(each.sink) == _place(self.sink)]
            if len(same) > 1:
                found = f"the queries {', '.join(same)} write to {_named(self.sink)}, which cannot go back for each"
                return self._check(Verdict.REFUSED, found, f"{_BY_HAND}; or {_FORK}")
            found = f"{_named(self.sink)} is set back to {_position(self.sink)} before a query starts"
            if self.sink.kind == FILE_SINK:
                found += "; files of later epochs stay, and Spark, which reads by the sink's log, does not see them"
            if self.current is None:
                found += ". What the query writes to now is not known here: it has not run in this job's folder"
                return self._check(Verdict.WARNING, found, _ELSEWHERE)
            return self._check(Verdict.OK, found)
        if self.kind.has_versions or self.sink.unknown:
            found = f"where {_named(self.sink)} stood is not known: {self.sink.unknown or 'it was not recorded'}"
            return self._check(Verdict.REFUSED, found, "restore another checkpoint, or without --roll-back-sinks")
        check = self.left()
        return dataclasses.replace(check, found=f"{_named(self.sink)} cannot be set back. {check.found}")

    def left(self) -> Check:
        here = reached_here(self.files, self.job_folder, self.query)
        behind = set_back_to(self.files, self.job_folder, self.query, self.snapshot.lineage)
        if behind is not None and behind < self.snapshot.epoch:
            found = f"{_named(self.sink)} was set back to epoch {behind} after the checkpoint, which is of epoch "
            found += f"{self.snapshot.epoch}: it lacks the epochs from {behind + 1} on"
            if behind == NO_EPOCH:
                found = f"{_named(self.sink)} was set back to another history after the checkpoint: it lacks its epochs"
            return self._loss(found)
        reached = reached_with(self.snapshot, here)
        if self.sink.kind == FILE_SINK and (newest := self._newest()) is not None:
            return self._file_check(newest)
        if reached.planned > self.snapshot.planned:
            return self._back_check(_seen(self.snapshot.planned, reached), reached.planned)
        # Where it was restored and has not run yet, its lineage says nothing of what the sink got elsewhere.
        if here is None or (self.current is None and self.sink.position is not None):
            return self._check(Verdict.WARNING, *_unknown_note(self.snapshot))
        return self._check(Verdict.OK, _same_note(self.snapshot))

    def _newest(self) -> Epoch | None:
        assert self.sink.place is not None, "a file sink has a folder"
        try:
            return newest_epoch(self.storage(self.sink.place), self.sink.place)
        except Exception:  # a storage that cannot be reached from here, or only with Spark
            return None

    def _file_check(self, newest: Epoch) -> Check:
        planned, sink = self.snapshot.planned, self.sink
        if newest > planned:
            return self._back_check(f"{_epochs(planned + 1, newest)} received after the checkpoint", newest)
        if sink.position is not None and newest < int(sink.position):
            found = f"{_named(sink)} ends at epoch {newest}, and held {sink.position} when the checkpoint was taken"
            return self._loss(found)
        if sink.position is not None and not self._holds_the_log():
            found = f"{_named(sink)} holds other epochs up to {newest} than when the checkpoint was taken: it was set "
            return self._loss(f"{found}back to another history since")
        return self._check(Verdict.OK, f"the log of {_named(sink)} has nothing after epoch {planned}")

    def _holds_the_log(self) -> bool:
        assert self.sink.place is not None, "a file sink has a folder"
        return holds(self.storage(self.sink.place), self.sink.place, self.snapshot.sink_files)

    def _back_check(self, seen: str, newest: Epoch) -> Check:
        found = f"{seen}. These epochs run again with the same numbers and query id. "
        match self.kind.repeated:
            case Repeated.SKIPPED if self.has_state and not self.kind.runs_skipped:
                found += f"{_named(self.sink)} skips them without running them, so the state of the query would lack "
                return self._loss(f"{found}their rows, and Spark would not find it", "if it writes elsewhere now, ")
            case Repeated.SKIPPED:
                found += f"{_named(self.sink)} skips them: what they now produce differently is lost, and rows are "
                return self._loss(f"{found}written again from epoch {newest + 1} on")
            case Repeated.TWICE:
                return self._check(Verdict.WARNING, f"{found}{_named(self.sink)} gets their rows twice")
            case Repeated.UNKNOWN:
                found += (
                    "A foreachBatch function or Delta sink that remembers (query id, batch id) SKIPS them; so does "
                    "Spark's file sink, which remembers batch ids in _spark_metadata. What they now produce "
                    f"differently is then lost; data is written again from epoch {newest + 1} on. Any other sink or "
                    "foreachBatch function gets these epochs twice"
                )
                same = "these epochs produce the same rows again"
                if self.has_state:
                    found += (
                        ". The query has state: a function that skips an epoch must run it first (frame.count() does), "
                        "or the state lacks its rows, and Spark ends the query (EpochNotRun)"
                    )
                    same += ", and a function that skips them runs them"
                way_out = f"fine if {same}; if not, set the sink back as well, or "
                return self._check(Verdict.WARNING, found, way_out + _FORK)

    def _loss(self, found: str, only: str = "") -> Check:
        verdict = Verdict.WARNING if self.options.accept_skipped else Verdict.REFUSED
        return self._check(verdict, found, f"{self._way_back()}; or {_FORK}; or {only}{SKIP_EPOCHS}")

    def _way_back(self) -> str:
        if self.sink.position is None:
            return f"where it stood is not known ({self.sink.unknown or 'it was not recorded'})"
        if self.kind.command is None or self.sink.place is None:
            return ROLL_BACK_SINKS
        return f"{ROLL_BACK_SINKS}, which runs {self.kind.command(self.sink.place, self.sink.position)}"

    def _check(self, verdict: Verdict, found: str, way_out: str = "") -> Check:
        return Check("sink", self.query, verdict, found, way_out)


def _begun_check(files: Files, job_folder: str, query: QueryName, options: SinkOptions) -> Check | None:
    """Check the sink of a query that is not in the checkpoint, and begins again with epoch 0 and a new id."""
    sink, reached = newest_sink(files, job_folder, query), reached_here(files, job_folder, query)
    kind = kind_of(_NOT_RECORDED.kind if sink is None else sink.kind)
    if reached is None or reached.planned < 0 or kind.repeated is Repeated.TWICE:
        return None
    what = kind.title if sink is None or sink.place is None else f"{kind.title} {sink.place}"
    found = f"the query begins again with epoch 0; {what} has received its epochs up to {reached.planned}, and "
    if not kind.has_versions:
        return Check("sink", query, Verdict.WARNING, f"{found}skips these epochs or gets their rows twice", _EMPTY)
    found += (
        "skips these epochs"
        if sink is not None and sink.kind == FILE_SINK
        else "gets their rows twice, under the new id"
    )
    verdict = Verdict.WARNING if options.accept_skipped else Verdict.REFUSED
    return Check("sink", query, verdict, found, f"{_FORK}; or {_EMPTY}, and {SKIP_EPOCHS}")


def _place(sink: SinkSnapshot) -> tuple[str, str | None]:
    return sink.kind, sink.place


def _named(sink: SinkSnapshot) -> str:
    return kind_of(sink.kind).title + (f" {sink.place}" if sink.place else "")


def _position(sink: SinkSnapshot) -> str:
    assert sink.position is not None, "it is known"
    if sink.kind == FILE_SINK:
        return f"epoch {sink.position}"
    command = kind_of(sink.kind).command
    shown = "" if command is None or sink.place is None else f": {command(sink.place, sink.position)}"
    return f"version {sink.position}{shown}"


def _seen(planned: Epoch, reached: Reached) -> str:
    seen = []
    if reached.committed > planned:
        seen.append(f"{_epochs(planned + 1, reached.committed)} committed after the checkpoint")
    if reached.planned > max(planned, reached.committed):
        seen.append(
            f"epoch {reached.planned} was planned after it and not committed: a sink may have received it, in whole "
            "or in part"
        )
    return "; ".join(seen)


def _epochs(first: int, last: int) -> str:
    return f"epoch {first} was" if first == last else f"epochs {first} to {last} were"


def _same_note(snapshot: QuerySnapshot) -> str:
    if snapshot.planned == snapshot.epoch:
        return f"nothing after epoch {snapshot.epoch} has been planned"
    return f"epoch {snapshot.planned} is run again with the same rows and events; nothing after it has been planned"


def _unknown_note(snapshot: QuerySnapshot) -> tuple[str, str]:
    found = (
        f"not known here: the query has no lineage in this job's folder. {_same_note(snapshot)} when the checkpoint "
        "was taken; the sinks may have received later epochs from elsewhere"
    )
    way_out = (
        "fine if the query has not run since; otherwise repeat the check where it has run (--root), or compare the "
        f"newest batch id in the sink with {snapshot.planned}"
    )
    return found, way_out


def _fork_check(query: QueryName, snapshot: QuerySnapshot, options: SinkOptions, folder: str) -> Check:
    if options.roll_back:
        found = "a fork writes to a separate place, and the sinks belong to the original"
        return Check("sink", query, Verdict.REFUSED, found, "leave --roll-back-sinks out")
    found = f"the query gets a new id and resumes after epoch {snapshot.epoch}. "
    kind = None if snapshot.sink is None else snapshot.sink.kind
    way_out = "write the fork's output to a separate place; the original may keep running"
    is_here = bool(snapshot.sink_files) and all(entry.tag is None for entry in snapshot.sink_files)
    log = join(folder, SINK_LOG) if is_here else "the original's _spark_metadata"
    copied = (
        "Spark's file sink fails within some epochs in an empty folder, because the log before the fork is missing: "
        f"copy the entries up to {snapshot.epoch} of {log} to _spark_metadata there first"
    )
    if kind == FILE_SINK:
        found += (
            "Spark's file sink remembers batch ids only (_spark_metadata) and skips those that the original has written"
        )
        way_out += f". {copied}"
    elif kind is not None and kind_of(kind).repeated is not Repeated.UNKNOWN:
        found += "Its sink takes every epoch"
    else:
        found += (
            "A foreachBatch function or Delta sink that remembers (query id, batch id) takes every epoch; Spark's file "
            "sink remembers batch ids only (_spark_metadata) and skips those that the original has written"
        )
        way_out += f". That is all for foreachBatch and Delta. Only {copied}"
    return Check("sink", query, Verdict.WARNING, found, way_out)
