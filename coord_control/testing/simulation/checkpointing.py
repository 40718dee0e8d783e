"""The life of a checkpoint outside the core: triggered, stored or aborted, and restored from.

A restore is done as on real storage: a new lineage counts from the moment on at which a file names it, and its epoch
stores get their first records when the queries start in it.
"""

from __future__ import annotations

from coord_control.errors import Fenced
from coord_control.ids import BarrierId, CheckpointId, QueryName
from coord_control.protocol.cut import cut_of
from coord_control.protocol.recovery import Facts, recover, recovery_marker
from coord_control.testing.memory_files import Crash
from coord_control.testing.simulation.checkpoints import Part, Stored, UnderWay
from coord_control.testing.simulation.driver import Driver, DriverStage
from coord_control.testing.simulation.spark import SparkLog
from coord_control.testing.simulation.world import RESTORES, World

__all__ = ["abort", "restore", "save_offline", "store", "trigger"]


def trigger(world: World, driver: Driver) -> CheckpointId:
    """A checkpoint of all queries of the job, whatever they do now."""
    checkpoint = _next(world)
    world.say(f"{driver} triggers checkpoint {checkpoint}")
    world.statistics.checkpoints += 1
    driver.trigger_checkpoint(checkpoint)
    return checkpoint


def abort(world: World, driver: Driver, checkpoint: CheckpointId) -> None:
    """Somebody gives a checkpoint up, wherever it stands."""
    world.say(f"{driver} aborts checkpoint {checkpoint}")
    world.statistics.aborted += 1
    driver.abort_checkpoint(checkpoint)


def store(world: World, driver: Driver, pending: UnderWay, *, dies_after: bool) -> None:
    """A step on the way of a captured checkpoint to the storage: its files are pinned, then it exists.

    Raises:
        Crash: the driver dies when the checkpoint exists, and before anybody was told.
    """
    if not pending.is_pinned:
        pending.is_pinned = True
        return
    try:
        driver.verify()
    except Fenced:
        world.say(f"{driver} finds a newer generation, and stores nothing")
        driver.stage = DriverStage.FENCED
        world.statistics.fenced += 1
        world.retire(driver)
        return
    stored = Stored(pending.checkpoint, pending.barrier, pending.parts)
    world.stored[pending.checkpoint] = stored
    world.statistics.stored += 1
    world.say(f"{stored} is stored")
    if dies_after:
        driver.is_dying = True
        raise Crash("when a checkpoint is stored, before anybody is told")
    driver.checkpoint_stored(pending.checkpoint)


def save_offline(world: World) -> None:
    """A savepoint of a job that does not run, from what it has left."""
    lineage = world.lineage
    parts: dict[QueryName, Part] = {}
    newest = lineage.newest_generation()
    for query, log in lineage.logs.items():
        facts = Facts(tuple(lineage.read(query)), log.committed, log.planned)
        if (marker := recovery_marker(facts, newest)) is not None:
            facts = Facts((*facts.records, marker), log.committed, log.planned)
        cuts = tuple(cut_of(recover(facts, spec.uid), spec.uid) for spec in world.specs[query])
        for cut, spec in zip(cuts, world.specs[query], strict=True):
            lineage.invariants.check_cut(cut, spec.parallelism)
        parts[query] = Part(log.committed, cuts)
    stored = Stored(_next(world), BarrierId((newest << 32) + (1 << 31)), parts)
    world.stored[stored.checkpoint] = stored
    world.statistics.offline_savepoints += 1
    world.say(f"{stored} is saved offline")


def restore(world: World, stored: Stored, dies_at: int | None = None, *, job: str | None = None) -> None:
    """A new driver takes the job over and begins a new lineage of all its queries.

    Args:
        job: the name under which it goes on; None: the one that it has.
        dies_at: the durable step that it does not survive.

    Raises:
        Crash: it has died; the lineage exists or not.
    """
    job = job or world.lineage.job
    world.say(f"a new driver restores {stored} as {job}")
    files, claim = world.claim(dies_at)
    logs = {query: _log(world, query, part) for query, part in stored.parts.items()}
    lineage = world.add_lineage(logs, stored, job)
    files.create(f"{RESTORES}/{lineage.number:06}", b"")
    world.statistics.restores += 1
    world.run_driver(files, claim, lineage)


def _next(world: World) -> CheckpointId:
    world.checkpoints += 1
    return CheckpointId(world.checkpoints)


def _log(world: World, query: QueryName, part: Part) -> SparkLog:
    skips = world.lineages[0].logs[query].skips
    return SparkLog(part.boundary, part.boundary, {}, part.boundary, skips)
