"""What docs/operations tells people to do on the worst of days, done: by the command line, on files, without Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

from coord_control.control.settings import ControlSettings
from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.job_folder.lineage import Lineage, current_lineage, open_lineage, spark_position
from coord_control.errors import JobRootMismatch
from coord_control.ids import QueryName
from tests.agent_kit import ScriptedDriver, make_agent, open_store
from tests.cli_kit import run, run_json
from tests.patience import SECONDS
from tests.unit.durable.restore_kit import QUERIES, run_spark

QUERY: Final = QUERIES[0]
FILES: Final = LocalFiles()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a job that does not run, after epoch 3."""
    lineage = open_lineage(FILES, f"{tmp_path}/jobs/flights/queries/{QUERY}", QUERY, {})
    run_spark(FILES, lineage.checkpoint, 3)
    return tmp_path / "jobs"


def lineage_of(root: Path, job: str = "flights", query: QueryName = QUERY) -> Lineage:
    lineage = current_lineage(FILES, f"{root}/{job}/queries/{query}", query)
    assert lineage is not None
    return lineage


def epoch_of(root: Path) -> int:
    return spark_position(FILES, lineage_of(root).checkpoint)[0]


def test_the_root_is_lost_and_a_savepoint_elsewhere_is_what_there_is(root: Path, tmp_path: Path) -> None:
    backup = str(tmp_path / "backup" / "2026-03-01-12")
    run(tmp_path, "savepoint", "create", "flights", "--root", str(root), "--target", backup)
    before = lineage_of(root).query_id
    shutil.rmtree(root)
    run(tmp_path, "savepoint", "verify", backup)
    new = tmp_path / "srv" / "jobs"
    assert "can be restored" in run(tmp_path, "restore", "flights", backup, "--root", str(new), "--check")
    run(tmp_path, "restore", "flights", backup, "--root", str(new))
    assert epoch_of(new) == 3
    assert lineage_of(new).query_id == before, "sinks know it by this id"


def test_a_job_whose_root_was_lost_keeps_its_history(root: Path, tmp_path: Path) -> None:
    backup = str(tmp_path / "backup")
    run(tmp_path, "savepoint", "create", "flights", "--root", str(root), "--target", backup)
    settings = ControlSettings.load(f"sqlite:///{tmp_path / 'control.db'}")
    for _ in range(3):  # drivers that the savepoint does not know
        assert start_driver(root, settings) is None
    shutil.rmtree(root)
    refusal = start_driver(root, settings)
    assert isinstance(refusal, JobRootMismatch), "it would begin at the sources' first offsets"
    run(tmp_path, "restore", "flights", backup, "--root", str(root))
    assert start_driver(root, settings) is None
    generations = [each["generation"] for each in run_json(tmp_path, "generations", "flights")]
    assert generations == sorted(generations, reverse=True)
    assert len(generations) == 4


def start_driver(root: Path, settings: ControlSettings) -> JobRootMismatch | None:
    """Start and end a driver of the job; return why it was refused."""
    driver = ScriptedDriver(root, "flights")
    agent = make_agent(driver, settings, open_store(settings))
    try:
        agent.start(SECONDS)
    except JobRootMismatch as error:
        return error
    finally:
        agent.close()
        driver.claim.release()
    return None


def test_a_job_is_moved_in_a_folder_of_its_own(root: Path, tmp_path: Path) -> None:
    export, new = tmp_path / "export", tmp_path / "srv" / "jobs"
    run(tmp_path, "savepoint", "create", "flights", "--root", str(root), "--target", str(export / "move"))
    arrived = shutil.copytree(export, tmp_path / "import") / "move"
    shutil.rmtree(export)
    shutil.rmtree(root)
    run(tmp_path, "restore", "flights", str(arrived), "--root", str(new))
    shutil.rmtree(arrived)
    assert epoch_of(new) == 3, "what was restored does not need the savepoint any more"


def test_a_savepoint_that_no_database_knows_is_made_known_again(root: Path, tmp_path: Path) -> None:
    made = str(tmp_path / "mine")
    run(tmp_path, "savepoint", "create", "flights", "--root", str(root), "--target", made)
    run(tmp_path, "db", "upgrade")
    assert run_json(tmp_path, "savepoint", "list") == []
    run(tmp_path, "savepoint", "import", made)
    assert [each["path"] for each in run_json(tmp_path, "savepoint", "list")] == [made]


def test_a_damaged_live_file_is_got_around_by_a_savepoint_on_another_disk(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "backup"
    run(tmp_path, "savepoint", "create", "flights", "--root", str(root), "--target", str(tmp_path / "linked"))
    shutil.copytree(tmp_path / "linked", copy)
    victim = Path(lineage_of(root).checkpoint) / "state" / "0" / "0" / "4.snapshot"
    victim.write_bytes(b"?" * victim.stat().st_size)
    linked = run(tmp_path, "restore", "flights", str(tmp_path / "linked"), "--root", str(root), "--check", code=65)
    assert "missing or damaged" in linked, "a link shares the damaged bytes"
    run(tmp_path, "restore", "flights", str(copy), "--root", str(root))
    assert lineage_of(root).name == "lineage-000002"
    assert epoch_of(root) == 3


def test_a_query_of_plain_spark_is_taken_over_and_given_back(root: Path, tmp_path: Path) -> None:
    plain, new = tmp_path / "checkpoints" / "alerts", tmp_path / "new"
    shutil.copytree(lineage_of(root).checkpoint, plain)
    adopted = str(tmp_path / "export")
    run(tmp_path, "savepoint", "create", "flights", "--adopt", str(plain), "--query", "alerts", "--target", adopted)
    run(tmp_path, "restore", "flights", adopted, "--root", str(new))
    taken = lineage_of(new, query=QueryName("alerts"))
    assert spark_position(FILES, taken.checkpoint)[0] == 3
    again = tmp_path / "again"
    run(tmp_path, "savepoint", "export", adopted, "alerts", str(again))
    assert spark_position(FILES, str(again))[0] == 3
