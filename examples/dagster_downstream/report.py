"""An asset that waits for savepoints: Dagster automatically writes a page about each new one.

Every savepoint becomes a materialization of the job's ``savepoint`` asset, whether it was taken by a run, a schedule or
a terminal on another machine, and the condition below only depends on that. The content of the page comes from the
metadata of the materialization; neither Spark nor the control database is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import dagster as dg

__all__ = ["NEW_SAVEPOINT", "ReportFolder", "page", "savepoint_report", "savepoint_report_definitions"]

#: There is a savepoint for which no run of this asset was started, and no run is in progress.
NEW_SAVEPOINT: Final = (
    dg.AutomationCondition.any_deps_updated().since_last_handled() & ~dg.AutomationCondition.in_progress()
).with_label("there is a new savepoint")

_FACTS: Final = ("kind", "label", "path", "size_bytes", "duration_seconds", "requested_by", "note")


class ReportFolder(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The folder of the pages."""

    path: str


def savepoint_report(savepoint: dg.AssetKey) -> dg.AssetsDefinition:
    """Return the asset ``<job>/savepoint_report`` downstream of ``<job>/savepoint``."""
    key = dg.AssetKey([*savepoint.path[:-1], "savepoint_report"])

    @dg.asset(
        key=key,
        deps=[savepoint],
        automation_condition=NEW_SAVEPOINT,
        group_name=savepoint.path[0],
        description="A page about the newest savepoint.",
        kinds={"markdown"},
    )
    def report(reports: ReportFolder) -> dg.MaterializeResult[None]:
        event = dg.AssetExecutionContext.get().instance.get_latest_materialization_event(savepoint)
        found = None if event is None else event.asset_materialization
        if found is None:
            raise dg.Failure(f"There is no savepoint yet: materialize {savepoint.to_user_string()} first.")
        facts = {name.removeprefix("coord_control/"): entry.value for name, entry in found.metadata.items()}
        text = page(savepoint.path[0], facts)
        path = Path(reports.path) / f"savepoint-{facts.get('checkpoint_id')}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return dg.MaterializeResult(
            metadata={
                "savepoint": facts.get("checkpoint_id"),
                "page": dg.MetadataValue.md(text),
                "file": dg.MetadataValue.path(str(path)),
            }
        )

    return report


def page(job: str, facts: Mapping[str, Any]) -> str:
    """Return the page about a savepoint, as Markdown."""
    lines = [f"# Savepoint {facts.get('checkpoint_id')} of {job}", ""]
    lines += [f"* {name}: `{facts[name]}`" for name in _FACTS if facts.get(name) is not None]
    queries = facts.get("queries")
    if isinstance(queries, dg.TableMetadataValue):
        queries = queries.records
    for record in queries or ():
        row = record.data
        lines.append(f"* query `{row.get('query')}`: up to epoch {row.get('epoch')}")
    return "\n".join([*lines, ""])


def savepoint_report_definitions(savepoint: dg.AssetKey, folder: str) -> dg.Definitions:
    """The asset, the sensor that looks at its condition, and where its pages go."""
    report = savepoint_report(savepoint)
    sensor = dg.AutomationConditionSensorDefinition(
        f"{savepoint.path[0]}_automation",
        target=dg.AssetSelection.assets(report.key),
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=15,
    )
    return dg.Definitions(assets=[report], sensors=[sensor], resources={"reports": ReportFolder(path=folder)})
