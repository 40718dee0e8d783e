"""Writes the dashboards of deploy/grafana: ``python -m scripts.dashboards``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from scripts.dashboards.fleet import fleet_dashboard
from scripts.dashboards.job import job_dashboard

__all__ = ["FOLDER", "files", "main"]

FOLDER: Final = Path(__file__).resolve().parents[2] / "deploy" / "grafana"


def files() -> dict[str, str]:
    """Return the dashboards as text, by file name."""
    return {"job.json": _text(job_dashboard()), "fleet.json": _text(fleet_dashboard())}


def main() -> None:
    """Write the dashboards."""
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def _text(made: Dashboard) -> str:
    return json.dumps(made, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    main()
