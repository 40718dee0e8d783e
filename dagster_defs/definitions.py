"""The code location of this repository: ``dg dev`` or ``dagster dev`` in its folder, with nothing configured.

What it has is written in ``defs/streaming_jobs/defs.yaml``: all jobs of the control database that ``COORD_CONTROL``
names, or of the user's embedded one.
"""

from __future__ import annotations

from pathlib import Path

import dagster as dg

__all__ = ["defs"]


@dg.definitions
def defs() -> dg.Definitions:
    """Load what is below ``defs``."""
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
