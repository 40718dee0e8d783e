"""What is looked at after everything that a simulated driver does: its records, its channels, its cuts.

Threads: the simulation has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from coord_control.ids import BarrierId, Epoch, OperatorUid, QueryName, SubtaskIndex
from coord_control.protocol.gateway import State
from coord_control.protocol.records import Begin, Record
from coord_control.protocol.statistics import QueryStatistics
from tests.simulation.invariants import View
from tests.simulation.spark import Run
from tests.simulation.values import Violation

if TYPE_CHECKING:
    from tests.simulation.driver import Driver

__all__ = ["check_driver", "check_measured", "tell_committed", "waiting_behind"]

_Waiting: TypeAlias = Mapping[tuple[OperatorUid, SubtaskIndex], int]


def check_driver(driver: Driver, uid: OperatorUid) -> None:
    """Check what an operator's call has done.

    Raises:
        Violation: a rule is broken.
    """
    # At once: a record's reason is gone when the epoch is settled in the same batch.
    for persist in driver.core._batch.persist[driver.checked_records :]:
        _check_record(driver, persist.record)
    driver.checked_records = len(driver.core._batch.persist)
    if (operator := driver.operator(uid)) is not None:
        driver.invariants.check_channels(driver.core.generation, operator)
    if driver.desk.watched:
        _check_cuts(driver)


def waiting_behind(driver: Driver, barrier: BarrierId) -> _Waiting:
    """How many events wait for each subtask that has not passed a checkpoint, behind it."""
    return {
        (operator.spec.uid, SubtaskIndex(subtask)): gateway.held_by(barrier)
        for operator in driver.core.operators()
        for subtask, gateway in enumerate(operator.channel.gateways)
        if barrier in operator.cuts and gateway.state(barrier) is not State.OPENED
    }


def check_measured(waiting: _Waiting, measured: Iterable[QueryStatistics]) -> None:
    """Check what is said of a checkpoint that was given up.

    Args:
        waiting: what :func:`waiting_behind` said before.

    Raises:
        Violation: it is not how the gateways were.
    """
    said = {
        (operator.operator, subtask.subtask): subtask.blocked_events
        for query in measured
        for operator in query.operators
        for subtask in operator.subtasks
        if subtask.passed_seconds is None
    }
    if said != waiting:
        raise Violation(f"measured: a checkpoint was given up when {waiting} events waited, and it says {said}")


def _check_record(driver: Driver, record: Record) -> None:
    uid = getattr(record, "operator", None)
    driver.invariants.persisted(driver.core.generation, record, driver.operator(uid) if uid is not None else None)
    if isinstance(record, Begin) and record.held:
        driver.lineage.statistics.held_in_begins += 1


def _check_cuts(driver: Driver) -> None:
    operators = {operator.spec.uid: operator for operator in driver.core.operators()}
    for watched in driver.desk.done():
        # An older driver takes the commits of the newer one for its own; it will not store anything any more.
        if driver.claim.is_current():
            driver.invariants.captured(
                driver.core.generation, operators[watched.operator], watched, _durable_soon(driver, watched.query)
            )
            driver.lineage.statistics.count_cut(watched.cut.captured)
    driver.desk.forget({(uid, barrier) for uid, operator in operators.items() for barrier in operator.cuts})


def _durable_soon(driver: Driver, query: QueryName) -> View:
    # Everything that is written before a notice of now is executed.
    batches = [*driver.writer, driver.core._batch]
    records = [persist.record for batch in batches for persist in batch.persist if persist.query == query]
    return View.of([*driver.lineage.view(query, driver.core.generation).records, *records])


def tell_committed(driver: Driver, query: QueryName, run: Run) -> None:
    """Tell the core of Spark's newest commit, with what Spark's progress says: whether it is the run's own.

    Where an interrupt has left no progress, the core decides whether the commit can be the run's own; then durable
    facts count, as after a crash.

    Raises:
        Violation: a commit of another driver is settled, or the run's own is taken for one.
    """
    log, before = driver.logs[query], _committed(driver, query)
    is_own = log.committed_by == run.id
    if run.is_interrupted and log.committed > driver.core._queries[query].committed:
        driver.lineage.statistics.unreported_commits += 1
        if run.begun >= log.committed and driver.core.may_have_finished(query, log.committed):
            return
        unknown = range(driver.core._queries[query].committed + 1, log.committed + 1)
        # Spark can commit before a subtask whose output it cut off, and go on to the next epoch.
        if is_own and not any(epoch in log.plans and log.plans[Epoch(epoch)].is_cut for epoch in unknown):
            raise Violation(f"settle: {driver} takes its own epoch {log.committed} of {query} for another driver's")
    driver.core.committed(query, log.committed, driver.now, run.id if is_own else None)
    if not is_own and _committed(driver, query) != before:
        raise Violation(f"settle: {driver} settles epoch {log.committed} of {query}, which it has not committed")


def _committed(driver: Driver, query: QueryName) -> dict[OperatorUid, Epoch]:
    return {each.spec.uid: each.committed for each in driver.core.operators() if each.query == query}
