"""The driver process that :mod:`benchmarks.recovery` kills: ``python -m benchmarks.recovery_driver VARIANT ROOT``."""

from __future__ import annotations

import sys

import coord_control as cc
from benchmarks import query
from benchmarks.session import session


def main(variant: str, root: str) -> None:
    """Run the query until the process is killed."""
    with session() as spark:
        if variant == "plain":
            query.start_plain(spark, f"{root}/plain").awaitTermination()
            return
        with cc.Job("job", spark, root=root) as job:
            query.start_coordinated(spark, job, query.Talkative(), query.busy)
            job.await_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
