"""What orchestrators show of a checkpoint, as plain values: Dagster's metadata and Airflow's XComs are made from it.

Names never change. Durations are in seconds, sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from coord_control.control.measure import Place, shown
from coord_control.control.measures import CHECKPOINT
from coord_control.storage.records import CheckpointRecord, JobRecord, LiveValueRecord

__all__ = ["checkpoint_values", "live_numbers", "measured"]


def checkpoint_values(record: CheckpointRecord, job: JobRecord | None = None) -> dict[str, object]:
    """Return the values of a completed checkpoint or savepoint; None for what is unknown.

    Args:
        job: the job, for its live values and the number of restarts of its queries.
    """
    return {
        "checkpoint_id": record.id,
        "kind": record.kind.value,
        "label": record.label,
        "path": record.path,
        **measured(record, Place.DAGSTER),
        "cause": record.cause,
        "requested_by": record.requested_by,
        "triggered_at": record.triggered_at,
        "finished_at": record.finished_at,
        "generation": record.generation,
        "restarts": None if job is None else sum(query.restarts for query in job.queries),
        **({} if job is None else live_numbers(job.live_values)),
    }


def measured(record: CheckpointRecord, place: Place) -> dict[str, object]:
    """Return the measures of a checkpoint that are shown at a place, by their names in orchestrators."""
    return {measure.dagster or measure.name: measure.value(record) for measure in shown(CHECKPOINT, place)}


def live_numbers(values: Sequence[LiveValueRecord], query: str | None = None) -> dict[str, object]:
    """Return the versions of live values, and their fields that are numbers or booleans (as 0 and 1).

    Args:
        query: what this query sees in its newest epoch, or None for what is accepted.
    """
    found: dict[str, object] = {}
    for each in values:
        version = each.version if query is None else each.uses[query].version
        found[f"live/{each.name}/version"] = version
        for name, value in each.value.items() if version == each.version else ():
            if isinstance(value, (bool, int, float)):
                found[f"live/{each.name}/{name}"] = int(value) if isinstance(value, bool) else value
    return found
