"""The assets that stand for the checkpoints and savepoints of a job, and the metadata of their events.

Name one as an outlet of an operator, and each completed checkpoint becomes an event of it, with the result of the task
as ``extra``; DAGs that are scheduled on the asset then start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from airflow.sdk import Asset

from coord_control.airflow.task_result import Metadata

__all__ = ["checkpoint_asset", "report_to_outlets", "savepoint_asset"]


def checkpoint_asset(job: str) -> Asset:
    """Return the asset of a job's checkpoints."""
    return _asset(job, "checkpoint")


def savepoint_asset(job: str) -> Asset:
    """Return the asset of a job's savepoints."""
    return _asset(job, "savepoint")


def report_to_outlets(context: Mapping[str, Any], outlets: Iterable[object], metadata: Metadata) -> None:
    """Add the metadata to the event of each outlet that is an asset."""
    for outlet in outlets:
        if isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra.update(metadata)


def _asset(job: str, kind: str) -> Asset:
    return Asset(f"coord-control://{quote(job, safe='')}/{kind}", group="coord_control")
