"""Whether a job has a control plane, and which.

Threads: the one that opens the job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coord_control.control.settings import ControlSettings
from coord_control.spark.job.program_check import program_check

if TYPE_CHECKING:
    from coord_control.spark.job.control_plane import ControlPlane

__all__ = ["control_plane"]


def control_plane(url: str | None) -> ControlPlane | None:
    """Return the control plane of a job, or None if it has none, as in a check of its program.

    Raises:
        ControlSettingsInvalid, DatabaseUrlInvalid, DatabaseDriverMissing: ``url`` is invalid.
    """
    settings = ControlSettings.load(url)
    if settings.is_off or program_check() is not None:
        return None
    # It imports SQLAlchemy, which takes half a second, so a job without a control plane does not import it.
    from coord_control.spark.job.control_plane import ControlPlane

    return ControlPlane.of(settings)
