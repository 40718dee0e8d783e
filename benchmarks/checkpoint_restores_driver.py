"""The driver process of :mod:`benchmarks.checkpoint_restores`: ``VARIANT ROOT NAME SAVEPOINT``; runs one epoch."""

from __future__ import annotations

import sys

import coord_control as cc
from benchmarks import checkpoint_queries as queries
from benchmarks.session import session


def main(variant: str, root: str, name: str, savepoint: str) -> None:
    """Resume from a copy of the checkpoint directory, or from the savepoint, until all input is read."""
    with session() as spark:
        queries.use_rocksdb(spark)
        writer = queries.keyed(queries.keys_in(spark, f"{root}/rows"))
        if variant == "plain":
            started = writer.option("checkpointLocation", f"{root}/{name}").start()
            started.processAllAvailable()
            started.stop()
            return
        with cc.Job(name, spark, root=root, restore_from=savepoint) as job:
            job.start("query", writer).processAllAvailable()


if __name__ == "__main__":
    main(*sys.argv[1:])
