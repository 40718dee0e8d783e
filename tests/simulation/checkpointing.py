"""The life of a checkpoint outside the core: triggered, cut, pinned, written or aborted, and restored from.

What comes next, the real :class:`CheckpointRun` decides; here its steps are carried out as the checkpoint service does
it. Each pin is a thread, which may be slow: it ends when the world says so, whatever has become of its checkpoint.

A restore is done as on real storage: a new lineage counts from the moment on at which a file names it, and its epoch
stores get their first records when the queries start in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from coord_control.errors import CoordControlError, Fenced, StateFileMissing, StoreError, StoreUnavailable
from coord_control.ids import BarrierId, CheckpointId, Epoch, Generation, QueryName
from coord_control.protocol.cut import cut_of
from coord_control.protocol.failures import FailureReason
from coord_control.protocol.live_epochs import frozen_in
from coord_control.protocol.messages import CheckpointFailed, QueryCaptured
from coord_control.protocol.records import Record
from coord_control.protocol.recovery import Facts, recover, recovery_marker
from coord_control.protocol.scheduler.checkpoint_run import (
    AbortCut,
    ClaimNumber,
    Confirm,
    Cut,
    Discard,
    Effect,
    Ended,
    Pin,
    Report,
    State,
    Withdraw,
    Write,
)
from coord_control.protocol.scheduler.tickets import CheckpointOutcome
from tests.simulation.checkpoints import Part, Pinning, Rest, Stored, UnderWay
from tests.simulation.driver import Driver, DriverStage
from tests.simulation.lineages import Lineage
from tests.simulation.memory_files import Crash
from tests.simulation.spark import SparkLog
from tests.simulation.world import RESTORES, World

__all__ = ["abort", "lose_file", "pin", "restore", "save_offline", "take_up", "trigger", "write"]

#: Errors of a thread that pins: one that another cut helps against, and one that ends the checkpoint.
_GONE: Final = StateFileMissing("state/0/0/1.delta", "simulated")
_UNAVAILABLE: Final = StoreUnavailable("a checkpoint", "write", "simulated")
_ABORTED: Final = CheckpointOutcome(FailureReason.ABORTED, "simulated")


def trigger(world: World, driver: Driver) -> CheckpointId:
    """A checkpoint of all queries of the job, whatever they do now."""
    checkpoint = _next(world)
    world.say(f"{driver} triggers checkpoint {checkpoint}")
    world.statistics.checkpoints += 1
    pending = driver.desk.under_way[checkpoint] = UnderWay(checkpoint)
    pending.run.begin()
    _apply(world, driver, pending)
    return checkpoint


def abort(world: World, driver: Driver, pending: UnderWay) -> None:
    """Somebody gives a checkpoint up, wherever it stands."""
    world.say(f"{driver} aborts checkpoint {pending.checkpoint}")
    world.statistics.aborted += 1
    pending.run.fail(_ABORTED, driver.now)
    _apply(world, driver, pending)


def take_up(world: World, driver: Driver) -> None:
    """What the core has said of a checkpoint is taken up, in its order."""
    notice = driver.desk.told.popleft()
    if (pending := driver.desk.under_way.get(notice.checkpoint)) is None:
        return
    match notice:
        case QueryCaptured():
            pending.captured(notice, [spec.uid for spec in world.specs[notice.query]])
        case CheckpointFailed():
            outcome = CheckpointOutcome(notice.reason, notice.detail)
            world.statistics.failed += pending.run.abandoned(notice.barrier, outcome, driver.now)
    _apply(world, driver, pending)


def pin(world: World, driver: Driver, pending: UnderWay, pinning: Pinning) -> None:
    """A thread has kept the files of a query."""
    pending.pins.remove(pinning)
    pending.kept[pinning.query] = pinning.part
    world.statistics.late_pins += not pending.run.pinned(pinning.query)
    world.say(f"{driver} has pinned {pinning.query} for checkpoint {pending.checkpoint}")
    _apply(world, driver, pending)


def lose_file(world: World, driver: Driver, pending: UnderWay, pinning: Pinning, *, is_gone: bool) -> None:
    """A thread fails: Spark has removed a file before it was kept, or the storage errs."""
    pending.pins.remove(pinning)
    error = _GONE if is_gone else _UNAVAILABLE
    world.say(f"{driver} cannot pin {pinning.query} for checkpoint {pending.checkpoint}: {type(error).__name__}")
    world.statistics.cut_again += pending.run.not_pinned(pinning.query, error, driver.now)
    _apply(world, driver, pending)


def write(world: World, driver: Driver, pending: UnderWay, *, dies_after: bool) -> None:
    """The metadata of a checkpoint is written: it exists.

    Raises:
        Crash: the driver dies then, before anybody was told.
    """
    if _is_fenced(world, driver):
        return
    stored = pending.complete(world.specs, driver.lineage.live.current)
    world.stored[pending.checkpoint] = stored
    world.statistics.stored += 1
    world.say(f"{stored} is stored")
    if dies_after:
        driver.is_dying = True
        raise Crash("when a checkpoint is stored, before anybody is told")
    pending.run.written("simulated")
    _apply(world, driver, pending)


def _apply(world: World, driver: Driver, pending: UnderWay) -> None:
    while pending.run.has_output:
        for effect in pending.run.take():
            _carry_out(world, driver, pending, effect)


def _carry_out(world: World, driver: Driver, pending: UnderWay, effect: Effect) -> None:
    run = pending.run
    match effect:
        case ClaimNumber():
            try:
                driver.verify()
            except CoordControlError as error:
                run.not_claimed(error, driver.now)
            else:
                run.claimed()
        case Cut():
            try:
                _cut(world, driver, pending)
            except StoreError as error:
                run.fail_with(error, driver.now)
        case Pin():
            pending.pins.append(Pinning(effect.query, pending.parts[effect.query]))
        case Withdraw():
            driver.inbox.append(lambda: driver.abort_checkpoint(pending))
        case AbortCut():
            driver.inbox.append(lambda: _abort_cut(world, driver, pending))
        case Write():
            pending.is_writing = True
        case Confirm():
            driver.inbox.append(lambda: driver.checkpoint_stored(pending.checkpoint))
        case Discard():
            pending.kept.clear()
            run.removed()
        case Ended():
            del driver.desk.under_way[pending.checkpoint]
        case Report():
            pass


def _cut(world: World, driver: Driver, pending: UnderWay) -> None:
    resting = [query for query in world.specs if query in driver.ended or query in driver.finished]
    awaited = [query for query in world.specs if query not in resting]
    # The cut comes first: what waits in the loop's queue may end what is asked for.
    pending.barrier, pending.boundaries = driver.cut(pending.checkpoint, awaited)
    pending.parts = {
        query: _at_rest(world, driver.lineage, query, _records(driver, query), driver.claim.generation)
        for query in resting
    }
    world.statistics.cut_at_rest += len(resting)
    pending.run.cut(pending.barrier, awaited, resting)


def _records(driver: Driver, query: QueryName) -> Sequence[Record]:
    # A driver is spared the start of a query that would end as it did before; the product starts it, and reads.
    has_started = (query, driver.claim.generation) in driver.lineage.read_by
    return driver.stores[query].read() if has_started else driver.lineage.read(query)


def _abort_cut(world: World, driver: Driver, pending: UnderWay) -> None:
    driver.abort_checkpoint(pending)
    if pending.run.state is State.FAILING:
        pending.run.measured()
        _apply(world, driver, pending)


def save_offline(world: World) -> None:
    """A savepoint of a job that does not run, from what it has left."""
    lineage = world.lineage
    newest = lineage.newest_generation()
    parts = {query: _at_rest(world, lineage, query, lineage.read(query), newest) for query in lineage.logs}
    stored = Stored(_next(world), BarrierId((newest << 32) + (1 << 31)), parts, lineage.live.current)
    world.stored[stored.checkpoint] = stored
    world.statistics.offline_savepoints += 1
    world.say(f"{stored} is saved offline")


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
    seen = lineage.live.seen.get((query, Epoch(log.committed + 1))) if log.planned > log.committed else None
    rest = Rest(replace(log, plans=dict(log.plans)), recovered, served, frozen_in(facts), seen)
    return Part(log.committed, cuts, rest)


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
