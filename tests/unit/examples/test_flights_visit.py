"""When the demo may end: only a visit in a terminal keeps its job running."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from examples.flights.server import DagsterServer
from examples.flights.visit import Visit


@pytest.mark.parametrize("stays", [False, True])
def test_a_job_whose_savepoint_is_taken_is_kept_running_only_in_a_terminal(*, stays: bool) -> None:
    no_server = cast("DagsterServer", None)  # a visit that has not begun asks nothing of it
    visit = Visit(no_server, "sqlite://", print, threading.Event(), stays=stays)
    assert visit.wants_job is stays

    visit.problem = "Dagster has ended"
    assert not visit.wants_job
