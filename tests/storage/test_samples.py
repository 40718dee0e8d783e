"""Samples: rolled up exactly once however often it is done, also when some come late."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from coord_control.errors import JobNotFound
from coord_control.storage.records import OperatorSample, QuerySample
from coord_control.storage.store import ControlStore
from tests.records_kit import JOB
from tests.storage.kit import register

ALWAYS = datetime(2020, 1, 1, tzinfo=UTC)


def query_sample(at: datetime, **values: Any) -> QuerySample:
    return QuerySample(
        **{
            "job": JOB,
            "query": "q",
            "at": at,
            "epochs": 1,
            "rows": 10,
            "rows_per_second": 2.0,
            "lag_seconds": 1.0,
            "backlog": 5,
            **values,
        }
    )


def operator_sample(at: datetime, **values: Any) -> OperatorSample:
    return OperatorSample(**{"job": JOB, "operator": "op", "at": at, "blocked_events": 2, "mailbox_max": 1, **values})


def minute(now: datetime) -> datetime:
    return datetime.fromtimestamp(now.timestamp() // 60 * 60, UTC)


def test_samples_are_kept_by_their_five_seconds(store: ControlStore) -> None:
    register(store)
    at = minute(datetime.now(UTC))
    first, again = query_sample(at + timedelta(seconds=3)), query_sample(at + timedelta(seconds=4), rows=30)
    store.samples.add([first], [operator_sample(at)])
    store.samples.add([again, query_sample(at, query="r")])
    assert store.samples.queries(JOB, at, query="q") == (query_sample(at, rows=30),)
    assert [sample.query for sample in store.samples.queries(JOB, at, at + timedelta(seconds=1))] == ["q", "r"]
    assert store.samples.operators(JOB, ALWAYS, operator="op") == (operator_sample(at),)
    assert store.samples.operators(JOB, ALWAYS, at) == ()
    with pytest.raises(JobNotFound):
        store.samples.add([query_sample(at, job="nobody"), query_sample(at)])


def test_minutes_and_hours_are_computed_from_all_of_their_time(store: ControlStore) -> None:
    register(store)
    begin = minute(datetime.now(UTC)) - timedelta(minutes=3)
    times = [begin + timedelta(seconds=5 * n) for n in range(12)]
    samples = [
        query_sample(
            at,
            epochs=n % 3,
            rows=n,
            epoch_last=n,
            state_rows=n,
            batch_seconds_avg=float(n),
            batch_seconds_max=float(n),
            backlog=n,
        )
        for n, at in enumerate(times)
    ]
    store.samples.add(samples, [operator_sample(at, mailbox_max=n) for n, at in enumerate(times)])
    later = begin + timedelta(hours=3)
    store.samples.roll_up(later)
    [minutes] = store.samples.queries(JOB, ALWAYS, resolution=60)
    assert (minutes.at, minutes.epochs, minutes.rows, minutes.epoch_last, minutes.state_rows) == (begin, 12, 66, 11, 11)
    weighted = sum((n % 3) * n for n in range(12)) / 12
    assert minutes.batch_seconds_avg == pytest.approx(weighted)
    assert minutes.rows_per_second == pytest.approx(2.0)
    assert (minutes.batch_seconds_max, minutes.lag_seconds, minutes.backlog) == (11.0, 1.0, 11)
    [hours] = store.samples.queries(JOB, ALWAYS, resolution=3600)
    assert (hours.rows, hours.epochs) == (66, 12)
    [operator] = store.samples.operators(JOB, ALWAYS, resolution=3600)
    assert (operator.blocked_events, operator.mailbox_max) == (24, 11)


def test_rolling_up_twice_or_by_many_is_rolling_up_once(store: ControlStore) -> None:
    register(store)
    begin = minute(datetime.now(UTC)) - timedelta(minutes=40)
    store.samples.add([query_sample(begin + timedelta(seconds=5 * n)) for n in range(120)])
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(store.samples.roll_up) for _ in range(4)]:
            future.result()
    minutes = store.samples.queries(JOB, ALWAYS, resolution=60)
    assert [sample.rows for sample in minutes] == [120] * 10
    store.samples.roll_up()
    assert store.samples.queries(JOB, ALWAYS, resolution=60) == minutes


def test_a_minute_that_is_not_over_waits(store: ControlStore) -> None:
    register(store)
    begin = minute(datetime.now(UTC)) - timedelta(minutes=1)
    store.samples.add([query_sample(begin)])
    store.samples.roll_up(begin + timedelta(seconds=70))
    assert store.samples.queries(JOB, ALWAYS, resolution=60) == ()
    store.samples.roll_up(begin + timedelta(seconds=91))
    assert [sample.rows for sample in store.samples.queries(JOB, ALWAYS, resolution=60)] == [10]


def test_samples_that_come_late_are_in_their_minute_and_hour(store: ControlStore) -> None:
    register(store)
    begin = minute(datetime.now(UTC)) - timedelta(minutes=30)
    future = begin + timedelta(hours=3)
    store.samples.add([query_sample(begin), query_sample(begin + timedelta(minutes=10))])
    store.samples.roll_up(future)
    store.samples.add([query_sample(begin + timedelta(seconds=5))])
    store.samples.roll_up(future)
    assert [sample.rows for sample in store.samples.queries(JOB, ALWAYS, resolution=60)] == [20, 10]
    assert sum(sample.rows for sample in store.samples.queries(JOB, ALWAYS, resolution=3600)) == 30


def test_samples_older_than_what_is_kept_are_left_out(store: ControlStore) -> None:
    register(store)
    now = datetime.now(UTC)
    store.samples.add([query_sample(now - timedelta(hours=2))], [operator_sample(now)])
    assert store.samples.queries(JOB, ALWAYS) == ()
    assert len(store.samples.operators(JOB, ALWAYS)) == 1
