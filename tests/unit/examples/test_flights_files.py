"""Files of the demo: the data, the feeder, and what is read of Spark's sink and of the sink of `airports`."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.flights import data
from examples.flights.airports import read_airports
from examples.flights.feeder import Feeder
from examples.flights.sinks import last_commit, read_file_sink

NUMBERS = pa.schema([("number", pa.int32())])


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return data.load_flights()


@pytest.fixture
def sink(tmp_path: Path) -> Path:
    """A file sink after twelve batches, one file with the batch's number each; the tenth log entry is compacted."""
    log = tmp_path / "sink" / "_spark_metadata"
    log.mkdir(parents=True)
    lines = []
    for batch in range(12):
        path = log.parent / f"part of {batch}.parquet"
        pq.write_table(pa.table({"number": [batch]}, schema=NUMBERS), path)
        lines.append(json.dumps({"path": path.as_uri(), "size": 1, "action": "add"}))
        is_compacted = batch == 9
        entry = lines if is_compacted else lines[-1:]
        (log / f"{batch}{'.compact' if is_compacted else ''}").write_text("\n".join(["v1", *entry]))
    pq.write_table(pa.table({"number": [99]}, schema=NUMBERS), log.parent / "of a failed attempt.parquet")
    return log.parent


def test_the_data_is_the_whole_year(flights: pa.Table) -> None:
    per_day = Counter(flights["day"].to_pylist())
    assert flights.num_rows == 336_776
    assert sorted(per_day) == list(range(1, data.DAYS + 1))
    assert per_day[1] == 842
    assert flights["delay"].null_count == 8_255
    assert flights.slice(0, 1).to_pylist() == [
        {
            "flight_id": 0,
            "day": 1,
            "carrier": "UA",
            "flight": 1545,
            "origin": "EWR",
            "dest": "IAH",
            "scheduled": 515,
            "delay": 2,
        }
    ]


@pytest.mark.parametrize(("day", "name"), [(0, ""), (1, "1 Jan"), (60, "1 Mar"), (365, "31 Dec")])
def test_days_have_names(day: int, name: str) -> None:
    assert data.name_of_day(day) == name


def test_the_feeder_writes_one_file_per_day_in_order(flights: pa.Table, tmp_path: Path) -> None:
    feeder = Feeder(flights, tmp_path, 3)
    feeder.run()
    files = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime)
    assert [path.name for path in files] == ["day-001.parquet", "day-002.parquet", "day-003.parquet"]
    assert pa.concat_tables(map(pq.read_table, files)).equals(data.flights_until(flights, 3).sort_by("day"))
    assert feeder.fed == 3


def test_a_replay_that_is_stopped_in_a_pause_has_counted_its_last_file(flights: pa.Table, tmp_path: Path) -> None:
    feeder = Feeder(flights, tmp_path, 3, days_per_second=0.0001)
    feeder.start()
    while not (tmp_path / "day-001.parquet").exists():
        time.sleep(0.01)
    feeder.stop()
    assert feeder.fed == len(list(tmp_path.glob("day-*"))) == 1


def test_the_feeder_goes_on_where_it_was_cut_off(flights: pa.Table, tmp_path: Path) -> None:
    Feeder(flights, tmp_path, 2).run()
    before = {path.name: path.stat() for path in tmp_path.iterdir()}
    (tmp_path / ".day-003.parquet.tmp").write_bytes(b"half a fi")
    Feeder(flights, tmp_path, 3).run()
    assert {path.name for path in tmp_path.iterdir()} == {*before, "day-003.parquet"}
    assert {name: (tmp_path / name).stat().st_ino for name in before} == {
        name: stat.st_ino for name, stat in before.items()
    }


@pytest.mark.parametrize("last", [-1, 0, 5, 8, 9, 11])
def test_a_file_sink_is_read_up_to_a_batch(sink: Path, last: int) -> None:
    assert read_file_sink(sink, last, NUMBERS)["number"].to_pylist() == list(range(last + 1))


def test_a_query_that_never_ran_has_no_commit(tmp_path: Path) -> None:
    assert last_commit(tmp_path) == -1


def test_the_last_commit_is_the_highest_number(tmp_path: Path) -> None:
    (tmp_path / "commits").mkdir()
    for name in ("9", "10", ".10.crc"):
        (tmp_path / "commits" / name).touch()
    assert last_commit(tmp_path) == 10


def test_of_each_airport_and_day_the_newest_committed_row_counts(tmp_path: Path) -> None:
    for batch, departures in enumerate((1, 2, 3)):
        rows = [{"airport": "JFK", "day": 1, "departures": departures, "arrivals": 0}]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"batch-{batch:06}.parquet")
    assert read_airports(tmp_path, 1)["departures"].to_pylist() == [2]
    assert read_airports(tmp_path, -1).num_rows == 0
