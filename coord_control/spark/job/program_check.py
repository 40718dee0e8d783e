"""Checking a program against a checkpoint while another driver runs the job (``coordctl upgrade``).

The program is run as usual, but its job is restored from the checkpoint in a scratch folder, under its own name and
without control plane; and when the program has started all of its queries, it ends instead of running them. So all
checks of a restore are made (:mod:`.query_starts`), and nothing outside the scratch folder is claimed or changed. What
the program itself does before its queries are started, it does.

Threads: those of the job's methods, which take turns.
"""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path
from typing import NoReturn

from pydantic import BaseModel, ConfigDict

from coord_control.driver_process import CHECK_VARIABLE
from coord_control.durable.restore.request import RestoreRequest
from coord_control.errors import AnotherJobChecked
from coord_control.exit_codes import ExitCode
from coord_control.spark.hadoop_files import absolute

__all__ = ["ProgramCheck", "program_check", "root_of"]

_log = logging.getLogger("coord_control.job")


class ProgramCheck(BaseModel):
    """What the program is to be compared with.

    Attributes:
        job: the job that is to be upgraded.
        root: the scratch folder.
        checkpoint: its path.
        report: the local file that is written when the program fits.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    job: str
    root: str
    checkpoint: str
    allow_non_restored_state: bool = False
    report: str

    def request(self) -> RestoreRequest:
        """Return the restore that is tried.

        What the sinks hold is not known in a scratch folder, and the job has read on since the checkpoint.
        """
        return RestoreRequest(
            ref=self.checkpoint,
            allow_non_restored_state=self.allow_non_restored_state,
            allow_missing_input=True,
            accept_skipped_epochs=True,
            verify=False,
        )

    def passed(self) -> NoReturn:
        """End the program: all of its queries fit.

        Raises:
            SystemExit: always.
        """
        _log.info("= job %s: all queries fit %s; they are not started, this was a check", self.job, self.checkpoint)
        Path(self.report).write_text("fits")
        raise SystemExit(ExitCode.FINISHED)


@functools.cache
def program_check() -> ProgramCheck | None:
    """Return the check that this process was started for, or None."""
    text = os.environ.get(CHECK_VARIABLE)
    return None if not text else ProgramCheck.model_validate_json(text)


def root_of(job: str, root: str) -> str:
    """Return the folder for the state of all jobs: the program's, or the scratch folder of a check.

    Raises:
        AnotherJobChecked: the program has another job than the one that is to be checked.
    """
    check = program_check()
    if check is None:
        return absolute(root)
    if job != check.job:
        raise AnotherJobChecked(job, check.job)
    return check.root
