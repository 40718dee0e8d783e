"""Rules of sinks that go back with their job, or do not: each broken on purpose, with the tests that notice."""

from __future__ import annotations

from typing import Final

from coord_control import driver_process
from coord_control.control.commands.restore import _restored_by_others
from coord_control.driver_process import DriverProcess
from coord_control.durable.checkpoints.pins import LiveFiles
from coord_control.durable.job_folder import generations, sink_record
from coord_control.durable.job_folder.generations import Claim
from coord_control.durable.offline import offline_restore, offline_savepoint, undo
from coord_control.durable.restore import file_sink, preflight_sinks, reached
from coord_control.durable.spark_layout import file_sink_log
from coord_control.spark.job.query_starts import QueryStarts
from coord_control.spark.job.sink_rollback import SinkRollback
from coord_control.spark.queries.query import ManagedQuery
from coord_control.spark.queries.rolled_back_sink import RolledBackSink
from coord_control.spark.sinks import delta
from tests.mutations.mutation import Mutation

__all__ = ["SINK_MUTATIONS"]

_UNDOING: Final = "tests/unit/durable/test_undo.py"
_REFUSALS: Final = "tests/spark/test_restore_refusals.py"
_SINKS: Final = "tests/unit/durable/test_preflight_sinks.py"
_OFFLINE_SINKS: Final = "tests/unit/durable/test_offline_sinks.py"
_LOG: Final = "tests/unit/durable/test_file_sink.py"
_CLAIMS: Final = "tests/unit/durable/test_generations.py"
_ROLLED_BACK: Final = "tests/unit/spark/test_rolled_back_sink.py"
_LATE_ENTRY: Final = (
    "tests/spark/test_sink_rollback.py::test_an_entry_that_another_driver_writes_after_the_rollback_ends_the_query"
)
_DRIVER_PROCESS: Final = "tests/unit/test_driver_process.py"
_ROLLING_BACK: Final = "tests/unit/spark/test_sink_rollback_order.py"

#: Each with the tests that catch it.
SINK_MUTATIONS: Final[tuple[tuple[Mutation, str], ...]] = (
    (
        Mutation(
            "restore behind a sink that skips epochs",
            preflight_sinks._SinkCheck._loss,
            "Verdict.WARNING if self.options.accept_skipped else Verdict.REFUSED",
            "Verdict.WARNING",
        ),
        _SINKS,
    ),
    (
        Mutation(
            "do not ask a file sink what it has",
            preflight_sinks._SinkCheck._file_check,
            "if newest > planned:",
            "if False:",
        ),
        _SINKS,
    ),
    (
        Mutation(
            "restore a checkpoint that a sink was set back behind",
            preflight_sinks._SinkCheck.left,
            "if behind is not None and behind < self.snapshot.epoch:",
            "if False:",
        ),
        _SINKS,
    ),
    (
        Mutation(
            "take another history of the same length for what the file sink held",
            preflight_sinks._SinkCheck._file_check,
            "if sink.position is not None and not self._holds_the_log():",
            "if False:",
        ),
        _OFFLINE_SINKS,
    ),
    (
        Mutation(
            "take another history of the same length for what the table held",
            reached.set_back_to,
            "if record is None or record.restored_from is None:\n            return NO_EPOCH",
            "if record is None or record.restored_from is None:\n            return None",
        ),
        _OFFLINE_SINKS,
    ),
    (
        Mutation(
            "do not say that a query with state cannot skip epochs",
            preflight_sinks._SinkCheck._back_check,
            "case Repeated.SKIPPED if self.has_state and not self.kind.runs_skipped:",
            "case Repeated.SKIPPED if False:",
        ),
        _SINKS,
    ),
    (
        Mutation(
            "trust a lineage in which nothing has run to know what its sink got elsewhere",
            preflight_sinks._SinkCheck.left,
            "if here is None or (self.current is None and self.sink.position is not None):",
            "if here is None:",
        ),
        _OFFLINE_SINKS,
    ),
    (
        Mutation(
            "save the log of another history with a restored checkpoint",
            offline_savepoint._Saver._log_as_restored,
            "if {_content(entry) for entry in found} != {_content(entry) for entry in then.sink_files}:",
            "if False:",
        ),
        _OFFLINE_SINKS,
    ),
    (
        Mutation(
            "count epochs that a sink has forgotten",
            reached.reached_here,
            "if is_sink_back(files, join(folder, name)):",
            "if False:",
        ),
        _SINKS,
    ),
    (
        Mutation(
            "take a sink that a driver began to set back for one that is back",
            reached.reached_here,
            "if is_sink_back(files, join(folder, name)):",
            "if are_sinks_set_back(files, join(folder, name)):",
        ),
        _SINKS,
    ),
    (
        Mutation(
            "take the log of an output that is away for an empty one",
            vars(LiveFiles)["of_sink_log"].__func__,
            "if (newest := newest_entry(names)) < boundary:",
            "if (newest := newest_entry(names)) < -1:",
        ),
        "tests/unit/durable/test_offline_savepoint.py::test_a_log_that_cannot_be_seen_is_not_taken_for_an_empty_one",
    ),
    (
        Mutation(
            "roll back without knowing where the sink stood",
            preflight_sinks._SinkCheck.rolled_back,
            "if self.kind.has_versions or self.sink.unknown:",
            "if False:",
        ),
        _SINKS,
    ),
    (
        Mutation(
            "set a log back without the compacted entry it rests on",
            file_sink_log.entries_up_to,
            "first = compacted[-1][0] if compacted else 0",
            "first = 0",
        ),
        "tests/unit/durable/test_file_sink_log.py",
    ),
    (
        Mutation(
            "take a log with a gap for a shorter one",
            file_sink_log.entries_up_to,
            "if number not in wanted:",
            "if False:",
        ),
        "tests/unit/durable/test_file_sink_log.py",
    ),
    (
        Mutation(
            "leave entries of another history in the log of a file sink",
            file_sink.set_back_file_sink,
            "for name in _different(files, log, wanted):",
            "for name in ():",
        ),
        _LOG,
    ),
    (
        Mutation(
            "remove later entries of the log oldest first",
            file_sink.set_back_file_sink,
            "key=lambda name: newest_entry([name]), reverse=True",
            "key=lambda name: newest_entry([name])",
        ),
        _LOG,
    ),
    (
        Mutation(
            "leave the checksum of an entry that was replaced",
            file_sink._remove_checksum,
            "if isinstance(files, LocalFiles):",
            "if False:",
        ),
        _LOG,
    ),
    (
        Mutation(
            "remove an entry of the log before its checksum",
            file_sink._remove,
            "_remove_checksum(files, log, name)\n    files.delete(join(log, name))",
            "files.delete(join(log, name))\n    _remove_checksum(files, log, name)",
        ),
        _LOG,
    ),
    (
        Mutation(
            "remove entries of the log as a driver that was fenced meanwhile",
            file_sink.set_back_file_sink,
            "if newest_entry([name]) > newest:\n            verify()",
            "if newest_entry([name]) > newest:",
        ),
        _LOG,
    ),
    (
        Mutation(
            "leave transactions where going back has set them",
            delta.epochs_at,
            "if epoch is not None or newest[query] > version",
            "if newest[query] > version",
        ),
        "tests/unit/spark/test_table_positions.py",
    ),
    (
        Mutation(
            "undo a restore whose sinks are back",
            undo._check,
            "if sinks_are_back(files, job_folder, newest):",
            "if False:",
        ),
        _UNDOING,
    ),
    (
        Mutation(
            "touch a sink without a mark",
            SinkRollback.carry_out,
            "begin_setting_sinks_back(self.place.files, sink.lineage)",
            "pass",
        ),
        _ROLLING_BACK,
    ),
    (
        Mutation(
            "set sinks back as a driver that was fenced",
            SinkRollback.carry_out,
            "self.verify()",
            "pass",
        ),
        _ROLLING_BACK,
    ),
    (
        Mutation(
            "set sinks back although an earlier driver has not ended",
            SinkRollback.carry_out,
            "self.verify_alone()",
            "pass",
        ),
        _ROLLING_BACK,
    ),
    (
        Mutation(
            "forget the claim of a driver that hangs",
            generations._forget_old,
            "if not _processes_of(files, folder, number)",
            "if True",
        ),
        _CLAIMS,
    ),
    (
        Mutation(
            "take a driver that has released its claim for one that hangs",
            generations._processes_of,
            "if not record.is_driver or files.exists(_released_path(folder, generation)):",
            "if not record.is_driver:",
        ),
        _CLAIMS,
    ),
    (
        Mutation(
            "take this process for a driver that hangs",
            Claim.alive_before,
            "if process not in self._processes",
            "if True",
        ),
        _CLAIMS,
    ),
    (
        Mutation(
            "take the next epoch of a query for another driver's",
            RolledBackSink.check,
            "if newest > planned:",
            "if newest > epoch:",
        ),
        _ROLLED_BACK,
    ),
    (
        Mutation(
            "go on with a sink to which a replaced driver has written",
            ManagedQuery._observe,
            "self._sink.check(epoch)",
            "pass",
        ),
        _LATE_ENTRY,
    ),
    (
        Mutation(
            "start a query on a sink to which a replaced driver has written",
            ManagedQuery._begin,
            "self._sink.check(committed)",
            "pass",
        ),
        _LATE_ENTRY,
    ),
    (
        Mutation(
            "lose the end of a driver when the look for its processes fails",
            DriverProcess._watch,
            "except Exception:",
            "except StopIteration:",
        ),
        _DRIVER_PROCESS,
    ),
    (
        Mutation(
            "fail on a process that ends while it is looked at",
            driver_process._is_running_member,
            "except OSError:",
            "except FileNotFoundError:",
        ),
        _DRIVER_PROCESS,
    ),
    (
        Mutation(
            "set further sinks back as a driver that was fenced meanwhile",
            SinkRollback.carry_out,
            "self.verify()",
            "sink is sinks[0] and self.verify()",
        ),
        _ROLLING_BACK,
    ),
    (
        Mutation(
            "start a query although an older driver has written to its sink",
            SinkRollback.carry_out,
            "self._check_untouched(sink)",
            "pass",
        ),
        _ROLLING_BACK,
    ),
    (
        Mutation(
            "ask no table before the restore takes place",
            SinkRollback.check,
            "if not restore.record.roll_back_sinks:",
            "if True:",
        ),
        _ROLLING_BACK,
    ),
    (
        Mutation(
            "start a query before the sinks are back",
            QueryStarts._begin,
            "self._sinks.carry_out(self._restore)",
            "pass",
        ),
        "tests/spark/test_sink_rollback.py::test_a_file_sink_goes_back_with_its_job",
    ),
    (
        Mutation(
            "set a sink of several queries back for each of them",
            preflight_sinks._SinkCheck.rolled_back,
            "if len(same) > 1:",
            "if False:",
        ),
        _SINKS,
    ),
    (
        Mutation(
            "set sinks back without a word although the job may run elsewhere",
            preflight_sinks._SinkCheck.rolled_back,
            "if self.current is None:",
            "if False:",
        ),
        _SINKS,
    ),
    (
        Mutation(
            "look at the sink of the checkpoint although the query writes elsewhere now",
            vars(preflight_sinks._SinkCheck)["sink"].fget,
            "if now is None or (now.kind, now.place) == (then.kind, then.place):",
            "if True:",
        ),
        _SINKS,
    ),
    (
        Mutation(
            "let a query begin empty with a full sink",
            preflight_sinks._begun_check,
            "Verdict.WARNING if options.accept_skipped else Verdict.REFUSED",
            "Verdict.WARNING",
        ),
        _SINKS,
    ),
    (
        Mutation(
            "take the lineage that counts for the only one that knows its sink",
            sink_record.newest_sink,
            "for name in reversed(names))",
            "for name in names[-1:])",
        ),
        "tests/unit/durable/test_sink_record.py",
    ),
    (
        Mutation(
            "look at sources and sinks before the claim alone",
            offline_restore.restore_job,
            "refuse(path, check_what_moves(request, source, files, folder, storage))",
            "pass",
        ),
        _OFFLINE_SINKS,
    ),
    (
        Mutation(
            "forget where sinks go back to in an offline savepoint",
            offline_savepoint._Saver._sink,
            "if lineage.restored is not None:",
            "if False:",
        ),
        _OFFLINE_SINKS,
    ),
    (
        Mutation(
            "take a restore that left the sinks for one that sets them back",
            _restored_by_others,
            "if roll_back_sinks and not newest.roll_back_sinks:",
            "if False:",
        ),
        "tests/unit/control/test_command_takeover.py",
    ),
)
