"""`coordctl` that waits to be killed: `python paused_command.py FOLDER STEP ARGUMENTS...`.

STEP is the number of objects that are copied before it waits, or a pattern for the object that it is to create next.
"""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

from coord_control.cli.main import app
from coord_control.durable.files.objects import ObjectFiles
from tests.kill.pausing import wait_to_be_killed


def pause(folder: Path, step: str) -> None:
    """Make this process wait at the step."""
    copied = itertools.count()
    copy, create = ObjectFiles._copy, ObjectFiles.create

    def copy_some(files: ObjectFiles, source: str, target: str, size: int) -> None:
        if step.isdigit() and next(copied) >= int(step):
            wait_to_be_killed(folder)
        copy(files, source, target, size)

    def create_unless(files: ObjectFiles, path: str, data: bytes) -> None:
        if not step.isdigit() and re.search(step, path):
            wait_to_be_killed(folder)
        create(files, path, data)

    for name, paused in (("_copy", copy_some), ("create", create_unless)):
        setattr(ObjectFiles, name, paused)


if __name__ == "__main__":
    pause(Path(sys.argv[1]), sys.argv[2])
    app(sys.argv[3:], prog_name="coordctl")
