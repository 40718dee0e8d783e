from __future__ import annotations

from pathlib import Path

import pytest

from coord_control.control.agent.driver_records import checkpoint_record, savepoint_record
from coord_control.control.client.control_client import ControlClient
from coord_control.control.client.savepoint_import import read_savepoint
from coord_control.durable.checkpoints.catalog import Catalog
from coord_control.durable.checkpoints.metadata_file import encode_metadata
from coord_control.durable.checkpoints.stored_statistics import stored_statistics
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.errors import CheckpointNotFound, DamagedRecord
from coord_control.ids import CheckpointKind, OperatorUid, QueryName
from coord_control.protocol.control_events import Seal
from coord_control.protocol.statistics import OperatorStatistics, QueryStatistics
from coord_control.storage.records import CheckpointRecord, CheckpointState
from tests import control_kit as kit
from tests.unit.durable.restore_kit import OP, operator_snapshot, put_checkpoint


@pytest.fixture
def savepoint(tmp_path: Path) -> str:
    return put_checkpoint(LocalFiles(), str(tmp_path / "savepoints" / "before-upgrade")).path


def test_a_savepoint_says_what_it_holds(savepoint: str) -> None:
    found = read_savepoint(savepoint)

    assert (found.path, found.job, found.imported) == (savepoint, "flights", True)
    assert found.size > 0
    assert found.applied_numbers == {OP: 0}
    assert read_savepoint(f"{savepoint}/") == found


def test_it_is_known_which_control_events_a_savepoint_contains(savepoint: str) -> None:
    files = LocalFiles()
    catalog = Catalog(files, savepoint)
    metadata = catalog.read(catalog.resolve(savepoint))
    state = Seal("flights", {"flights": 7}).seal(b"S")
    operators = {OP: operator_snapshot().model_copy(update={"coordinator_state": state})}
    files.replace(f"{savepoint}/_metadata", encode_metadata(metadata.model_copy(update={"operators": operators})))

    stored = stored_statistics(catalog.read(catalog.resolve(savepoint)), savepoint)
    [delays, raw] = checkpoint_record("flights", 3, stored).queries
    assert [(each.operator, each.applied_events) for each in delays.operators] == [(OP, {"flights": 7})]
    assert raw.operators == ()
    assert read_savepoint(savepoint).applied_numbers == {OP: 7}


def test_a_savepoint_of_the_driver_names_the_operators_whose_numbers_are_known() -> None:
    operators = (
        OperatorStatistics(OperatorUid("known"), applied_events={"flights": 7}),
        OperatorStatistics(OperatorUid("without"), applied_events={}),
        OperatorStatistics(OperatorUid("unknown")),
    )
    record = CheckpointRecord(
        job="flights",
        id=3,
        kind=CheckpointKind.SAVEPOINT,
        state=CheckpointState.COMPLETED,
        triggered_at=kit.NOON,
        path="/saved/three",
        queries=(QueryStatistics(QueryName("q"), operators=operators),),
    )
    found = savepoint_record(record)
    assert found is not None
    assert found.applied_numbers == {"known": 7, "without": 0}


def test_a_path_without_one_is_answered_with_the_near_ones(savepoint: str) -> None:
    with pytest.raises(CheckpointNotFound, match=r"did you mean .*before-upgrade"):
        read_savepoint(savepoint.replace("upgrade", "upgrad"))


def test_one_that_is_damaged_is_not_taken(savepoint: str) -> None:
    (Path(savepoint) / "_metadata").write_text('{"format_version":1,')
    with pytest.raises(DamagedRecord):
        read_savepoint(savepoint)


def test_a_place_that_needs_spark_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound, match="coordctl savepoint import"):
        read_savepoint("hdfs://name/savepoint")


def test_what_was_imported_is_listed_and_audited(savepoint: str, tmp_path: Path) -> None:
    with ControlClient(actor="ann", settings=kit.settings(tmp_path)) as client:
        first, again = client.import_savepoint(savepoint), client.import_savepoint(savepoint)

        assert first.path == again.path
        assert [(each.path, each.imported) for each in client.savepoints()] == [(savepoint, True)]
        assert {(each.actor, each.action, each.subject) for each in client.audit()} == {
            ("ann", "import_savepoint", savepoint)
        }
