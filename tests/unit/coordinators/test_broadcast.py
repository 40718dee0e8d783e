"""`BroadcastConfig` by itself: what it sends, and what its snapshots say was sent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from coord_control.coordinators import BroadcastConfig
from coord_control.errors import SubtaskNotAllowed


class Limits(BaseModel):
    minutes: int


class Channel:
    """The context of one incarnation, as far as this coordinator uses it."""

    operator = "limits"
    parallelism = 2

    def __init__(self) -> None:
        self.sent: list[int] = []

    def broadcast(self, event: BaseModel) -> None:
        assert isinstance(event, Limits)
        self.sent.append(event.minutes)

    def send(self, subtask: int, event: BaseModel) -> None:
        raise AssertionError("a version goes to all subtasks")

    def control_event_applied(self) -> None:
        raise AssertionError("what is broadcast counts by itself")

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        raise AssertionError("nothing is deferred")

    def run_in_background(self, function: Callable[[], Any], then: Callable[[Any], object] | None = None) -> None:
        raise AssertionError("nothing takes long")

    def fail_job(self, error: BaseException) -> None:
        raise AssertionError("nothing fails")


class Answer:
    def __init__(self) -> None:
        self.data = b""

    def complete(self, data: bytes) -> None:
        self.data = data

    def fail(self, error: BaseException) -> None:
        raise error


@pytest.fixture
def channel() -> Channel:
    return Channel()


@pytest.fixture
def config(channel: Channel) -> BroadcastConfig[Limits]:
    config = BroadcastConfig(Limits(minutes=30))
    config.context = channel
    return config


def _snapshot(config: BroadcastConfig[Limits]) -> bytes:
    answer = Answer()
    config.checkpoint_coordinator(1, answer)
    return answer.data


def test_the_first_version_is_given_once(config: BroadcastConfig[Limits], channel: Channel) -> None:
    config.start()
    config.update(Limits(minutes=30))

    assert channel.sent == [30]


def test_an_update_is_sent_and_is_part_of_the_next_snapshot(config: BroadcastConfig[Limits], channel: Channel) -> None:
    config.start()
    config.update(Limits(minutes=45))

    assert channel.sent == [30, 45]
    assert Limits.model_validate_json(_snapshot(config)) == config.current == Limits(minutes=45)


def test_an_update_before_the_start_replaces_the_first_version(
    config: BroadcastConfig[Limits], channel: Channel
) -> None:
    config.update(Limits(minutes=45))
    config.start()

    assert channel.sent == [45]


def test_a_restored_version_is_not_sent_again(config: BroadcastConfig[Limits], channel: Channel) -> None:
    config.reset_to_checkpoint(1, b'{"minutes": 60}')
    config.start()

    assert channel.sent == []
    assert config.current == Limits(minutes=60)


def test_a_reset_to_the_beginning_gives_the_first_version_again(config: BroadcastConfig[Limits]) -> None:
    config.start()
    config.update(Limits(minutes=45))
    renewed = config.context = Channel()
    config.reset_to_checkpoint(-1, None)

    assert renewed.sent == [30]
    assert config.current == Limits(minutes=30)


def test_an_update_that_a_reset_overtakes_is_not_sent_through_the_renewed_context(
    config: BroadcastConfig[Limits],
) -> None:
    config.start()
    saved = _snapshot(config)
    renewed = config.context = Channel()
    config.update(Limits(minutes=45))  # another thread, before the reset has begun
    config.reset_to_checkpoint(1, saved)

    assert config.current == Limits(minutes=30)
    assert renewed.sent == [], "the subtasks would have a version that no snapshot knows"


def test_an_update_during_a_snapshot_comes_after_it(config: BroadcastConfig[Limits], channel: Channel) -> None:
    config.start()
    at_the_snapshot_point: list[list[int]] = []
    update = threading.Thread(target=config.update, args=(Limits(minutes=45),))

    class Late(Answer):
        def complete(self, data: bytes) -> None:
            super().complete(data)
            update.start()
            update.join(0.05)  # without the lock it would be over by now
            at_the_snapshot_point.append(list(channel.sent))

    answer = Late()
    config.checkpoint_coordinator(1, answer)
    update.join()

    assert at_the_snapshot_point == [[30]]
    assert Limits.model_validate_json(answer.data) == Limits(minutes=30)
    assert channel.sent == [30, 45]


def test_a_version_that_cannot_be_sent_changes_nothing(config: BroadcastConfig[Limits]) -> None:
    class Refusing(Channel):
        def broadcast(self, event: BaseModel) -> None:
            raise ValueError("too large")

    config.start()
    config.context = Refusing()
    config.reset_to_checkpoint(1, b'{"minutes": 30}')
    with pytest.raises(ValueError, match="too large"):
        config.update(Limits(minutes=45))

    assert config.current == Limits(minutes=30)


def test_a_version_from_outside_is_an_update(config: BroadcastConfig[Limits], channel: Channel) -> None:
    config.start()
    config.handle_control_event(Limits(minutes=45), None)
    assert config.current == Limits(minutes=45)
    assert channel.sent == [30, 45]


def test_a_version_for_one_subtask_is_refused(config: BroadcastConfig[Limits], channel: Channel) -> None:
    config.start()
    for refuse in (config.check_control_event, config.handle_control_event):
        with pytest.raises(SubtaskNotAllowed, match="without a subtask"):
            refuse(Limits(minutes=45), 1)
    assert config.current == Limits(minutes=30)
    assert channel.sent == [30]


def test_other_events_from_outside_are_passed_on(config: BroadcastConfig[Limits]) -> None:
    class Other(BaseModel):
        pass

    class Passing(Channel):
        def broadcast(self, event: BaseModel) -> None:
            assert isinstance(event, Other)
            self.sent.append(-1)

    config.context = channel = Passing()
    config.handle_control_event(Other(), None)
    assert channel.sent == [-1]
