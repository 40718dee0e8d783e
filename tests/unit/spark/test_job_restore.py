"""A program that asks for a restore which has taken place."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.restore.prepared_restore import prepare_restore
from coord_control.durable.restore.request import RestoreRequest
from coord_control.ids import Generation
from coord_control.spark.job.job_restore import JobRestore
from tests.unit.durable.restore_kit import put_checkpoint

NO_SESSION: Any = None  # local folders take none


@pytest.mark.parametrize(("was_asked", "is_asked"), [(False, True), (True, True), (False, False), (True, False)])
def test_sinks_that_an_earlier_restore_has_left_are_not_passed_over_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, was_asked: bool, is_asked: bool
) -> None:
    """Fault: the log only said that the job was restored before, although now its sinks were to go back as well."""
    root, files = f"file:{tmp_path}", LocalFiles()
    source = put_checkpoint(files, f"{root}/saved")
    prepare_restore(
        files,
        f"{root}/flights",
        source,
        generation=Generation(4),
        verify_claim=lambda: None,
        ref=source.path,
        is_fork=False,
        roll_back_sinks=was_asked,
    ).commit()
    request = RestoreRequest(ref=source.path, roll_back_sinks=is_asked)
    with caplog.at_level(logging.INFO, "coord_control.job"):
        assert JobRestore.wanted("flights", NO_SESSION, root, request) is None
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == (is_asked and not was_asked)
    assert all(f"coordctl restore flights {source.path} --roll-back-sinks" in each for each in warnings)


def test_a_name_that_means_another_checkpoint_now_is_not_restored_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Fault: a driver that was restarted after a crash went back to a savepoint that had got the label meanwhile."""
    root, files = f"file:{tmp_path}", LocalFiles()
    first = put_checkpoint(files, f"{root}/saved")
    verify, job = (lambda: None), f"{root}/flights"
    prepare_restore(
        files,
        job,
        first,
        generation=Generation(4),
        verify_claim=verify,
        ref=first.path,
        is_fork=False,
        by_program=True,
    ).commit()
    put_checkpoint(files, first.path, checkpoint=8)
    with caplog.at_level(logging.WARNING, "coord_control.job"):
        assert JobRestore.wanted("flights", NO_SESSION, root, RestoreRequest(ref=first.path)) is None

    [warning] = [each.getMessage() for each in caplog.records]
    assert "NOT restored" in warning
    assert f"coordctl restore flights {first.path}" in warning
