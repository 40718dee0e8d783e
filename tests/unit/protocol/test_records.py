"""Records are values; packing joins neighbours of one type and nothing else."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coord_control.protocol.records import EventBatch, count, pack, size
from tests.core_kit import ack, begin, event, events, run_started

singles = st.lists(st.builds(EventBatch, st.integers(0, 2), st.just(1), st.sampled_from([b"a", b"b", b"c"])))


def one_by_one(batches: tuple[EventBatch, ...]) -> list[tuple[int, bytes]]:
    return [(batch.type_index, payload) for batch in batches for payload in batch.payload.split(b",")]


def test_neighbours_of_one_type_are_joined() -> None:
    assert pack(events("a b c")) == (EventBatch(0, 3, b"a,b,c"),)


def test_a_change_of_type_keeps_its_place() -> None:
    mixed = (event("a", 0), event("b", 1), event("c", 0))
    assert pack(mixed) == mixed


def test_a_single_event_stays_the_same_object() -> None:
    lonely = event("a")
    assert pack([lonely])[0] is lonely


def test_nothing_packs_to_nothing() -> None:
    assert pack([]) == ()
    assert count([]) == 0


@given(singles)
def test_packing_keeps_every_event_in_order(batches: list[EventBatch]) -> None:
    packed = pack(batches)
    assert one_by_one(packed) == one_by_one(tuple(batches))
    assert count(packed) == len(batches)


@given(singles)
def test_packed_batches_have_no_neighbours_of_one_type_and_pack_to_themselves(batches: list[EventBatch]) -> None:
    packed = pack(batches)
    assert all(left.type_index != right.type_index for left, right in itertools.pairwise(packed))
    assert pack(packed) == packed


@pytest.mark.parametrize("record", [begin(1), ack(1), run_started(0, 1)], ids=lambda record: type(record).__name__)
def test_a_record_cannot_be_changed(record: object) -> None:
    field = dataclasses.fields(record)[0].name  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, field, None)


def test_a_begin_record_holds_nothing_back_unless_it_says_so() -> None:
    assert begin(1).held == {}


@given(singles)
def test_the_size_of_events_does_not_depend_on_how_they_are_joined(batches: list[EventBatch]) -> None:
    """Except for the commas between them."""
    packed = pack(batches)
    assert size(packed) == size(batches) + len(batches) - len(packed)
