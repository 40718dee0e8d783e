"""Links from an asset to the page of its job, to Spark's page and to the driver's log; what is not known has none."""

from __future__ import annotations

from urllib.parse import quote

import dagster as dg

from coord_control.storage.records import JobRecord

__all__ = ["link_entries"]


def link_entries(
    job: str, record: JobRecord | None, *, page: str | None, checkpoint: int | None = None
) -> dict[str, object]:
    """Return links as metadata entries.

    Args:
        record: what is known of the job.
        page: the address of ``coordctl ui``, or None.
        checkpoint: link to the page of this checkpoint instead of the job's.
    """
    found: dict[str, object] = {}
    if page is not None:
        below = "" if checkpoint is None else f"/checkpoints/{checkpoint}"
        found["page"] = dg.MetadataValue.url(f"{page.rstrip('/')}/jobs/{quote(job, safe='')}{below}")
    if record is not None and record.is_alive and record.live is not None and record.live.spark_ui:
        found["spark_ui"] = dg.MetadataValue.url(record.live.spark_ui)
    if record is not None and record.log_file is not None:
        found["log_file"] = dg.MetadataValue.path(record.log_file)
    return found
