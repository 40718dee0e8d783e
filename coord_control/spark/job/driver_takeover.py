"""Becoming the job's driver: claim the next generation, then wait for the one before to be gone.

The claim alone makes the protocol safe. The wait is for Spark's sake: until the older driver has noticed, its queries
write to the same Spark checkpoint directories, and a batch that it commits while this driver recovers would be seen too
late. A driver notices within half a second, stops its queries and releases its claim; after a crash its JVM lives a
moment longer than its Python.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Final

from pyspark.sql import SparkSession

from coord_control.driver_process import SUPERVISED_VARIABLE
from coord_control.durable.files.filesystem import Files, join
from coord_control.durable.job_folder import generations
from coord_control.durable.job_folder.generations import Claim
from coord_control.durable.job_folder.holder import Aliveness, Holder, may_live
from coord_control.durable.job_folder.restore_log import seal_restores
from coord_control.ids import Generation
from coord_control.protocol.job_facts import RecoveryCause

__all__ = ["cause_of", "take_over"]

_log = logging.getLogger("coord_control.job")

_POLL_SECONDS: Final = 0.02
# For a driver that can be seen: it stops its queries first, or its JVM is about to exit.
_ALIVE_SECONDS: Final = 15.0
# For one that cannot: by then it gives no more answers.
_UNKNOWN_SECONDS: Final = generations.UNSEEN_SECONDS


def take_over(
    files: Files, folder: str, spark: SparkSession, *, above: Generation = generations.NO_GENERATION
) -> Claim:
    """Claim the next generation of the job in ``folder``, wait for its predecessor to end, and seal its restores.

    Args:
        above: claim one above this: that of a checkpoint from elsewhere that is to be restored.

    Raises:
        DamagedRecord, UnsupportedFormat: the newest claim cannot be read; nothing was claimed.
        StoreUnavailable: the storage cannot be written.
    """
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    holder = Holder.of([os.getpid(), jvm], supervisor=os.environ.get(SUPERVISED_VARIABLE))
    claim = generations.claim(files, join(folder, "generations"), holder, above=above)
    began = time.monotonic()
    claim.found = generations.previous_may_live(claim)
    _tell(claim, folder)
    while (previous := generations.previous_may_live(claim)) is not Aliveness.DEAD:
        waited = time.monotonic() - began
        if waited > (_ALIVE_SECONDS if previous is Aliveness.ALIVE else _UNKNOWN_SECONDS):
            _log.warning("the driver before this one may still run; it is fenced off, continuing without it")
            break
        time.sleep(_POLL_SECONDS)
    if claim.previous is not None:  # otherwise no other process can have begun a restore
        seal_restores(files, folder, claim.generation)
    return claim


def _tell(claim: Claim, folder: str) -> None:
    """Warn that the job is taken from a running driver: the user may not have intended that."""
    previous = claim.previous
    if previous is None or claim.found is Aliveness.DEAD:
        return
    # Its Python alone: after a crash its JVM lives a moment longer.
    python = previous.holder.model_copy(update={"processes": previous.holder.processes[:1]})
    found = may_live(python, is_released=claim.is_previous_released())
    if found is Aliveness.DEAD:
        return
    job = folder.rpartition("/")[2]
    if not previous.is_driver:
        _log.warning(
            "= job %s: generation %d, %s, is a command that works on the storage of the job, such as coordctl restore; "
            "it is fenced off, and what it has not finished does not take place",
            job,
            previous.generation,
            previous,
            extra={"action": "taken_over", "job": job},
        )
        return
    _log.warning(
        "= job %s %s: generation %d, %s; generation %d takes over now, and that one stops itself. Look: "
        "coordctl generations %s",
        job,
        "has a driver that runs" if found is Aliveness.ALIVE else "has a driver that may still run",
        previous.generation,
        previous,
        claim.generation,
        job,
        extra={"action": "taken_over", "job": job},
    )


def cause_of(claim: Claim) -> RecoveryCause:
    """Return why this driver follows an earlier one; ``claim`` is as :func:`take_over` has returned it."""
    if claim.found is not Aliveness.DEAD:
        return RecoveryCause.FENCED
    previous = claim.previous_driver()
    if previous is None or claim.is_released(previous.generation):
        return RecoveryCause.DRIVER_START
    return RecoveryCause.DRIVER_DIED
