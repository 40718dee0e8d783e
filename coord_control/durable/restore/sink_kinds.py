"""What is known of the kinds of sinks without asking them.

Threads: values.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from coord_control.durable.spark_layout.file_sink_log import FILE_SINK

__all__ = ["SINK_KINDS", "Repeated", "SinkKind", "kind_of"]


class Repeated(enum.Enum):
    """What a sink does with an epoch that it has received before."""

    SKIPPED = "skipped"
    TWICE = "twice"
    UNKNOWN = "unknown"  #: that depends on the user's function, or the kind is not known


@dataclass(frozen=True, slots=True)
class SinkKind:
    """One kind of sink.

    Attributes:
        title: what it is called.
        command: returns the command that sets a sink (given its place) to a position; None if the sink has no versions,
            or Spark has no command for it.
        has_versions: it can be set back.
        runs_skipped: an epoch that it skips is run, so that the query's state gets its rows; only the output is left
            out. Measured of Spark's file sink, which returns before it runs one; of Delta and Iceberg by their design.
    """

    title: str
    repeated: Repeated
    has_versions: bool = False
    runs_skipped: bool = False
    command: Callable[[str, str], str] | None = None


def _delta(place: str, position: str) -> str:
    table = f"delta.`{place}`" if "/" in place else place
    return f"RESTORE TABLE {table} TO VERSION AS OF {position}"


def _iceberg(place: str, position: str) -> str:
    catalog, _, table = place.partition(".")
    return f"CALL {catalog}.system.set_current_snapshot('{table}', {position})"


#: By the name that checkpoints record.
SINK_KINDS: Final[dict[str, SinkKind]] = {
    FILE_SINK: SinkKind("Spark's file sink", Repeated.SKIPPED, has_versions=True),
    "delta": SinkKind("a Delta table", Repeated.SKIPPED, has_versions=True, command=_delta),
    "iceberg": SinkKind("an Iceberg table", Repeated.SKIPPED, has_versions=True, runs_skipped=True, command=_iceberg),
    "foreachBatch": SinkKind("a foreachBatch function", Repeated.UNKNOWN),
    "foreach": SinkKind("a foreach function", Repeated.TWICE),
    "kafka": SinkKind("a Kafka topic", Repeated.TWICE),
    "console": SinkKind("the console", Repeated.TWICE),
    "memory": SinkKind("a table in memory", Repeated.TWICE),
    "noop": SinkKind("a sink that keeps nothing", Repeated.TWICE),
}


def kind_of(name: str) -> SinkKind:
    """Return what is known of a kind."""
    return SINK_KINDS.get(name) or SinkKind(f"a sink of kind {name}", Repeated.UNKNOWN)
