"""What a program says about where its queries' state is, and the names that Spark gets for them; without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from coord_control.durable.job_folder.lineage import open_lineage
from coord_control.errors import CheckpointLocationConflict
from coord_control.ids import QueryName
from coord_control.spark.job import query_starts
from coord_control.spark.job.query_starts import QueryStart, QueryStarts
from coord_control.spark.queries import writers
from coord_control.spark.queries.writers import spark_name
from tests.simulation.memory_files import MemoryFiles

JOB = "/jobs/flights"
QUERY = QueryName("q")


@pytest.mark.parametrize(
    ("adopted", "own", "by_session", "declared", "is_refused"),
    [
        (None, None, None, None, False),
        (None, "/plain", None, None, True),
        (None, "/plain", None, "/elsewhere", True),
        (None, "/plain", None, "file:///plain/", False),
        (None, None, "/plain", None, True),
        (None, None, "/never-ran", None, False),
        (None, None, "/plain", "/elsewhere", False),  # the program knows better than its session
        ("/plain", "/plain", None, None, False),
        ("/plain", "/other", None, None, True),
        ("/other", None, "/plain", None, False),
    ],
)
def test_a_state_that_the_writer_or_the_session_names_is_not_left_behind(
    monkeypatch: pytest.MonkeyPatch,
    adopted: str | None,
    own: str | None,
    by_session: str | None,
    declared: str | None,
    is_refused: bool,
) -> None:
    """``adopted``: by an earlier driver."""
    files = MemoryFiles()
    for location in ("/plain", "/other"):
        files.create(f"{location}/metadata", b'{"id":"6f1c"}')
    if adopted is not None:
        open_lineage(files, f"{JOB}/queries/{QUERY}", QUERY, {}, adopted)
    monkeypatch.setattr(query_starts, "own_checkpoint", lambda writer, query: (own, by_session))
    place = SimpleNamespace(files=files, folder=JOB, storage=lambda path: files)
    nothing: Any = SimpleNamespace(verify=None, verify_alone=None)
    launch: Any = SimpleNamespace(place=place, declared=nothing, queries={}, spark=nothing, owner=nothing)
    starts = QueryStarts(launch, nothing, None)
    start = QueryStart(QUERY, nothing, (), declared, None)
    if not is_refused:
        starts._check_own_location(start)
        return
    with pytest.raises(CheckpointLocationConflict) as refused:
        starts._check_own_location(start)
    assert refused.value.own == (own or by_session)


def test_queries_of_one_name_in_two_jobs_have_two_names_in_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "_field", lambda writer, name: "parquet")
    pairs = [("flights", "q"), ("trains", "q"), ("a.b", "c"), ("a", "b.c")]
    names = [spark_name(job, QueryName(query), cast(Any, None)) for job, query in pairs]
    assert names == ["flights:q", "trains:q", "a.b:c", "a:b.c"]
