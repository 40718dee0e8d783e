"""Tables of Delta: which version they had at an epoch, and how they go back.

Every commit of a stream to a Delta table names the query and the epoch, in the history and as a *transaction*: the sink
skips an epoch that is not behind the query's last transaction. ``RESTORE TABLE`` sets the files back and not the
transactions, so these are set back as well; otherwise the epochs that run again would be lost.

Threads: any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession

from coord_control.ids import Epoch
from coord_control.spark.sinks.qualified_path import qualified

__all__ = ["Commit", "Delta", "epoch_at", "epochs_at", "newest_version"]

#: Nearly always enough; more is read only if not.
_RECENT: Final = 50
_RESTORE: Final = "RESTORE"


@dataclass(frozen=True, slots=True)
class Commit:
    """What the history says of one version.

    Attributes:
        query, epoch: the stream that has written it; None if something else has.
        restored: the version that it has brought back.
    """

    version: int
    query: str | None = None
    epoch: int | None = None
    restored: int | None = None


class Delta:
    """Delta tables, as :class:`~coord_control.spark.sinks.table_format.TableFormat`."""

    def place(self, spark: SparkSession, sink: Any) -> str | None:
        table = _field(sink, "catalogTable")
        if table is not None and table.isDefined():
            return str(table.get().identifier().unquotedString())
        return qualified(spark, _field(sink, "path"))

    def position(self, spark: SparkSession, place: str, query_id: str, epoch: Epoch) -> str:
        for limit in (f" LIMIT {_RECENT}", ""):
            if (found := newest_version(_history(spark, place, limit), query_id, epoch)) is not None:
                return str(found)
        raise LookupError(f"the history of {place} does not reach back to epoch {epoch}")

    def exists(self, spark: SparkSession, place: str, position: str) -> bool:
        # Files that are in the table now are there; of the others VACUUM may have removed some.
        gone = _files(spark, place, f" VERSION AS OF {int(position)}") - _files(spark, place)
        jvm: Any = spark._jvm
        session: Any = spark
        configuration = session._jsparkSession.sessionState().newHadoopConf()
        paths = [jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(name)) for name in gone]
        return all(path.getFileSystem(configuration).exists(path) for path in paths)

    def roll_back(self, spark: SparkSession, place: str, position: str) -> None:
        history = _history(spark, place)
        # Delta refuses to go where the table is.
        if history[0].version > int(position):
            spark.sql(f"RESTORE TABLE {_name(place)} TO VERSION AS OF {int(position)}").collect()
            _set_transactions(spark, place, epochs_at(history, int(position)))


def newest_version(history: Sequence[Commit], query_id: str, epoch: Epoch) -> int | None:
    """Return the newest version that holds nothing of a query behind an epoch.

    Args:
        history: newest first.

    Returns:
        The version; None if the history does not reach back to one.
    """
    for commit in history:
        if (held := epoch_at(history, query_id, commit.version)) is None or held <= epoch:
            return None if held is None else commit.version
    return None


def epochs_at(history: Sequence[Commit], version: int) -> dict[str, int]:
    """Return the newest epoch that a version holds of each query; -1: none.

    Also of those that have not written behind it: going back before may have set their transactions to less.
    """
    newest = {commit.query: commit.version for commit in reversed(history) if commit.query is not None}
    held = {query: epoch_at(history, query, version) for query in newest}
    # What the history does not say: the query has not written for as long as it reaches back. If it has not written
    # behind the version either, it keeps its transaction.
    return {
        query: -1 if epoch is None else epoch
        for query, epoch in held.items()
        if epoch is not None or newest[query] > version
    }


def epoch_at(history: Sequence[Commit], query_id: str, version: int) -> int | None:
    """Return the newest epoch that a version holds of a query: -1 if none, None if the history does not say."""
    for commit in history:
        if commit.version != version:
            continue
        if commit.query == query_id:
            return commit.epoch
        if commit.version == 0:
            return -1
        version = commit.version - 1 if commit.restored is None else commit.restored
    return None


def _history(spark: SparkSession, place: str, limit: str = "") -> list[Commit]:
    """Return what the table has kept of its history, newest first."""
    rows = spark.sql(f"DESCRIBE HISTORY {_name(place)}{limit}").select("version", "operation", "operationParameters")
    found = []
    for row in rows.collect():
        parameters = row["operationParameters"] or {}
        query, restored = parameters.get("queryId"), None
        if row["operation"] == _RESTORE and parameters.get("version") is not None:
            restored = int(parameters["version"])
        found.append(Commit(int(row["version"]), query, int(parameters["epochId"]) if query else None, restored))
    return sorted(found, key=lambda commit: -commit.version)


def _files(spark: SparkSession, place: str, version: str = "") -> set[str]:
    return set(spark.sql(f"SELECT * FROM {_name(place)}{version}").inputFiles())


def _set_transactions(spark: SparkSession, place: str, epochs: Mapping[str, int]) -> None:
    jvm: Any = spark._jvm
    session: Any = spark
    delta = jvm.org.apache.spark.sql.delta
    path = spark.sql(f"DESCRIBE DETAIL {_name(place)}").collect()[0]["location"]
    log = delta.DeltaLog.forTable(session._jsparkSession, path)
    nothing = jvm.scala.Option.empty()
    actions = [delta.actions.SetTransaction(query, epoch, nothing) for query, epoch in epochs.items()]
    sequence = jvm.scala.jdk.javaapi.CollectionConverters.asScala(jvm.java.util.ArrayList(actions)).toSeq()
    loader = log.getClass().getClassLoader()
    operation = loader.loadClass("org.apache.spark.sql.delta.DeltaOperations$ManualUpdate$").getField("MODULE$")
    log.startTransaction().commit(sequence, operation.get(None))


def _name(place: str) -> str:
    return f"delta.`{place}`" if "/" in place else place


def _field(sink: Any, name: str) -> Any:
    field = sink.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(sink)
