"""Builds all Dagster definitions of streaming jobs, for Python users and for the component.

    defs = build_streaming_definitions(ControlPlaneSpec(jobs=[StreamingJobSpec(name="flights")]))

Nothing here reads the control database: a code location loads without it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import dagster as dg

from coord_control.dagster.asset_checks import build_checks
from coord_control.dagster.definitions.action_jobs import build_jobs
from coord_control.dagster.definitions.assets import build_assets
from coord_control.dagster.definitions.schedules import build_schedules
from coord_control.dagster.definitions.sensor import build_sensor
from coord_control.dagster.definitions.supervision_sensor import build_supervisor
from coord_control.dagster.facts import DatabaseFacts, resolved_jobs
from coord_control.dagster.resource import RESOURCE_KEY, ControlPlaneResource
from coord_control.dagster.spec import ControlPlaneSpec, StreamingJobSpec
from coord_control.dagster.translator import StreamingJobTranslator
from coord_control.errors import AssetKeyTaken, CoordControlError

__all__ = ["build_streaming_definitions", "streaming_job_definitions"]


def build_streaming_definitions(
    spec: ControlPlaneSpec,
    *,
    facts: DatabaseFacts | None = None,
    translator: StreamingJobTranslator | None = None,
) -> dg.Definitions:
    """Return assets, checks, schedules, sensors, jobs and the resource for the streaming jobs of a control database.

    Args:
        facts: what is known about the database; without it, only jobs and queries in ``spec`` get assets.
        translator: chooses the names.

    Raises:
        AssetKeyTaken: two assets would have the same key.
    """
    translator = translator or StreamingJobTranslator()
    jobs = resolved_jobs(spec, facts)
    _check_keys(jobs, translator)
    resource = ControlPlaneResource(database=spec.database or "")
    supervisor = build_supervisor(jobs, translator)
    return dg.Definitions(
        assets=build_assets(jobs, translator, database=_address(resource), page=spec.page),
        asset_checks=build_checks(jobs, translator),
        jobs=build_jobs(jobs, translator, facts),
        schedules=build_schedules(jobs, translator),
        sensors=[build_sensor(spec, jobs, translator), *([] if supervisor is None else [supervisor])],
        resources={RESOURCE_KEY: resource},
    )


def streaming_job_definitions(
    name: str,
    *,
    database: str | None = None,
    facts: DatabaseFacts | None = None,
    translator: StreamingJobTranslator | None = None,
    **more: Any,
) -> dg.Definitions:
    """Return the definitions for a single job; see :func:`build_streaming_definitions`.

    Args:
        database: the database URL; defaults to ``COORD_CONTROL``, or else to the user's embedded database.
        more: other fields of :class:`~coord_control.dagster.spec.StreamingJobSpec`.

    Raises:
        AssetKeyTaken: two assets would have the same key.
    """
    spec = ControlPlaneSpec(database=database, jobs=[StreamingJobSpec(name=name, **more)])
    return build_streaming_definitions(spec, facts=facts, translator=translator)


def _check_keys(jobs: Sequence[StreamingJobSpec], translator: StreamingJobTranslator) -> None:
    owners: defaultdict[dg.AssetKey, list[str]] = defaultdict(list)
    for job in jobs:
        owners[translator.checkpoint_key(job)].append(f"the checkpoints of job {job.name!r}")
        owners[translator.savepoint_key(job)].append(f"the savepoints of job {job.name!r}")
        for query in job.queries or ():
            owners[translator.query_key(job, query)].append(f"query {query.name!r} of job {job.name!r}")
    for key, names in owners.items():
        if len(names) > 1:
            raise AssetKeyTaken(key.to_user_string(), names)


def _address(resource: ControlPlaneResource) -> str | None:
    """Return the URL to show, without a password, or None if it is invalid, which the runs will report."""
    try:
        with resource.client("dagster:definitions") as client:
            return client.url
    except CoordControlError:
        return None
