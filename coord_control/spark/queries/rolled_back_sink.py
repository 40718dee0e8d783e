"""A file sink that was set back: it may hold only epochs that its query has planned.

An earlier driver that could not be seen may write the entry of its last epoch after the sink was set back. Spark takes
the newest entry for the epoch that the sink has, and would skip all epochs of the query up to it without a word. So
whenever the query has committed an epoch the log is looked at, and an entry beyond the planned epochs ends the query.

What this cannot tell: an entry that appears just before the query writes the one of that very epoch.

Threads: any.
"""

from __future__ import annotations

from dataclasses import dataclass

from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder.lineage import spark_position
from coord_control.durable.spark_layout.file_sink_log import LOG_NAME, newest_entry
from coord_control.errors import DamagedRecord
from coord_control.ids import Epoch

__all__ = ["RolledBackSink"]


@dataclass(frozen=True, slots=True)
class RolledBackSink:
    """The sink of one query.

    Attributes:
        files: the storage of ``place``.
        place: the folder of the output.
        kept: the storage of ``checkpoint``, the query's Spark checkpoint.
    """

    files: Files
    place: str
    kept: Files
    checkpoint: str

    def check(self, epoch: Epoch) -> None:
        """Look for an entry that is not the query's; it has committed ``epoch``.

        Raises:
            DamagedRecord: there is one.
            StoreUnavailable: the storage cannot say.
        """
        log = join(self.place, LOG_NAME)
        newest = newest_entry(self.files.list(log))
        if newest <= epoch:
            return
        _, planned = spark_position(self.kept, self.checkpoint)  # read after the log: the query runs meanwhile
        if newest > planned:
            why = (
                f"its newest entry is {newest}, and its query has planned epochs up to {planned}: a driver that was "
                "replaced has written it after the sink was set back, and Spark skips every epoch up to it"
            )
            remedy = (
                "End that driver, then go back once more: coordctl restore JOB REF --roll-back-sinks, with the "
                "checkpoint or savepoint that was restored"
            )
            raise DamagedRecord(log, why, remedy)
