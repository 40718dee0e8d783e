from __future__ import annotations

import subprocess
import sys
import textwrap

import msgspec
import pytest

from coord_control.conversion import convert
from coord_control.storage.records import AgentMetrics

#: Eight threads that use a type for the first time, which takes a while.
_FIRST_USE = """
    import threading
    import time

    from msgspec import _utils

    from coord_control.conversion import convert
    from coord_control.storage.records import LiveStatus

    annotations = _utils.get_class_annotations

    def slowly(*arguments):
        time.sleep(0.02)
        return annotations(*arguments)

    _utils.get_class_annotations = slowly
    begin = threading.Barrier(8)

    def use():
        begin.wait()
        assert convert({"queries": [{"name": "q", "state": "running"}]}, LiveStatus).queries[0].name == "q"

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("all have it")
"""


def test_threads_that_use_a_type_for_the_first_time_do_not_crash_the_process() -> None:
    command = [sys.executable, "-c", textwrap.dedent(_FIRST_USE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "all have it\n"), done.stderr


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        convert({"buffered": "many"}, AgentMetrics)
