"""The life of a checkpoint outside the core: triggered, stored or aborted, and restored from.

A restore is done as on real storage: a new lineage counts from the moment on at which a file names it, and its epoch
stores get their first records when the queries start in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coord_control.errors import Fenced, StoreUnavailable
from coord_control.ids import BarrierId, CheckpointId, Generation, QueryName
from coord_control.protocol.cut import cut_of
from coord_control.protocol.records import Record
from coord_control.protocol.recovery import Facts, recover, recovery_marker
from tests.simulation.checkpoints import Part, Rest, Stored, UnderWay
from tests.simulation.driver import Driver, DriverStage
from tests.simulation.lineages import Lineage
from tests.simulation.memory_files import Crash
from tests.simulation.spark import SparkLog
from tests.simulation.world import RESTORES, World

__all__ = ["abort", "cut_again", "restore", "save_offline", "save_stopped", "store", "trigger"]


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


def cut_again(world: World, driver: Driver, checkpoint: CheckpointId) -> None:
    """Spark has removed a file before it was pinned: nothing of the cut counts, and it is made again."""
    world.say(f"a file of checkpoint {checkpoint} is gone; {driver} cuts it again")
    world.statistics.cut_again += 1
    driver.abort_checkpoint(checkpoint)
    driver.trigger_checkpoint(checkpoint)


def store(world: World, driver: Driver, pending: UnderWay, *, dies_after: bool) -> None:
    """A step on the way of a captured checkpoint to the storage: its files are pinned, then it exists.

    Raises:
        Crash: the driver dies when the checkpoint exists, and before anybody was told.
    """
    if not pending.is_pinned:
        pending.is_pinned = True
        return
    if _is_fenced(world, driver):
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
    newest = lineage.newest_generation()
    parts = {query: _at_rest(world, lineage, query, lineage.read(query), newest) for query in lineage.logs}
    stored = Stored(_next(world), BarrierId((newest << 32) + (1 << 31)), parts)
    world.stored[stored.checkpoint] = stored
    world.statistics.offline_savepoints += 1
    world.say(f"{stored} is saved offline")


def save_stopped(world: World, driver: Driver) -> None:
    """A savepoint of queries that have ended, by their driver, which lives."""
    checkpoint = _next(world)
    barrier = driver.core.trigger_checkpoint(checkpoint, [], driver.now)
    generation = driver.claim.generation
    try:
        parts = {
            query: _at_rest(world, driver.lineage, query, store.read(), generation)
            for query, store in driver.stores.items()
        }
    except StoreUnavailable:
        world.say(f"{driver} cannot read the storage now, and saves nothing")
        return
    if _is_fenced(world, driver):
        return
    stored = Stored(checkpoint, barrier, parts)
    world.stored[checkpoint] = stored
    world.statistics.offline_savepoints += 1
    world.say(f"{stored} is saved by {driver}, whose queries have ended")


def _at_rest(
    world: World, lineage: Lineage, query: QueryName, records: Sequence[Record], generation: Generation
) -> Part:
    if lineage.restored is not None and lineage.must_be_seeded(query):
        return lineage.restored.parts[query]  # nothing has run since
    log, specs = lineage.logs[query], world.specs[query]
    facts = Facts(tuple(records), log.committed, log.planned)
    if (marker := recovery_marker(facts, generation)) is not None:
        facts = replace(facts, records=(*facts.records, marker))
    recovered = {spec.uid: recover(facts, spec.uid) for spec in specs}
    cuts = tuple(cut_of(found, uid) for uid, found in recovered.items())
    for cut, spec in zip(cuts, specs, strict=True):
        lineage.invariants.check_cut(cut, spec.parallelism)
    served = {
        key: seen for key, seen in lineage.invariants.served.items() if key[0] in recovered and key[2] > log.committed
    }
    world.statistics.planned_in_cuts += log.planned > log.committed
    return Part(log.committed, cuts, Rest(replace(log, plans=dict(log.plans)), recovered, served))


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
    world.statistics.planned_restored += any(log.planned > log.committed for log in logs.values())
    world.run_driver(files, claim, lineage)


def _is_fenced(world: World, driver: Driver) -> bool:
    try:
        driver.verify()
    except Fenced:
        world.say(f"{driver} finds a newer generation, and stores nothing")
        driver.stage = DriverStage.FENCED
        world.statistics.fenced += 1
        world.retire(driver)
        return True
    return False


def _next(world: World) -> CheckpointId:
    world.checkpoints += 1
    return CheckpointId(world.checkpoints)


def _log(world: World, query: QueryName, part: Part) -> SparkLog:
    if part.rest is not None:
        return replace(part.rest.log, plans=dict(part.rest.log.plans))
    skips = world.lineages[0].logs[query].skips
    return SparkLog(part.boundary, part.boundary, {}, part.boundary, skips)
