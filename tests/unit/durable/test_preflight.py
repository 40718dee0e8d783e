"""What is looked at before a restore: each finding, its verdict, and the way out."""

from __future__ import annotations

from typing import Any

import pytest

from coord_control.durable.checkpoints.checkpoint_source import CheckpointSource, open_checkpoint
from coord_control.durable.checkpoints.metadata_file import PlannedEpoch, StateOperator
from coord_control.durable.job_folder.lineage import open_lineage
from coord_control.durable.job_folder.lineage_record import LineageOperator
from coord_control.durable.restore.checks import Check, Verdict, refuse
from coord_control.durable.restore.preflight import check_files, check_job, check_spark_version
from coord_control.durable.restore.preflight_declared import DeclaredQuery, check_declared
from coord_control.errors import MissingRecord, RestoreRefused
from coord_control.ids import Epoch, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.records import EventBatch
from tests.simulation.memory_files import MemoryFiles
from tests.unit.durable.restore_kit import JOB, OP, QUERIES, RECORD, put_checkpoint, run_before

OK, WARNING, REFUSED = Verdict.OK, Verdict.WARNING, Verdict.REFUSED
SAVEPOINT = "/savepoints/one"
PROVIDERS = "org.apache.spark.sql.execution.streaming.state"


@pytest.fixture
def source(files: MemoryFiles) -> CheckpointSource:
    return put_checkpoint(files, SAVEPOINT)


def verdicts(checks: list[Check]) -> dict[tuple[str, str], Verdict]:
    return {(check.name, check.subject): check.verdict for check in checks}


def job_checks(files: MemoryFiles, source: CheckpointSource, **options: bool) -> list[Check]:
    return check_job(files, JOB, source, **{"is_fork": False, "allow_non_restored_state": False, **options})


@pytest.mark.parametrize(("kind", "path"), [("savepoint", SAVEPOINT), ("checkpoint", f"{JOB}/checkpoints/7")])
@pytest.mark.parametrize("verify", [False, True])
def test_files_are_compared_with_the_manifest(files: MemoryFiles, kind: str, path: str, verify: bool) -> None:
    source = put_checkpoint(files, path, kind=kind)
    assert set(verdicts(check_files(source, verify=verify)).values()) == {OK}
    [victim] = [name for name in files.paths() if "raw" in name and "/6.zip" in name]
    files.damage(victim, flip_bit=1)
    assert verdicts(check_files(source)) == {("files", "delays"): OK, ("files", "raw"): OK}
    assert verdicts(check_files(source, verify=True))["files", "raw"] is REFUSED
    files.damage(victim, keep=3)
    found = {check.subject: check for check in check_files(source, verify=verify)}
    assert found["raw"].verdict is REFUSED
    assert victim in found["raw"].found
    files.delete(victim)
    with pytest.raises(RestoreRefused, match=victim):
        refuse(path, check_files(source, verify=verify))


def test_many_damaged_files_are_counted(files: MemoryFiles, source: CheckpointSource) -> None:
    files.delete(f"{SAVEPOINT}/queries/raw")
    [found] = [check.found for check in check_files(source) if check.subject == "raw"]
    assert found.endswith("and 3 more")


@pytest.mark.parametrize(
    ("installed", "verdict"),
    [("4.3.0", OK), ("4.3.9", OK), ("4.4.0", WARNING), ("5.0.0", WARNING), ("4.2.1", REFUSED), (None, WARNING)],
)
def test_an_older_spark_is_refused(source: CheckpointSource, installed: str | None, verdict: Verdict) -> None:
    assert set(verdicts(check_spark_version(source.metadata, installed)).values()) == {verdict}


def test_a_fork_is_a_new_job(files: MemoryFiles, source: CheckpointSource) -> None:
    assert job_checks(files, source, is_fork=True) == []
    run_before(files)
    assert verdicts(job_checks(files, source, is_fork=True)) == {("job", ""): REFUSED}
    assert REFUSED not in verdicts(job_checks(files, source)).values()


def test_a_query_that_would_begin_empty_is_refused_unless_that_is_allowed(files: MemoryFiles) -> None:
    run_before(files)
    source = put_checkpoint(files, SAVEPOINT, epochs={QUERIES[0]: 41})
    assert verdicts(job_checks(files, source))["query", "raw"] is REFUSED
    assert verdicts(job_checks(files, source, allow_non_restored_state=True))["query", "raw"] is WARNING


def test_a_query_id_that_another_job_has_is_pointed_out(files: MemoryFiles, source: CheckpointSource) -> None:
    assert verdicts(job_checks(files, source)) == {("query id", "delays"): OK, ("query id", "raw"): OK}
    files.create("/jobs/other/queries/x/lineage-000001/spark/metadata", b'{"id":"id-of-raw"}')
    open_lineage(files, "/jobs/other/queries/x", QueryName("x"), {})
    files.create("/jobs/broken/queries/y/lineage-000001/lineage.json", b"?")
    [check] = [check for check in job_checks(files, source) if check.subject == "raw"]
    assert (check.name, check.verdict) == ("query id", WARNING)
    assert "query 'x' of job 'other'" in check.found
    assert "--as NAME" in check.way_out


def test_a_planned_epoch_fixes_the_parallelism(source: CheckpointSource) -> None:
    snapshot = source.metadata.operators[OP]
    planned = PlannedEpoch(epoch=Epoch(42), inputs={SubtaskIndex(0): (EventBatch(0, 1, b"{}"),)})
    operators = {OP: snapshot.model_copy(update={"planned": planned})}
    metadata = source.metadata.model_copy(update={"operators": operators})
    changed = declared(operators={OP: RECORD.model_copy(update={"parallelism": 3})}, rescalable=[OP])
    checks = verdicts(check_declared(metadata, changed, allow_non_restored_state=False))
    assert checks["planned epoch", OP] is REFUSED
    assert ("planned epoch", OP) not in verdicts(check_declared(metadata, declared(), allow_non_restored_state=False))
    free = check_declared(source.metadata, changed, allow_non_restored_state=False)
    assert ("planned epoch", OP) not in verdicts(free)


def declared(**changes: Any) -> DeclaredQuery:
    return DeclaredQuery(**{"query": QUERIES[0], "operators": {OP: RECORD}, **changes})


def declared_checks(source: CheckpointSource, *, allow: bool = False, **changes: Any) -> dict[tuple[str, str], Verdict]:
    return verdicts(check_declared(source.metadata, declared(**changes), allow_non_restored_state=allow))


def test_a_query_that_fits_is_fine(source: CheckpointSource) -> None:
    found = declared_checks(source, sources=1, settings={"spark.sql.shuffle.partitions": "2"})
    assert set(found.values()) == {OK}
    assert ("sources", "delays") in found


def test_a_query_that_is_not_in_the_checkpoint(source: CheckpointSource) -> None:
    assert declared_checks(source, query=QueryName("new"), operators={}) == {("query", "new"): REFUSED}
    assert declared_checks(source, allow=True, query=QueryName("new"), operators={}) == {("query", "new"): WARNING}


@pytest.mark.parametrize("allow", [False, True])
def test_operators_that_came_or_went(source: CheckpointSource, allow: bool) -> None:
    found = declared_checks(source, allow=allow, operators={OperatorUid("new"): RECORD})
    verdict = WARNING if allow else REFUSED
    assert found["operator", "new"] is verdict
    assert found["operator", OP] is verdict


def test_operators_with_a_source_of_their_own_do_not_come(source: CheckpointSource) -> None:
    now = {OP: RECORD, OperatorUid("new"): RECORD.model_copy(update={"wake": True})}
    found = declared_checks(source, allow=True, operators=now)
    assert (found["operator", "new"], found["wake", "new"]) == (WARNING, REFUSED)


@pytest.mark.parametrize(
    ("record", "rescalable", "check", "verdict"),
    [
        ({"parallelism": 3}, (), "parallelism", REFUSED),
        ({"parallelism": 3}, (OP,), "parallelism", OK),
        ({"state": "Renamed"}, (), "state model", WARNING),
        ({"down": ("A", "More")}, (), "events down", OK),
        ({"down": ()}, (), "events down", REFUSED),
        ({"up": ("Other", "B")}, (), "events up", REFUSED),
        ({"wake": True}, (), "wake", REFUSED),
    ],
)
def test_what_changed_about_an_operator(
    source: CheckpointSource, record: dict[str, Any], rescalable: tuple[OperatorUid, ...], check: str, verdict: Verdict
) -> None:
    now = LineageOperator(**{**RECORD.model_dump(), **record})
    found = declared_checks(source, operators={OP: now}, rescalable=rescalable)
    assert found[check, OP] is verdict
    assert {one for key, one in found.items() if key[0] != check} == {OK}


def test_another_number_of_sources_is_left_to_spark(source: CheckpointSource) -> None:
    assert declared_checks(source, sources=2)["sources", "delays"] is WARNING


def test_settings_that_spark_has_pinned_are_pointed_out(source: CheckpointSource) -> None:
    stateful = source.metadata.queries[QUERIES[0]].model_copy(
        update={
            "shuffle_partitions": 2,
            "state_operators": (
                StateOperator(
                    id=0,
                    name="dedupe",
                    provider="hdfs",
                    provider_class=f"{PROVIDERS}.HDFSBackedStateStoreProvider",
                    partitions=2,
                    stores=("default",),
                ),
            ),
        }
    )
    metadata = source.metadata.model_copy(update={"queries": {QUERIES[0]: stateful}})
    fine = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": f"{PROVIDERS}.HDFSBackedStateStoreProvider",
    }
    other = {
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.streaming.stateStore.providerClass": f"{PROVIDERS}.RocksDBStateStoreProvider",
    }
    for settings, verdict in ((fine, OK), (other, WARNING)):
        found = verdicts(check_declared(metadata, declared(settings=settings), allow_non_restored_state=False))
        assert found["shuffle partitions", "delays"] is verdict
        assert found["state provider", "delays"] is verdict


def test_only_refusals_refuse() -> None:
    refuse("/path", [Check("a", "", OK, "x"), Check("b", "q", WARNING, "y", "z")])
    with pytest.raises(RestoreRefused, match=r"/path cannot be restored, and nothing was changed: c of q: w \(do v\)"):
        refuse("/path", [Check("b", "q", WARNING, "y"), Check("c", "q", REFUSED, "w", "do v")])


def test_a_checkpoint_that_is_read_is_held(files: MemoryFiles, source: CheckpointSource) -> None:
    with open_checkpoint(files, SAVEPOINT) as opened_source:
        assert opened_source.metadata == source.metadata
        assert files.list(f"{SAVEPOINT}/_holds")
    assert not files.list(f"{SAVEPOINT}/_holds")
    with pytest.raises(MissingRecord, match="coordctl savepoint list"), open_checkpoint(files, "/nowhere"):
        pass
    files.replace(f"{SAVEPOINT}/_metadata", b'{"void":true}\n')
    with pytest.raises(MissingRecord, match="aborted"), open_checkpoint(files, SAVEPOINT):
        pass
