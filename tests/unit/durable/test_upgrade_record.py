"""The record of a job's newest upgrade."""

from __future__ import annotations

import pytest

from coord_control.durable.job_folder.upgrade_record import (
    Program,
    UpgradeRecord,
    UpgradeStep,
    read_upgrade,
    write_upgrade,
)
from coord_control.errors import DamagedRecord, UnsupportedFormat
from tests.records_kit import NOON
from tests.simulation.memory_files import MemoryFiles

_RECORD = UpgradeRecord(
    id="12ab",
    job="flights",
    host="here",
    by="ada",
    began_at=NOON,
    old=Program(script="/srv/1.py", folder="/srv"),
    new=Program(script="/srv/2.py", args=("--fast",), folder="/srv", options=("--grace", "30s")),
    rollback=True,
    verify_seconds=600.0,
)


def test_it_is_read_as_it_was_written() -> None:
    files = MemoryFiles()
    assert read_upgrade(files, "/jobs/flights") is None
    for record in (
        _RECORD,
        _RECORD.model_copy(update={"step": UpgradeStep.VERIFY, "savepoint": "/s", "generation": 3}),
    ):
        write_upgrade(files, "/jobs/flights", record)
        assert read_upgrade(files, "/jobs/flights") == record


@pytest.mark.parametrize(
    ("content", "error"), [(b"{", DamagedRecord), (b'{"format_version": 2}', UnsupportedFormat), (b"{}", DamagedRecord)]
)
def test_one_that_cannot_be_read(content: bytes, error: type[Exception]) -> None:
    files = MemoryFiles()
    files.replace("/jobs/flights/upgrade.json", content)
    with pytest.raises(error):
        read_upgrade(files, "/jobs/flights")
