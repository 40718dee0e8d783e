"""What Airflow reads about this package through the entry point ``apache_airflow_provider``."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["CONNECTION_TYPE", "get_provider_info"]

CONNECTION_TYPE: Final = "coord_control"

_INTEGRATION: Final = "coord-control"


def get_provider_info() -> dict[str, Any]:
    """Return the operators, the sensor, the hook and the connection type of this package."""
    return {
        "package-name": "coord-control",
        "name": "coord-control",
        "description": "Savepoints, control events and live values of PySpark Structured Streaming jobs",
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["service"]}],
        "operators": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": ["coord_control.airflow.operators", "coord_control.airflow.restore_operator"],
            }
        ],
        "sensors": [{"integration-name": _INTEGRATION, "python-modules": ["coord_control.airflow.freshness_sensor"]}],
        "hooks": [{"integration-name": _INTEGRATION, "python-modules": ["coord_control.airflow.hook"]}],
        "triggers": [{"integration-name": _INTEGRATION, "python-modules": ["coord_control.airflow.triggers"]}],
        "connection-types": [
            {
                "hook-class-name": "coord_control.airflow.hook.CoordControlHook",
                "hook-name": "coord-control",
                "connection-type": CONNECTION_TYPE,
                "ui-field-behaviour": {
                    "hidden-fields": [],
                    "relabeling": {"schema": "Database, or path of a SQLite file", "host": "PostgreSQL host"},
                    "placeholders": {"host": "leave empty for SQLite", "schema": "coord, or /var/lib/coord/control.db"},
                },
            }
        ],
    }
