"""What a restore will do to the sinks, what is refused, and the ways out."""

from __future__ import annotations

import re

import pytest

from coord_control.durable.checkpoints.checkpoint_source import CheckpointSource, open_checkpoint
from coord_control.durable.checkpoints.metadata_file import FileEntry, SinkSnapshot
from coord_control.durable.files.filesystem import join
from coord_control.durable.job_folder.lineage import begin_setting_sinks_back, open_lineage, sink_is_back
from coord_control.durable.job_folder.lineage_record import Reached
from coord_control.durable.job_folder.sink_record import SinkRecord, write_sink
from coord_control.durable.offline.offline_restore import restore_job
from coord_control.durable.offline.offline_savepoint import save
from coord_control.durable.restore.checks import Check, Verdict
from coord_control.durable.restore.preflight_sinks import SinkOptions, check_sinks
from coord_control.durable.restore.request import RestoreRequest
from coord_control.ids import Epoch, QueryName
from tests.simulation.memory_files import MemoryFiles
from tests.unit.durable.restore_kit import (
    JOB,
    OP,
    QUERIES,
    RECORD,
    folder,
    opened,
    prepared,
    put_checkpoint,
    run_before,
    run_spark,
)

OK, WARNING, REFUSED = Verdict.OK, Verdict.WARNING, Verdict.REFUSED
SAVEPOINT = "/savepoints/one"
OUT = "file:/out"


@pytest.fixture
def source(files: MemoryFiles) -> CheckpointSource:
    return put_checkpoint(files, SAVEPOINT)


def verdicts(checks: list[Check]) -> dict[tuple[str, str], Verdict]:
    return {(check.name, check.subject): check.verdict for check in checks}


def sink_checks(files: MemoryFiles, source: CheckpointSource, job_folder: str = JOB, **options: bool) -> list[Check]:
    return check_sinks(files, job_folder, source, lambda path: files, SinkOptions(**options))


def with_sink(source: CheckpointSource, sink: SinkSnapshot, *entries: FileEntry) -> CheckpointSource:
    """The same checkpoint, whose queries have this sink."""
    queries = {
        query: snapshot.model_copy(update={"sink": sink, "files": (*snapshot.files, *entries)})
        for query, snapshot in source.metadata.queries.items()
    }
    return CheckpointSource(source.path, source.metadata.model_copy(update={"queries": queries}), source.files)


def without_state(source: CheckpointSource) -> CheckpointSource:
    """The same checkpoint, whose queries keep no state."""
    found = source.metadata.queries.items()
    queries = {query: snapshot.model_copy(update={"state_operators": ()}) for query, snapshot in found}
    metadata = source.metadata.model_copy(update={"queries": queries, "operators": {}})
    return CheckpointSource(source.path, metadata, source.files)


def writes_to(files: MemoryFiles, kind: str, place: str | None, *queries: QueryName, lineage: str = "000001") -> None:
    """The queries have written to this sink in a lineage."""
    for query in queries or QUERIES:
        write_sink(files, join(folder(query), f"lineage-{lineage}"), SinkRecord(kind=kind, place=place))


def check_of(checks: list[Check], query: QueryName) -> Check:
    [check] = [each for each in checks if each.subject == query]
    return check


def places(source: CheckpointSource, **sinks: SinkSnapshot) -> CheckpointSource:
    """The same checkpoint, whose queries have these sinks."""
    found = source.metadata.queries.items()
    queries = {query: snapshot.model_copy(update={"sink": sinks[query]}) for query, snapshot in found}
    return CheckpointSource(source.path, source.metadata.model_copy(update={"queries": queries}), source.files)


def test_what_the_sinks_will_do_is_said(files: MemoryFiles, source: CheckpointSource) -> None:
    run_before(files)
    checks = sink_checks(files, source)
    assert set(verdicts(checks).values()) == {WARNING}
    delays = checks[0].found
    assert "epochs 42 to 99 were committed after the checkpoint" in delays
    assert "SKIP" in delays
    assert "_spark_metadata" in delays
    fork = sink_checks(files, source, is_fork=True)
    assert set(verdicts(fork).values()) == {WARNING}
    assert "new id" in fork[0].found


def test_advice_for_the_file_sink_is_for_no_other_sink(files: MemoryFiles, source: CheckpointSource) -> None:
    """Bug: a fork advised a foreachBatch query, like all others, to copy the log of the file sink."""
    run_before(files)
    back, fork = (sink_checks(files, source, is_fork=is_fork)[0] for is_fork in (False, True))
    sentences = re.split(r"[.;] ", f"{back.found}. {back.way_out}. {fork.found}. {fork.way_out}")
    special = [sentence for sentence in sentences if "_spark_metadata" in sentence]
    assert len(special) == 3
    assert all("Spark's file sink" in sentence for sentence in special)
    assert "That is all for foreachBatch and Delta" in fork.way_out


def test_sinks_of_a_job_that_is_not_known_here_are_not_said_to_be_fine(
    files: MemoryFiles, source: CheckpointSource
) -> None:
    checks = sink_checks(files, source, "/elsewhere/flights")
    assert [check.verdict for check in checks] == [WARNING, WARNING]
    assert "not known here" in checks[0].found
    assert "nothing after epoch 41 has been planned when the checkpoint was taken" in checks[0].found
    assert "compare the newest batch id in the sink with 41" in checks[0].way_out


def ran_to(files: MemoryFiles, query: QueryName, epoch: int, *, planned: bool = False) -> None:
    lineage = open_lineage(files, f"{JOB}/queries/{query}", query, {OP: RECORD} if query == QUERIES[0] else {})
    run_spark(files, lineage.checkpoint, epoch, planned=planned)


def sink_check(files: MemoryFiles, path: str, query: QueryName, job_folder: str = JOB) -> Check:
    with open_checkpoint(files, path) as source:
        [check] = [each for each in sink_checks(files, source, job_folder) if each.subject == query]
    return check


def test_sinks_that_an_earlier_lineage_has_carried_farther_are_pointed_out(files: MemoryFiles) -> None:
    """Fault: "nothing after epoch 7 has run" after a restore to 3 of a job that was at 11."""
    query = QUERIES[1]
    ran_to(files, query, 3)
    early = save(files, JOB).path
    ran_to(files, query, 11, planned=True)
    restore_job(files, lambda path: files, RestoreRequest(ref=early), root="/jobs", job="flights")
    ran_to(files, query, 7)
    later = save(files, JOB)
    assert later.metadata.queries[query].reached == Reached(committed=Epoch(11), planned=Epoch(12))
    for job_folder in (JOB, "/elsewhere/flights"):  # the savepoint takes it along
        check = sink_check(files, later.path, query, job_folder)
        assert check.verdict is WARNING
        assert (
            "epochs 8 to 11 were committed after the checkpoint; epoch 12 was planned after it and not" in check.found
        )
    # Also when the earlier lineage is removed, and after another restore.
    files.delete(f"{JOB}/queries/{query}/lineage-000001")
    restore_job(files, lambda path: files, RestoreRequest(ref=later.path), root="/jobs", job="flights")
    assert "epochs 8 to 11 were committed" in sink_check(files, later.path, query).found
    assert "epochs 4 to 11 were committed" in sink_check(files, early, query).found  # which does not know of them


def test_an_epoch_that_was_only_planned_is_not_said_to_have_run(files: MemoryFiles) -> None:
    """Fault: "epoch 8 has run" after every stop with a savepoint of a busy query."""
    query = QUERIES[1]
    ran_to(files, query, 7)
    taken = save(files, JOB)
    assert sink_check(files, taken.path, query).verdict is OK
    ran_to(files, query, 7, planned=True)
    check = sink_check(files, taken.path, query)
    assert check.verdict is WARNING
    assert check.found.startswith("epoch 8 was planned after it and not committed: a sink may have received it")
    # What is planned in the checkpoint too is the same epoch.
    whole = save(files, JOB)
    check = sink_check(files, whole.path, query)
    assert (check.verdict, check.found) == (
        OK,
        "epoch 8 is run again with the same rows and events; nothing after it has been planned",
    )
    ran_to(files, query, 8)
    assert sink_check(files, whole.path, query).verdict is OK, "it was committed with the same rows"


@pytest.mark.parametrize(
    ("kind", "verdict", "found"),
    [
        ("delta", REFUSED, "a Delta table db.t skips them"),
        ("iceberg", REFUSED, "an Iceberg table db.t skips them"),
        ("kafka", WARNING, "a Kafka topic db.t gets their rows twice"),
        ("foreachBatch", WARNING, "foreachBatch function gets these epochs twice"),
        ("Unheard", WARNING, "foreachBatch function gets these epochs twice"),
    ],
)
def test_a_restore_behind_a_sink_that_skips_epochs_is_refused_with_the_ways_out(
    files: MemoryFiles, source: CheckpointSource, kind: str, verdict: Verdict, found: str
) -> None:
    run_before(files)
    source = with_sink(source, SinkSnapshot(kind=kind, place="db.t"))
    [check] = [each for each in sink_checks(files, source) if each.subject == "delays"]
    assert (check.verdict, found in check.found) == (verdict, True), check.found
    assert "--as NAME" in check.way_out or verdict is WARNING
    if verdict is REFUSED:
        assert "--accept-skipped-epochs" in check.way_out
    assert {each.verdict for each in sink_checks(files, source, accept_skipped=True)} == {WARNING}


@pytest.mark.parametrize(("kind", "is_said"), [("delta", True), ("file", True), ("iceberg", False), ("kafka", False)])
def test_a_sink_that_does_not_run_what_it_skips_is_said_to_break_a_query_with_state(
    files: MemoryFiles, source: CheckpointSource, kind: str, is_said: bool
) -> None:
    """Fault: Spark did not find the state of the skipped epochs, and every start of the query failed."""
    run_before(files)
    source = with_sink(source, SinkSnapshot(kind=kind, place="/no/such/output"))
    check = check_of(sink_checks(files, source), QUERIES[0])
    assert ("the state of the query would lack their rows, and Spark would not find it" in check.found) is is_said
    assert ("if it writes elsewhere now, accept" in check.way_out) is is_said
    assert check_of(sink_checks(files, source, accept_skipped=True), QUERIES[0]).verdict is WARNING
    other = check_of(sink_checks(files, without_state(source)), QUERIES[0])
    assert "the state of the query" not in other.found + other.way_out


def test_a_function_that_skips_epochs_of_a_query_with_state_must_run_them(
    files: MemoryFiles, source: CheckpointSource
) -> None:
    """Fault: "fine if these epochs produce the same rows again" was said of one after which Spark ended the query."""
    run_before(files)
    source = with_sink(source, SinkSnapshot(kind="foreachBatch"))
    check = check_of(sink_checks(files, source), QUERIES[0])
    assert "a function that skips an epoch must run it first" in check.found
    assert "same rows again, and a function that skips them runs them; if not" in check.way_out
    other = check_of(sink_checks(files, without_state(source)), QUERIES[0])
    assert "must run" not in other.found
    assert "same rows again; if not" in other.way_out


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("delta", "RESTORE TABLE db.t TO VERSION AS OF 12"),
        ("iceberg", "CALL db.system.set_current_snapshot('t', 12)"),
    ],
)
def test_the_command_that_sets_a_table_back_is_named(
    files: MemoryFiles, source: CheckpointSource, kind: str, command: str
) -> None:
    run_before(files)
    writes_to(files, kind, "db.t", QUERIES[0])
    other = SinkSnapshot(kind="noop")
    source = places(source, delays=SinkSnapshot(kind=kind, place="db.t", position="12"), raw=other)
    assert command in check_of(sink_checks(files, source), QUERIES[0]).way_out
    rolled = check_of(sink_checks(files, source, roll_back=True), QUERIES[0])
    assert rolled.verdict is OK
    assert command in rolled.found


def test_a_delta_table_without_a_name_is_named_by_its_path(files: MemoryFiles, source: CheckpointSource) -> None:
    sink = SinkSnapshot(kind="delta", place="file:/t", position="3")
    source = places(source, delays=sink, raw=SinkSnapshot(kind="noop"))
    assert "RESTORE TABLE delta.`file:/t` TO" in sink_checks(files, source, roll_back=True)[0].found


@pytest.mark.parametrize(
    ("sink", "verdict"),
    [
        (SinkSnapshot(kind="delta", place="t", unknown="the catalog is down"), REFUSED),
        (SinkSnapshot(kind="unknown", unknown="the JVM was gone"), REFUSED),
        (SinkSnapshot(kind="delta", place="t"), REFUSED),
        (SinkSnapshot(kind="kafka"), WARNING),
        (SinkSnapshot(kind="foreachBatch"), WARNING),
    ],
)
def test_sinks_whose_position_is_not_known_do_not_go_back(
    files: MemoryFiles, source: CheckpointSource, sink: SinkSnapshot, verdict: Verdict
) -> None:
    run_before(files)
    checks = sink_checks(files, with_sink(source, sink), roll_back=True)
    assert {check.verdict for check in checks} == {verdict}
    assert all(sink.unknown in check.found for check in checks)
    if verdict is WARNING:
        assert all("cannot be set back" in check.found for check in checks)


def test_no_sink_of_an_older_release_goes_back(files: MemoryFiles, source: CheckpointSource) -> None:
    checks = sink_checks(files, source, roll_back=True)
    assert {check.verdict for check in checks} == {REFUSED}
    assert "an older release has taken the checkpoint" in checks[0].found


def file_sink(files: MemoryFiles, source: CheckpointSource, newest: int) -> CheckpointSource:
    for epoch in range(newest + 1):
        files.replace(f"{OUT}/_spark_metadata/{epoch}", b"v1\n")
    return with_sink(source, SinkSnapshot(kind="file", place=OUT, position="5"))


@pytest.mark.parametrize(("newest", "verdict"), [(4, REFUSED), (5, OK), (6, REFUSED)])
def test_a_file_sink_is_asked_what_it_has(
    files: MemoryFiles, source: CheckpointSource, newest: int, verdict: Verdict
) -> None:
    source = file_sink(files, source, newest)
    [check] = [each for each in sink_checks(files, source) if each.subject == "raw"]
    assert check.verdict is verdict, check.found
    if newest == 6:
        assert "epoch 6 was received after the checkpoint" in check.found
        assert "rows are written again from epoch 7 on" in check.found
    if verdict is REFUSED:
        assert "--roll-back-sinks" in check.way_out
        assert "--as NAME" in check.way_out
        [accepted] = [each for each in sink_checks(files, source, accept_skipped=True) if each.subject == "raw"]
        assert accepted.verdict is WARNING


def test_a_fork_sets_no_sink_back(files: MemoryFiles, source: CheckpointSource) -> None:
    source = with_sink(source, SinkSnapshot(kind="file", place=OUT, position="5"))
    assert {check.verdict for check in sink_checks(files, source, is_fork=True, roll_back=True)} == {REFUSED}
    [check, _] = sink_checks(files, source, is_fork=True)
    assert check.verdict is WARNING
    assert "entries up to 41 of the original's _spark_metadata to" in check.way_out
    entry = FileEntry(path="_sink/5", size=3, crc32="00000000")
    [check, _] = sink_checks(files, with_sink(source, SinkSnapshot(kind="file", place=OUT), entry), is_fork=True)
    assert f"of {source.folder_of(QUERIES[0])}/_sink to _spark_metadata there" in check.way_out
    delta = with_sink(source, SinkSnapshot(kind="delta", place="t"))
    assert "_spark_metadata" not in str(sink_checks(files, delta, is_fork=True)[0])


def test_a_checkpoint_that_a_sink_has_been_set_back_behind_needs_its_sink_as_well(
    files: MemoryFiles, source: CheckpointSource
) -> None:
    """Otherwise the epochs between are in no table: it lacks them, and the query does not run them again."""
    run_before(files)
    sink = SinkSnapshot(kind="delta", place="t", position="3")
    writes_to(files, "delta", "t", QUERIES[0])
    sinks = {"delays": sink, "raw": SinkSnapshot(kind="noop")}
    older = places(put_checkpoint(files, "/savepoints/older", epochs={QUERIES[0]: 30, QUERIES[1]: 5}), **sinks)
    done = prepared(files, older, roll_back_sinks=True)
    done.commit()
    newer = places(source, **sinks)
    lineage = join(folder(QUERIES[0]), done.record.queries[QUERIES[0]])
    before = verdicts(sink_checks(files, newer, accept_skipped=True))
    assert before["sink", "delays"] is WARNING, "the old lineage has run farther"
    begin_setting_sinks_back(files, lineage)
    begin_setting_sinks_back(files, lineage)
    [check] = [each for each in sink_checks(files, newer) if each.subject == "delays"]
    assert check.verdict is REFUSED
    assert "set back to epoch 30 after the checkpoint, which is of epoch 41" in check.found
    assert check_of(sink_checks(files, newer, roll_back=True), QUERIES[0]).verdict is OK
    # A driver has begun, and nothing says that it got anywhere: the sink may hold everything still.
    [check] = [each for each in sink_checks(files, older) if each.subject == "delays"]
    assert check.verdict is REFUSED
    assert "epochs 31 to 99 were committed after the checkpoint" in check.found
    # What the sink has forgotten counts no more.
    sink_is_back(files, lineage)
    sink_is_back(files, lineage)
    [check] = [each for each in sink_checks(files, older) if each.subject == "delays"]
    assert (check.verdict, check.found) == (OK, "nothing after epoch 30 has been planned")


def test_a_table_of_several_queries_goes_back_for_none(files: MemoryFiles, source: CheckpointSource) -> None:
    """Fault: it was set back to the position of one query after the other, and rows were lost or doubled."""
    run_before(files)
    writes_to(files, "delta", "db.t")
    one, other = (SinkSnapshot(kind="delta", place="db.t", position=position) for position in ("7", "9"))
    checks = sink_checks(files, places(source, delays=one, raw=other), roll_back=True)
    assert {check.verdict for check in checks} == {REFUSED}
    assert all("the queries delays, raw write to a Delta table db.t" in check.found for check in checks)
    assert all("--accept-skipped-epochs" in check.way_out for check in checks)
    assert {each.verdict for each in sink_checks(files, places(source, delays=one, raw=other))} == {REFUSED}
    elsewhere = SinkSnapshot(kind="delta", place="db.u", position="9")
    writes_to(files, "delta", "db.u", QUERIES[1])
    checks = sink_checks(files, places(source, delays=one, raw=elsewhere), roll_back=True)
    assert {check.verdict for check in checks} == {OK}


@pytest.mark.parametrize(
    ("kind", "verdict", "found"),
    [
        ("file", REFUSED, "Spark's file sink file:/out has received its epochs up to 99, and skips these epochs"),
        ("delta", REFUSED, "gets their rows twice, under the new id"),
        ("iceberg", REFUSED, "gets their rows twice, under the new id"),
        ("foreachBatch", WARNING, "a foreachBatch function file:/out has received"),
        (None, WARNING, "skips these epochs or gets their rows twice"),
        ("kafka", None, ""),
    ],
)
def test_a_query_that_begins_empty_does_not_do_so_with_a_full_sink(
    files: MemoryFiles, kind: str | None, verdict: Verdict | None, found: str
) -> None:
    """Fault: it began with epoch 0, and its file sink skipped what it wrote in the epochs that it had received."""
    run_before(files)
    late = QUERIES[1]
    if kind is not None:
        writes_to(files, kind, OUT, late)
    source = put_checkpoint(files, SAVEPOINT, epochs={QUERIES[0]: 41})
    for roll_back in (False, True):
        checks = [each for each in sink_checks(files, source, roll_back=roll_back) if each.subject == late]
        assert [each.verdict for each in checks] == ([] if verdict is None else [verdict])
        assert all(found in each.found for each in checks), checks
    if verdict is REFUSED:
        assert "--as NAME" in checks[0].way_out
        assert "empty the sink, or let the query write elsewhere, and accept" in checks[0].way_out
    accepted = sink_checks(files, source, accept_skipped=True)
    assert all(each.verdict is WARNING for each in accepted if each.subject == late)
    assert not [each for each in sink_checks(files, source, is_fork=True) if each.subject == late]


def test_a_query_that_has_never_run_begins_with_any_sink(files: MemoryFiles) -> None:
    for query in QUERIES:
        opened(files, query)
    source = put_checkpoint(files, SAVEPOINT, epochs={QUERIES[0]: 41})
    assert [each.subject for each in sink_checks(files, source)] == [QUERIES[0]]


def test_the_sink_that_gets_the_epochs_is_the_one_to_which_the_query_wrote_last(
    files: MemoryFiles, source: CheckpointSource
) -> None:
    """Fault: the output had changed since; the old one was set back, and the new one skipped what was written again."""
    run_before(files)
    writes_to(files, "file", "file:/out2")
    source = file_sink(files, source, 5)
    check = check_of(sink_checks(files, source, roll_back=True), QUERIES[1])
    assert check.verdict is REFUSED
    assert "Spark's file sink file:/out2 stood is not known" in check.found
    assert "the query wrote to Spark's file sink file:/out when the checkpoint was taken" in check.found
    for epoch in range(8):
        files.replace(f"file:/out2/_spark_metadata/{epoch}", b"v1\n")
    check = check_of(sink_checks(files, source), QUERIES[1])
    assert (check.verdict, "epochs 6 to 7 were received" in check.found) == (REFUSED, True), check.found
    # A versioned sink would stay where it is; of two without versions there is nothing to set back.
    writes_to(files, "kafka", None)
    assert check_of(sink_checks(files, source, roll_back=True), QUERIES[1]).verdict is REFUSED
    writes_to(files, "foreachBatch", None)
    source = places(source, delays=SinkSnapshot(kind="kafka"), raw=SinkSnapshot(kind="kafka"))
    assert {check.verdict for check in sink_checks(files, source, roll_back=True)} == {WARNING}


@pytest.mark.parametrize("kind", ["file", "delta"])
def test_of_a_checkpoint_that_does_not_know_its_sink_the_job_does(
    files: MemoryFiles, source: CheckpointSource, kind: str
) -> None:
    """Fault: checkpoints of older releases only got a warning, and Spark's file sink skipped rows."""
    run_before(files)
    writes_to(files, kind, OUT)
    lineage = opened(files, QUERIES[0])
    prepared(files, source).commit()  # its lineages have no record of a sink
    assert opened(files, QUERIES[0]).folder != lineage.folder
    for sink in (None, SinkSnapshot(kind="unknown", unknown="the JVM was gone")):
        checks = sink_checks(files, places(source, delays=sink, raw=sink))  # type: ignore[arg-type]
        assert {each.verdict for each in checks} == {REFUSED}, checks
        assert all(f"{OUT} skips them" in each.found for each in checks)
    writes_to(files, "kafka", None)
    assert {each.verdict for each in sink_checks(files, source)} == {WARNING}
    assert {each.verdict for each in sink_checks(files, source, roll_back=True)} == {WARNING}


def test_sinks_of_a_job_that_may_run_elsewhere_go_back_with_a_warning(
    files: MemoryFiles, source: CheckpointSource
) -> None:
    """Fault: the check said only that they go back, although the job may write to them from another root."""
    sink = SinkSnapshot(kind="delta", place="t", position="3")
    checks = sink_checks(files, places(source, delays=sink, raw=SinkSnapshot(kind="noop")), roll_back=True)
    check = check_of(checks, QUERIES[0])
    assert (check.verdict, "has not run in this job's folder" in check.found) == (WARNING, True), check.found
    assert "--root" in check.way_out
