from __future__ import annotations

import base64
import zlib
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coord_control.dagster.feed.cursor import CatchUp, Cursor, JobMark, Waiting

_NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)

_texts = st.text(max_size=20)
_numbers = st.integers(min_value=0, max_value=2**53)
_times = st.datetimes(min_value=datetime(2000, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - the zone is given beside it
_cursors = st.builds(
    Cursor,
    sequence=_numbers,
    at=_times,
    floor=_times,
    waiting=st.lists(st.builds(Waiting, _numbers, _texts, _texts), max_size=3).map(tuple),
    catch_up=st.none() | st.builds(CatchUp, st.tuples(_texts), _numbers, _numbers, _times),
    observed=_texts,
    jobs=st.dictionaries(
        _texts, st.builds(JobMark, st.booleans(), _texts, _numbers, st.dictionaries(_texts, _numbers)), max_size=80
    ),
)


@given(_cursors)
def test_a_cursor_is_the_same_after_it_was_text(cursor: Cursor) -> None:
    assert Cursor.decode(cursor.encode()) == cursor


def test_with_few_jobs_people_can_read_it() -> None:
    text = Cursor(sequence=17, at=_NOON, floor=_NOON, jobs={"flights": JobMark(True, "ppppppp", 5)}).encode()

    assert '"sequence":17' in text
    assert '"flights"' in text


def test_with_a_thousand_jobs_it_is_small() -> None:
    marks = {f"job-{each:04}": JobMark(True, "ppppppp", 1795272114 + each, {"q": each * 7}) for each in range(1000)}
    cursor = Cursor(sequence=17, at=_NOON, floor=_NOON, jobs=marks)
    text = cursor.encode()

    assert len(text) < 16_000
    assert Cursor.decode(text) == cursor


def _packed(text: bytes) -> str:
    return "zlib:" + base64.b64encode(text).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "17",
        "[]",
        "{}",
        "nonsense",
        "zlib:",
        "zlib:%%%",
        _packed(b"nonsense"),
        _packed(zlib.compress(b"nonsense")),
        _packed(zlib.compress(b"{}" * 5000)[:10]),
        Cursor(sequence=1, at=_NOON, floor=_NOON).encode().replace('"version":1', '"version":2'),
        Cursor(sequence=1, at=_NOON, floor=_NOON).encode()[:-3],
    ],
)
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a cursor"):
        Cursor.decode(text)
