"""Live values and the history of their changes, as their drivers report them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from coord_control.errors import GenerationSuperseded, JobNotFound
from coord_control.ids import Epoch
from coord_control.storage.records import LiveChangeRecord, LiveUse, LiveValueRecord
from coord_control.storage.retention import RetentionPolicy, prune
from coord_control.storage.store import ControlStore
from tests.records_kit import JOB, NOON
from tests.storage.kit import register

SCHEMA = {"type": "object", "properties": {"minutes": {"type": "integer"}}}


def value(version: int, name: str = "limits", **uses: LiveUse) -> LiveValueRecord:
    return LiveValueRecord(**_change(version, name), schema=SCHEMA, uses=uses)


def change(version: int, name: str = "limits") -> LiveChangeRecord:
    return LiveChangeRecord(**_change(version, name))


def _change(version: int, name: str) -> dict[str, Any]:
    at = NOON + timedelta(minutes=version)
    return {"name": name, "version": version, "value": {"minutes": 30 + version}, "by": "ada", "at": at}


def use(version: int, since: int, next_epoch: int | None = None) -> LiveUse:
    return LiveUse(version=version, since=Epoch(since), next_epoch=None if next_epoch is None else Epoch(next_epoch))


def test_a_job_has_its_live_values_and_so_has_the_overview_of_all(store: ControlStore) -> None:
    register(store)
    register(store, name="other")
    values = [value(2, "alpha", q=use(2, 7)), value(1, "beta")]
    store.live.save(JOB, 1, values)
    assert list(store.jobs.get(JOB).live_values) == values
    assert [each.job.live_values for each in store.fleets.read().jobs] == [tuple(values), ()]
    assert [each.job.live_values for each in store.fleets.read([JOB]).jobs] == [tuple(values)]
    assert store.jobs.get("other").live_values == ()


def test_the_history_tells_since_which_epoch_each_query_has_seen_a_change(store: ControlStore) -> None:
    register(store)
    store.live.save(JOB, 1, [value(1)])
    store.live.save(JOB, 1, [value(1, q=use(1, 0))])
    store.live.save(JOB, 1, [value(2, q=use(1, 0, next_epoch=5), r=use(2, 9))])
    store.live.save(JOB, 1, [value(2, q=use(2, 5), r=use(2, 9))])
    assert store.jobs.get(JOB).live_values == (value(2, q=use(2, 5), r=use(2, 9)),)
    assert [(each.version, each.value, each.since) for each in store.live.list(JOB)] == [
        (2, {"minutes": 32}, {"q": 5, "r": 9}),
        (1, {"minutes": 31}, {"q": 0}),
    ]


def test_changes_that_are_written_again_are_the_same_ones(store: ControlStore) -> None:
    register(store)
    changes = [change(version) for version in (1, 2, 3)]
    for _ in range(2):
        store.live.save(JOB, 1, [value(3, q=use(3, 5))], changes)
    assert [(each.version, each.since) for each in store.live.list(JOB)] == [(3, {"q": 5}), (2, {}), (1, {})]
    assert [each.version for each in store.live.list(JOB, limit=2)] == [3, 2]


def test_a_value_that_is_not_declared_any_more_keeps_its_history(store: ControlStore) -> None:
    register(store)
    store.live.save(JOB, 1, [value(1, "alpha"), value(1, "beta")])
    store.live.save(JOB, 1, [value(2, "beta")])
    assert [each.name for each in store.jobs.get(JOB).live_values] == ["beta"]
    assert [each.version for each in store.live.list(JOB, "alpha")] == [1]
    assert [each.version for each in store.live.list(JOB, "beta")] == [2, 1]
    assert len(store.live.list(JOB)) == 3


def test_a_driver_that_was_replaced_writes_nothing(store: ControlStore) -> None:
    register(store)
    store.live.save(JOB, 1, [value(1)])
    register(store, generation=2)
    with pytest.raises(GenerationSuperseded):
        store.live.save(JOB, 1, [value(2)])
    assert store.jobs.get(JOB).live_values == (value(1),)
    assert [each.version for each in store.live.list(JOB)] == [1]


def test_only_known_jobs_have_live_values_and_they_go_with_their_job(store: ControlStore) -> None:
    register(store, name="other")
    with pytest.raises(JobNotFound):
        store.live.list(JOB)
    register(store)
    with pytest.raises(JobNotFound):
        store.live.save("nothing", 1, [value(1)])
    store.live.save(JOB, 1, [value(1)])
    store.jobs.forget(JOB, force=True)
    register(store)
    assert (store.live.list(JOB), store.jobs.get(JOB).live_values) == ((), ())


def test_retention_keeps_the_newest_changes_and_always_what_is_accepted(store: ControlStore) -> None:
    register(store)
    store.live.save(JOB, 1, [value(9), value(1, "rare")], [change(version) for version in range(1, 9)])
    removed = prune(store.database, RetentionPolicy(live_changes=3), now=NOON + timedelta(days=1)).removed
    assert [each.version for each in store.live.list(JOB, "limits")] == [9, 8, 7]
    assert removed["live_changes"] == 6
    prune(store.database, RetentionPolicy(), now=NOON + timedelta(days=365))
    assert [(each.name, each.version) for each in store.live.list(JOB)] == [("limits", 9), ("rare", 1)]
    assert [each.version for each in store.jobs.get(JOB).live_values] == [9, 1]
