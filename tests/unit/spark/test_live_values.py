"""The live values of a running job: in order, durable and verified before anything of them is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from coord_control.durable.files.filesystem import LocalFiles
from coord_control.durable.restore.live_log import LiveLog
from coord_control.errors import (
    Fenced,
    JobClosed,
    LiveModelInvalid,
    LiveValueInvalid,
    LiveValueNotFound,
    LiveVersionChanged,
    StoreUnavailable,
)
from coord_control.ids import Generation
from coord_control.protocol.records import LiveChanged, LiveFrozen
from coord_control.spark.live import jvm_side
from coord_control.spark.live import live_values as module
from coord_control.spark.live.live_values import LiveRequest, LiveValues
from tests.core_kit import FIRST_RUN, QUERY
from tests.patience import SECONDS, eventually
from tests.unit.spark.runtime_kit import Counting, RuntimeDriver


class Limits(BaseModel):
    minutes: float = 30.0


class Log(LiveLog):
    """A log whose writes fail as often as a test wants, each after it has become durable."""

    failures = 0
    writes = 0

    def change(self, name: str, value: bytes, *, key: str = "", by: str = "") -> LiveChanged:
        self.writes += 1
        done = super().change(name, value, key=key, by=by)
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("the log", "write", "simulated")
        return done


class Rig:
    """A job's live values, on a real runtime and a real storage; the JVM is not needed before an epoch is planned."""

    def __init__(self, folder: Path) -> None:
        self.driver = RuntimeDriver(Counting())
        self.log = Log(LocalFiles(), str(folder / "job"), Generation(1))
        self.fenced: Fenced | None = None
        self.verified = 0
        spark: Any = None
        self.values = LiveValues(
            "job",
            spark,
            lambda: self.log,
            self.driver.runtime,
            verify=self._verify,
            closed=lambda: JobClosed("job"),
        )
        self.values.declare("limits", Limits())

    def _verify(self) -> None:
        self.verified += 1
        if self.fenced is not None:
            raise self.fenced

    def open(self) -> None:
        self.values.open()
        session: Any = None
        self.values.begin(QUERY, "id", session)

    def set(self, key: str = "k", expect: int | None = None, **fields: Any) -> Any:
        return self.values.request(LiveRequest(name="limits", fields=fields, expect=expect, key=key, by="me"))

    def ask(self, epoch: int) -> str | None:
        return jvm_side._queries["id"](FIRST_RUN, epoch)["live_limits_minutes"]

    def close(self) -> None:
        self.values.close(SECONDS)
        self.driver.close()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    for name in ("register", "install"):
        monkeypatch.setattr(jvm_side, name, lambda *arguments: None)
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.001)
    rig = Rig(tmp_path)
    yield rig
    rig.close()


def test_a_change_is_seen_by_the_next_epoch(rig: Rig) -> None:
    rig.open()
    assert rig.ask(0) == "30.0"
    facts = rig.set(minutes=45).result(SECONDS)
    assert (facts.version, facts.value, facts.by) == (2, b'{"minutes":45.0}', "me")
    assert (facts.uses[QUERY].since, facts.uses[QUERY].next_epoch) == (0, 1)
    assert rig.ask(0) == "30.0"
    assert rig.ask(1) == "45.0"
    assert rig.values.facts("limits").uses[QUERY].next_epoch is None
    assert {name: value.version for name, value in rig.values.values().items()} == {"limits": 2}


def test_an_epoch_is_answered_when_what_it_has_frozen_is_durable(rig: Rig) -> None:
    rig.open()
    rig.driver.hold_writes()
    answer = rig.driver.in_thread(rig.ask, 0)
    rig.driver.wait_for_write()
    assert not answer.done()
    assert not rig.driver.log
    rig.driver.open_for_writes.set()
    assert answer.result(SECONDS) == "30.0"
    assert [type(record) for record in rig.driver.log] == [LiveFrozen]


def test_an_answer_without_a_write_rests_on_a_check_of_the_generation(rig: Rig) -> None:
    rig.open()
    rig.ask(0)
    rig.driver.is_fresh = False
    rig.driver.fenced_by = Fenced("job", Generation(1), 2)
    with pytest.raises(Fenced):
        rig.ask(1)


def test_a_job_that_closes_leaves_the_question_of_the_one_that_has_followed_it(rig: Rig) -> None:
    rig.open()
    successor = jvm_side._queries["id"]

    def question(run: str, epoch: int) -> dict[str, str | None]:
        return {}

    jvm_side.connect("id", question)
    rig.values.close(SECONDS)
    assert jvm_side._queries.pop("id") is question is not successor


def test_an_accepted_change_succeeds_although_nobody_knows_what_the_queries_have_seen(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.open()
    rig.ask(0)
    seen = rig.set(minutes=40).result(SECONDS).uses

    def unknown(self: LiveValues) -> Any:
        raise StoreUnavailable("the log", "write", "simulated")

    monkeypatch.setattr(LiveValues, "_in_force", unknown)
    facts = rig.set(key="other", minutes=45).result(SECONDS)
    assert (facts.version, facts.value) == (3, b'{"minutes":45.0}')
    assert facts.uses.keys() == seen.keys()


def test_a_change_of_a_driver_that_was_replaced_is_not_seen(rig: Rig) -> None:
    rig.open()
    rig.fenced = Fenced("job", Generation(1), 2)
    with pytest.raises(Fenced):
        rig.set(minutes=45).result(SECONDS)
    assert rig.ask(0) == "30.0"
    assert rig.values.values()["limits"].version == 1


def test_the_claim_is_verified_after_each_change_and_after_the_log_was_opened(rig: Rig) -> None:
    rig.open()
    assert rig.verified == 1
    rig.set(minutes=45).result(SECONDS)
    assert rig.verified == 2


def test_a_write_whose_end_is_not_known_is_repeated_and_makes_one_change(rig: Rig) -> None:
    rig.open()
    rig.log.failures = 3
    later = rig.set("first", minutes=45), rig.set("second", minutes=46)
    assert [future.result(SECONDS).version for future in later] == [2, 3]
    assert rig.log.writes == 5
    assert [change.version for change in rig.values.history("limits")] == [1, 2, 3]


def test_the_same_key_makes_one_change(rig: Rig) -> None:
    rig.open()
    first, again = rig.set("same", minutes=45), rig.set("same", minutes=46, expect=1)
    assert first.result(SECONDS).version == again.result(SECONDS).version == 2
    assert rig.ask(0) == "45.0"


@pytest.mark.parametrize(
    ("request_of", "error"),
    [
        (lambda rig: rig.set(minutes="soon"), LiveValueInvalid),
        (lambda rig: rig.set(hours=1), LiveValueInvalid),
        (lambda rig: rig.set(minutes=45, expect=2), LiveVersionChanged),
        (
            lambda rig: rig.values.request(LiveRequest(name="other", fields={}, key="k", by="")),
            LiveValueNotFound,
        ),
    ],
)
def test_a_refusal_changes_nothing(rig: Rig, request_of: Callable[[Rig], Any], error: type[Exception]) -> None:
    rig.open()
    with pytest.raises(error):
        request_of(rig).result(SECONDS)
    assert rig.log.writes == 0
    assert rig.set(minutes=45, expect=1).result(SECONDS).version == 2


def test_requests_wait_for_the_first_query_and_come_in_their_order(rig: Rig) -> None:
    waiting = [rig.set(str(number), minutes=number) for number in range(5)]
    assert not waiting[0].done()
    with pytest.raises(LiveModelInvalid, match="no value before"):
        rig.values.facts("limits")
    rig.open()
    assert [future.result(SECONDS).version for future in waiting] == [2, 3, 4, 5, 6]
    assert rig.ask(0) == "4.0"


def test_in_a_job_without_live_values_requests_are_refused_as_soon_as_it_has_begun(rig: Rig) -> None:
    rig.values._models.clear()
    waiting = rig.set(minutes=45)
    rig.values.open()
    for future in (waiting, rig.set(minutes=45)):
        with pytest.raises(LiveValueNotFound):
            future.result(SECONDS)
    with pytest.raises(LiveModelInvalid, match="before the first query"):
        rig.values.declare("limits", Limits())


def test_a_change_that_may_be_durable_at_the_end_is_not_said_to_be_refused(rig: Rig) -> None:
    rig.open()
    rig.log.failures = 1_000_000
    future = rig.set(minutes=45)
    eventually(lambda: rig.log.writes > 0)
    rig.values.close(SECONDS)
    with pytest.raises(StoreUnavailable):
        future.result(SECONDS)


@pytest.mark.parametrize("is_open", [True, False])
def test_after_the_end_every_request_is_refused(rig: Rig, is_open: bool) -> None:
    if is_open:
        rig.open()
    waiting = None if is_open else rig.set(minutes=45)
    rig.values.close(SECONDS)
    for future in (waiting, rig.set(minutes=45)):
        if future is not None:
            with pytest.raises(JobClosed):
                future.result(SECONDS)
    assert "id" not in jvm_side._queries
