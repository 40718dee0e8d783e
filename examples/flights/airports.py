"""Query ``airports``: departures and arrivals by airport and day.

A plain stateful aggregation, its state in RocksDB, without an operator: what a team may have in production today. It is
started by ``job.start`` and needs no change for that.

Sink: one file for each batch, named by its id. A batch that is run again after a crash replaces its file, so that it
counts once.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

__all__ = ["AirportFiles", "by_airport_and_day", "read_airports"]

_PREFIX: Final = "batch-"
_BEFORE_THE_FIRST: Final = datetime.date(2012, 12, 31)


def by_airport_and_day(flights: DataFrame) -> DataFrame:
    """The aggregation: ``airport, day, departures, arrivals``; to be written in update mode.

    A day counts as over a week after its flights: then Spark forgets it, and its state does not grow with the year.
    """
    departure = sf.struct(sf.col("origin").alias("airport"), sf.lit(1).alias("departs"), sf.lit(0).alias("arrives"))
    arrival = sf.struct(sf.col("dest").alias("airport"), sf.lit(0).alias("departs"), sf.lit(1).alias("arrives"))
    date = sf.date_add(sf.lit(_BEFORE_THE_FIRST), sf.col("day")).cast("timestamp").alias("date")
    visits = flights.select(date, sf.explode(sf.array(departure, arrival)).alias("visit"))
    by_date = visits.withWatermark("date", "7 days").groupBy("visit.airport", "date")
    counted = by_date.agg(sf.sum("visit.departs").alias("departures"), sf.sum("visit.arrives").alias("arrivals"))
    return counted.select("airport", sf.dayofyear("date").alias("day"), "departures", "arrivals")


class AirportFiles:
    """The sink, for ``foreachBatch``; called in the driver, for one batch at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.last_day = 0  #: for the live display
        self.flights = 0

    def write(self, frame: DataFrame, batch: int) -> None:
        """Write the changes of a batch: few rows, one per airport and day."""
        table = frame.toArrow()
        path = self._folder / f"{_PREFIX}{batch:06}.parquet"
        hidden = path.with_name(f".{path.name}.tmp")
        pq.write_table(table, hidden)
        hidden.replace(path)
        self.last_day = max(self.last_day, pc.max(table["day"]).as_py() or 0)
        self.flights += pc.sum(table["departures"]).as_py() or 0


def read_airports(folder: Path, last_batch: int) -> pa.Table:
    """Return the result up to ``last_batch``: the newest row of each airport and day."""
    newest: dict[tuple[str, int], dict[str, object]] = {}
    for path in sorted(folder.glob(f"{_PREFIX}*.parquet")):
        if int(path.stem.removeprefix(_PREFIX)) <= last_batch:
            newest |= {(row["airport"], row["day"]): row for row in pq.read_table(path).to_pylist()}
    return pa.Table.from_pylist(list(newest.values()), schema=_SCHEMA)


_SCHEMA: Final = pa.schema(
    [("airport", pa.string()), ("day", pa.int32()), ("departures", pa.int64()), ("arrivals", pa.int64())]
)
