"""What a query's sources had been read up to, for people."""

from __future__ import annotations

from typing import Any

import pytest

from coord_control.durable.checkpoints.metadata_file import QuerySnapshot
from coord_control.durable.checkpoints.query_snapshot import offsets_by_source
from coord_control.ids import Epoch


@pytest.mark.parametrize(
    ("sources", "offsets", "expected"),
    [
        (("0", "1"), ({"logOffset": 3}, None), {"0": {"logOffset": 3}, "1": None}),
        (("flights", "delays"), (7, "opaque"), {"flights": 7, "delays": "opaque"}),
        (("same", "same"), (1, 2), {"0": 1, "1": 2}),
        (("same", "same", "other"), (1, 2), {"0": 1, "1": 2}),
        (("too", "many"), (1,), {"0": 1}),
        ((), (1,), {"0": 1}),
        ((), (), {}),
    ],
)
def test_offsets_have_the_names_of_their_sources_or_numbers(
    sources: tuple[Any, ...], offsets: tuple[Any, ...], expected: dict[str, Any]
) -> None:
    snapshot = QuerySnapshot(
        query_id="id", epoch=Epoch(1), lineage="l", spark_version="4", sources=sources, offsets=offsets
    )
    assert offsets_by_source(snapshot) == expected
