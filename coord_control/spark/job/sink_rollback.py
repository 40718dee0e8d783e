"""Setting the sinks of a restored job back, before a query starts.

The restore takes place first, and its record says that the sinks are to follow. So it is what a driver finds that
starts after a crash, in whatever state the sinks are then: until a query has run, every driver sets all of them back,
and no query of the old lineages runs. Setting a sink back may be repeated.

Everything that can be refused is refused before: while the record does not exist, or can still be undone. A mark in
each lineage, written before its sink is touched, ends that. The claim is verified after the marks: who undoes the
restore claims first and looks for marks then, so either the marks are found, or this driver stops. It is verified
again before each sink, and before each change of a file sink's log: a newer driver may have set the sinks back
meanwhile, and its queries write to them. A second mark, written when a sink is back, says that it has forgotten the
epochs after the checkpoint.

When a driver that was replaced and hangs wakes up, the epoch that it has begun reaches its sink: no claim can end
that, because Spark's writers know of none. So while such a driver is seen on this machine, no sink goes
back. One on another machine cannot be seen; what it writes late to a file sink is found by
:class:`.rolled_back_sink.RolledBackSink`.

Threads: those of the job's methods, which take turns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pyspark.sql import SparkSession

from coord_control.durable.checkpoints.metadata_file import QuerySnapshot
from coord_control.durable.files.filesystem import join
from coord_control.durable.job_folder.lineage import begin_setting_sinks_back, sink_is_back
from coord_control.durable.job_folder.lineage_record import query_folder
from coord_control.durable.job_folder.sink_record import SinkRecord, write_sink
from coord_control.durable.restore.checks import Check, Verdict, refuse
from coord_control.durable.restore.file_sink import newest_epoch, set_back_file_sink
from coord_control.durable.spark_layout.file_sink_log import FILE_SINK, LOG_NAME
from coord_control.errors import DamagedRecord
from coord_control.ids import NO_EPOCH, QueryName
from coord_control.spark.job.job_place import JobPlace
from coord_control.spark.job.pending_restore import PendingRestore
from coord_control.spark.sinks.table_format import FORMATS

__all__ = ["SinkRollback"]

_log = logging.getLogger("coord_control.job")


@dataclass(frozen=True, slots=True)
class SinkRollback:
    """Sets the sinks of one job back.

    Attributes:
        verify: raises Fenced when a newer driver owns the job.
        verify_alone: raises OlderDriverAlive when an earlier driver has not ended.
    """

    place: JobPlace
    spark: SparkSession
    verify: Callable[[], None]
    verify_alone: Callable[[], None]

    def check(self, restore: PendingRestore) -> None:
        """Ask every table whether it can go back; nothing was changed yet.

        Raises:
            RestoreRefused: one cannot.
        """
        if not restore.record.roll_back_sinks:
            return
        checks = [found for each in self._sinks(restore) if (found := self._missing(each)) is not None]
        refuse(restore.path, checks, is_applied=restore.is_applied, can_undo=restore.is_applied and restore.can_undo)

    def carry_out(self, restore: PendingRestore) -> None:
        """Set all sinks back, unless this driver has done so; the restore has taken place. Repeatable.

        Raises:
            Fenced: a newer driver owns the job; it sets the sinks back.
            OlderDriverAlive: an earlier driver could still write to them; none was touched.
            DamagedRecord: an older driver has written to a file sink meanwhile.
            Exception: a sink did not go back. No query may start.
        """
        if not restore.record.roll_back_sinks or restore.is_rolled_back:
            return
        self.verify_alone()
        sinks = list(self._sinks(restore))
        for sink in sinks:
            begin_setting_sinks_back(self.place.files, sink.lineage)
        restore.has_touched_sinks = True
        for sink in sinks:
            self.verify()
            self._set_back(sink)
            write_sink(self.place.files, sink.lineage, SinkRecord(kind=sink.kind, place=sink.place))
            sink_is_back(self.place.files, sink.lineage)
            _log.info("= query %s: its sink %s is back at %s", sink.query, sink.place, sink.position)
        for sink in sinks:
            self._check_untouched(sink)
        restore.is_rolled_back = True

    def _sinks(self, restore: PendingRestore) -> Iterator[_Sink]:
        for query, snapshot in restore.metadata.queries.items():
            sink = snapshot.sink
            if sink is not None and sink.position is not None and sink.place is not None:
                lineage = join(query_folder(self.place.folder, query), restore.record.queries[query])
                yield _Sink(query, snapshot, lineage, sink.kind, sink.place, sink.position)

    def _missing(self, sink: _Sink) -> Check | None:
        if sink.kind == FILE_SINK:
            return None  # its log is in the checkpoint
        table, why = FORMATS.get(sink.kind), "this release cannot set such a table back"
        if table is not None:
            try:
                if table.exists(self.spark, sink.place, sink.position):
                    return None
                why = "the table has removed that version"
            except Exception as error:
                why = str(error)
        found = f"{sink.place} cannot go back to version {sink.position}: {why}"
        return Check("sink", sink.query, Verdict.REFUSED, found, "restore a newer checkpoint, or as a fork (--as NAME)")

    def _set_back(self, sink: _Sink) -> None:
        if sink.kind == FILE_SINK:
            storage, entries = self.place.storage(sink.place), sink.snapshot.sink_files
            set_back_file_sink(storage, sink.place, self.place.files, sink.lineage, entries, self.verify)
        else:
            FORMATS[sink.kind].roll_back(self.spark, sink.place, sink.position)

    def _check_untouched(self, sink: _Sink) -> None:
        # A query of a driver that was fenced may have ended its epoch late.
        if sink.kind != FILE_SINK:
            return
        found = newest_epoch(self.place.storage(sink.place), sink.place)
        newest = NO_EPOCH if found is None else found
        if newest != int(sink.position):
            why = (
                f"its newest entry is {newest}, and it was just set back to {sink.position}: another driver has written"
            )
            remedy = "Nothing was started; when that driver has ended, start the job again: it sets the sink back again"
            raise DamagedRecord(join(sink.place, LOG_NAME), why, remedy)


@dataclass(frozen=True, slots=True)
class _Sink:
    query: QueryName
    snapshot: QuerySnapshot
    lineage: str  # its folder
    kind: str
    place: str
    position: str
