"""A silent stream wakes up for events that wait, on each release of Spark that has operators."""

from __future__ import annotations

from typing import Final

import pyspark
import pytest

from tests.patience import eventually
from tests.spark.conftest import MakeStream
from tests.spark.jobs import SCHEMA, Dialogue, MakeJob, Memory, Number, Report, apply, write

pytestmark = pytest.mark.spark

_RELEASE: Final = tuple(int(part) for part in pyspark.__version__.split(".")[:2])


@pytest.mark.skipif(_RELEASE < (4, 1), reason="operators need Spark 4.1")
def test_a_silent_stream_wakes_up_for_events_that_wait(make_job: MakeJob, file_stream: MakeStream) -> None:
    job, coordinator = make_job(), Dialogue()
    operator = job.operator("op", coordinator, parallelism=2, state=Memory, down=[Number], up=[Report], wake=True)
    job.start("q", write(apply(operator, file_stream(SCHEMA).read())))
    # Each number is answered by a report, which causes the next one.
    eventually(lambda: min((len(heard) for heard in coordinator.state.heard.values()), default=0) >= 3)
    job.stop()
    coordinator.check([])
