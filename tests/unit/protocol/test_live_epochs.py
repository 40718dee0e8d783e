"""Live values: frozen per epoch, the same for whoever runs it again, and written down only when they change."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from coord_control.errors import LiveValuesRefused
from coord_control.ids import NO_EPOCH, Epoch, Generation, QueryName, RunId
from coord_control.protocol.job import JobCore
from coord_control.protocol.live_epochs import frozen_in, recover_live
from coord_control.protocol.liveness import live
from coord_control.protocol.records import LiveChanged, LiveFrozen, LiveInForce, LiveValue, Record, RunStarted
from coord_control.protocol.recovery import Facts, History, recovery_marker
from tests.core_kit import QUERY, QUERY_ID

RUN = RunId("run")
OTHER = QueryName("other")


def changed(name: str, version: int, restore: int = 0, key: str = "") -> LiveChanged:
    return LiveChanged(name, version, b"%d" % version, restore, key)


def frozen(epoch: int, version: int = 1, since: int | None = None) -> LiveFrozen:
    value = LiveInForce(version, b"%d" % version, Epoch(epoch if since is None else since))
    return LiveFrozen(Epoch(epoch), {"a": value})


class Query:
    """One query of a core, its log and Spark's."""

    def __init__(self, log: list[Record] | None = None, committed: int = -1, planned: int = -1) -> None:
        self.log = [] if log is None else log
        self.core = JobCore(Generation(1))
        self.core.add_query(QUERY, QUERY_ID, [])
        self.core.start_run(QUERY, Facts(tuple(self.log), Epoch(committed), Epoch(planned)), 0.0)
        self.core.take()

    def accept(self, version: int, name: str = "a") -> None:
        self.core.live_changed(name, LiveValue(version, b"%d" % version))

    def freeze(self, epoch: int) -> Mapping[str, LiveInForce]:
        values = self.core.freeze(QUERY, RUN, Epoch(epoch))
        self.log += [persist.record for persist in self.core.take().persist]
        return values

    def version(self, epoch: int) -> int:
        return self.freeze(epoch)["a"].version


def test_an_epoch_keeps_the_value_that_it_has_asked_for_first() -> None:
    query = Query()
    query.accept(1)
    assert query.version(0) == 1
    query.accept(2)
    assert query.version(0) == 1
    assert query.version(1) == 2


def test_the_record_is_durable_before_the_answer_and_tells_since_when() -> None:
    query = Query()
    query.accept(1)
    query.freeze(0)
    query.accept(2)
    query.freeze(3)
    assert query.log == [frozen(0, 1), frozen(3, 2)]


def test_an_epoch_without_a_change_writes_nothing() -> None:
    query = Query()
    query.accept(1)
    for epoch in range(4):
        query.freeze(epoch)
    assert query.log == [frozen(0)]
    assert query.freeze(4)["a"].since == 0


def test_a_planned_epoch_sees_after_a_crash_what_it_has_seen() -> None:
    query = Query([frozen(0, 1), frozen(2, 2)], committed=1, planned=2)
    query.accept(3)
    assert query.version(2) == 2
    assert query.version(3) == 3
    assert query.log[2:] == [frozen(3, 3)]


def test_a_planned_epoch_without_a_record_has_seen_what_the_record_before_it_says() -> None:
    query = Query([frozen(0, 1)], committed=3, planned=4)
    query.accept(2)
    assert query.version(4) == 1
    assert query.version(5) == 2


def test_a_planned_epoch_of_a_query_that_has_never_asked_gets_what_is_accepted_durably() -> None:
    query = Query([], committed=3, planned=4)
    query.accept(2)
    assert query.version(4) == 2
    assert query.log == [frozen(4, 2)]


def test_a_value_that_was_declared_later_is_added_to_a_planned_epoch_durably() -> None:
    query = Query([frozen(4, 1)], committed=3, planned=4)
    query.accept(2)
    query.accept(7, "b")
    values = query.freeze(4)
    assert (values["a"].version, values["b"].version) == (1, 7)
    assert query.log[1:] == [LiveFrozen(Epoch(4), values)]
    assert query.freeze(4) == values
    assert len(query.log) == 2


def test_the_first_epoch_after_a_commit_sees_what_is_accepted() -> None:
    query = Query([frozen(0, 1)], committed=0, planned=0)
    query.accept(2)
    assert query.version(1) == 2


@pytest.mark.parametrize(("committed", "planned", "epoch"), [(2, 2, 2), (2, 2, 1), (2, 3, 2)])
def test_an_epoch_that_is_over_is_refused(committed: int, planned: int, epoch: int) -> None:
    query = Query([frozen(0, 1)], committed, planned)
    query.accept(1)
    with pytest.raises(LiveValuesRefused, match="it is over"):
        query.freeze(epoch)


def test_an_epoch_before_one_that_was_planned_is_refused() -> None:
    query = Query()
    query.accept(1)
    query.freeze(1)
    with pytest.raises(LiveValuesRefused):
        query.freeze(0)


def test_a_run_that_has_ended_is_refused_also_when_the_query_runs_again() -> None:
    query = Query()
    query.accept(1)
    query.freeze(0)
    query.core.end_run(QUERY, RUN, 0.0)
    with pytest.raises(LiveValuesRefused, match="ended"):
        query.freeze(0)
    query.core.start_run(QUERY, Facts(tuple(query.log), NO_EPOCH, Epoch(0)), 0.0)
    with pytest.raises(LiveValuesRefused, match="ended"):
        query.freeze(0)


def test_a_restart_in_place_recovers_from_what_is_durable() -> None:
    query = Query()
    query.accept(1)
    query.freeze(0)
    query.accept(2)
    query.core.end_run(QUERY, RUN, 0.0)
    query.core.start_run(QUERY, Facts(tuple(query.log), NO_EPOCH, Epoch(0)), 0.0)
    assert query.core.freeze(QUERY, RunId("next"), Epoch(0))["a"].version == 1


def test_what_was_frozen_for_an_epoch_that_spark_has_lost_is_void() -> None:
    facts = Facts((frozen(0, 1), frozen(5, 2)), Epoch(3), Epoch(4))
    marker = recovery_marker(facts, Generation(2))
    assert marker == RunStarted(Generation(2), Epoch(4), Epoch(4))
    log = [*facts.records, marker]
    assert set(History.of(log).frozen) == {0}
    query = Query(log, committed=3, planned=4)
    query.accept(3)
    assert query.version(4) == 1
    assert query.version(5) == 3


def test_two_queries_freeze_in_epochs_of_their_own_pace() -> None:
    core = JobCore(Generation(1))
    for name in (QUERY, OTHER):
        core.add_query(name, name, [])
        core.start_run(name, Facts((), NO_EPOCH, NO_EPOCH), 0.0)
    core.live_changed("a", LiveValue(1, b"1"))
    assert core.freeze(QUERY, RUN, Epoch(0))["a"] == LiveInForce(1, b"1", Epoch(0))
    assert core.freeze(OTHER, RUN, Epoch(7))["a"] == LiveInForce(1, b"1", Epoch(7))
    told = core.live_changed("a", LiveValue(2, b"2"))
    assert {name: (live.next_epoch, live.values["a"].version) for name, live in told.items()} == {
        QUERY: (1, 1),
        OTHER: (8, 1),
    }
    assert core.freeze(OTHER, RUN, Epoch(8))["a"].version == 2
    assert core.freeze(QUERY, RUN, Epoch(0))["a"].version == 1
    assert {persist.query for persist in core.take().persist} == {QUERY, OTHER}


def test_a_query_that_has_never_asked_uses_none() -> None:
    query = Query()
    query.accept(1)
    assert query.core.live_values() == {}
    query.freeze(0)
    assert set(query.core.live_values()) == {QUERY}


def test_a_cut_at_rest_holds_the_values_of_the_planned_epoch_only() -> None:
    records = (frozen(0, 1), frozen(4, 2))
    assert frozen_in(Facts(records, Epoch(4), Epoch(4))) is None
    assert frozen_in(Facts((), Epoch(3), Epoch(4))) is None
    assert frozen_in(Facts(records, Epoch(3), Epoch(4))) == frozen(4, 2).values
    assert frozen_in(Facts(records, Epoch(2), Epoch(3))) == frozen(0, 1).values


def test_compaction_keeps_the_newest_record_below_the_horizon_and_all_above_it() -> None:
    records = [frozen(0, 1), frozen(3, 2), frozen(5, 3), frozen(9, 4)]
    kept = live(records, Epoch(10), 4)
    for committed in range(5, 11):
        for planned in (committed, committed + 1):
            whole, thin = (Facts(tuple(each), Epoch(committed), Epoch(planned)) for each in (records, kept))
            assert recover_live(whole) == recover_live(thin)
    assert len(live(records, Epoch(20), 4)) == 1


def test_compaction_keeps_the_newest_change_of_every_restore_and_drops_what_is_old() -> None:
    old = [changed("a", 1), changed("a", 2, restore=1), changed("b", 1)]
    new = [changed("a", version, restore=2) for version in range(3, 1103)]
    kept = live([*old, *new], Epoch(0), 0)
    assert kept[:3] == old
    assert kept[3:] == new[100:]
