"""Compare two states key by key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["compare_states"]

#: The columns that together name an entry of a state; a state has the first alone, or both.
_KEYS: Final = ("key", "user_map_key")
_IS_BEFORE: Final = "is_before"


def compare_states(before: DataFrame, after: DataFrame, *, has_lists: bool) -> DataFrame:
    """Return what is different: a row per key that was added, removed or changed.

    A key is the same in whatever partition it lies: states with different numbers of shuffle partitions can be
    compared.

    Args:
        before, after: states as Spark's data source shows them, of one schema.
        has_lists: a key can have several rows, whose order does not count.

    Returns:
        ``change`` (``added``, ``removed``, ``changed``), the columns of the key, ``partition_id`` (of ``after``, if it
        has the key), and ``before`` and ``after``: the value, or an array of values; null where there is none.
    """
    keys = [name for name in _KEYS if name in before.columns]
    values = [name for name in before.columns if name not in (*keys, "partition_id")]
    both = before.withColumn(_IS_BEFORE, F.lit(True)).unionByName(after.withColumn(_IS_BEFORE, F.lit(False)))
    is_before = F.col(_IS_BEFORE)
    found = both.groupBy(*keys).agg(
        _partition(is_before).alias("partition_id"),
        _value(values, is_before, has_lists=has_lists).alias("before"),
        _value(values, ~is_before, has_lists=has_lists).alias("after"),
    )
    change = (
        F.when(F.col("before").isNull(), "added")
        .when(F.col("after").isNull(), "removed")
        .when(~F.col("before").eqNullSafe(F.col("after")), "changed")
    )
    shown = [_unwrapped(name, values, has_lists=has_lists) for name in ("before", "after")]
    different = found.withColumn("change", change).where(F.col("change").isNotNull())
    return different.select("change", *keys, "partition_id", *shown)


def _partition(is_before: Column) -> Column:
    partition = F.col("partition_id")
    return F.coalesce(F.max(F.when(~is_before, partition)), F.max(partition))


def _value(names: list[str], is_side: Column, *, has_lists: bool) -> Column:
    # In a struct, because a value may be null itself.
    value = F.when(is_side, F.struct(*names))
    if not has_lists:
        return F.first(value, ignorenulls=True)
    listed = F.sort_array(F.collect_list(value))
    return F.when(F.size(listed) > 0, listed)


def _unwrapped(name: str, values: list[str], *, has_lists: bool) -> Column:
    column = F.col(name)
    if len(values) > 1:
        return column
    [only] = values
    return (F.transform(column, lambda one: one[only]) if has_lists else column[only]).alias(name)
