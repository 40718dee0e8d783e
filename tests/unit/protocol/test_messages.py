"""A batch: three lists, executed in the order in which they stand."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from coord_control.ids import BarrierId
from coord_control.protocol import messages
from coord_control.protocol.messages import Accepted, Acknowledge, Answered, Batch, Measurements, Persist, SubtaskReset
from tests.core_kit import OP, QUERY, ack, attempt


def test_the_fields_of_a_batch_stand_in_the_order_of_execution() -> None:
    assert [field.name for field in dataclasses.fields(Batch)] == ["persist", "answers", "notices"]


def test_an_empty_batch_is_false() -> None:
    assert not Batch()


@pytest.mark.parametrize(
    "batch",
    [
        Batch(persist=[Persist(QUERY, ack(0))]),
        Batch(answers=[Answered("token", Accepted())]),
        Batch(notices=[SubtaskReset(OP, attempt().subtask, BarrierId(-1))]),
    ],
    ids=["persist", "answers", "notices"],
)
def test_a_batch_with_anything_in_it_is_true(batch: Batch) -> None:
    assert batch


def test_an_ack_changes_nothing_unless_it_says_so() -> None:
    message = Acknowledge(attempt(), None)
    assert (message.outbox, message.measurements) == ((), Measurements(0, 0, 0.0))


@pytest.mark.parametrize("kind", [*typing.get_args(messages.Notice), *typing.get_args(messages.Answer)])
def test_every_notice_and_answer_is_a_frozen_value_that_is_exported(kind: type) -> None:
    assert kind.__name__ in messages.__all__
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert kind.__hash__ is not None
