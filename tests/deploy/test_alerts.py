"""The alert rules: each is valid, fires when it should and not before, and has a page that says what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from coord_control.protocol.failures import FailureReason
from tests.deploy_kit import DEPLOY
from tests.places import CHECKOUT
from tests.prometheus_kit import RULES, alert_rules, promtool

PAGE: Final = CHECKOUT / "docs/operations/alerts.md"

JOB: Final = {"job_name": "flights"}
QUERY: Final = {**JOB, "query": "delays"}
OPERATOR: Final = {**QUERY, "operator": "limit"}
EXPORTER: Final = {"job": "coord-control-fleet", "instance": "exporter:9405"}


@dataclass(frozen=True)
class Case:
    """What is scraped once a minute, and when that is an alert.

    Attributes:
        series: in the notation of promtool: ``0 1``, ``0+60x10`` for ten more steps of 60, ``_`` for none.
        quiet: the last minute without an alert.
        fires: the first minute with one.
        labels: of the alert, besides its name and severity.
    """

    series: Mapping[str, str]
    quiet: int
    fires: int
    labels: Mapping[str, str] = field(default_factory=lambda: JOB)


def of(name: str, labels: Mapping[str, str], **more: str) -> str:
    """How a series is written."""
    written = ",".join(f'{key}="{value}"' for key, value in {**labels, **more}.items())
    return f"{name}{{{written}}}"


def driver(name: str, labels: Mapping[str, str] = JOB, **more: str) -> str:
    return of(f"coord_control_{name}", labels, **more)


def fleet(name: str, labels: Mapping[str, str] = JOB, **more: str) -> str:
    return of(f"coord_control_fleet_{name}", labels, **more)


OTHER: Final = {"job_name": "other"}  #: a job about which nobody has to be told

CASES: Final[dict[str, Case]] = {
    "CoordControlEventsBlocked": Case({driver("blocked_age_seconds", OPERATOR): "0 60 120"}, 1, 2, OPERATOR),
    "CoordControlChannelNearlyFull": Case(
        {driver("channel_max_bytes", OPERATOR): "0 26000000 26000000"}, 1, 2, OPERATOR
    ),
    "CoordControlCheckpointFailed": Case(
        {
            driver("checkpoints_failed_total", kind="checkpoint", reason="expired"): "0 0 1",
            driver("checkpoints_failed_total", kind="savepoint", reason="aborted"): "0 1 2",
        },
        1,
        2,
        {**JOB, "kind": "checkpoint", "reason": "expired"},
    ),
    "CoordControlCheckpointsKeepFailing": Case({fleet("checkpoint_failures_in_a_row"): "1 2 3"}, 1, 2),
    "CoordControlCheckpointOld": Case(
        {
            fleet("last_checkpoint_timestamp_seconds", kind="checkpoint"): "0x20",
            fleet("job_alive"): "1x20",
            fleet("last_checkpoint_timestamp_seconds", OTHER, kind="checkpoint"): "0x20",
            fleet("job_alive", OTHER): "0x20",
        },
        15,
        16,
    ),
    "CoordControlCheckpointSlow": Case(
        {driver("checkpoint_in_progress_start_timestamp_seconds", kind="savepoint"): "0x10"},
        5,
        6,
        {**JOB, "kind": "savepoint"},
    ),
    "CoordControlDriverDead": Case(
        {
            fleet("job_alive"): "1 0 0",
            fleet("job_alive", OTHER): "1 0 0",
            fleet("job_end_timestamp_seconds", OTHER): "_ 60 60",
        },
        1,
        2,
    ),
    "CoordControlJobFailed": Case(
        {fleet("job_state", state="failed"): "0 1", fleet("job_state", state="stopped"): "1 1"},
        0,
        1,
        {**JOB, "state": "failed"},
    ),
    "CoordControlDriverCrashLoop": Case({fleet("generation"): "1 2 3 4 5"}, 3, 4),
    "CoordControlDriverNotScraped": Case(
        {fleet("job_alive"): "1x10", fleet("job_alive", OTHER): "1x10", driver("job_up", OTHER): "1x10"}, 4, 5
    ),
    "CoordControlQueryRestarts": Case({driver("query_restarts_total", QUERY): "0 1 2 3"}, 2, 3, QUERY),
    "CoordControlEpochStuck": Case(
        {
            driver("operator_epoch", OPERATOR): "7x20",
            driver("operator_epoch", {**OPERATOR, "operator": "busy"}): "0+1x20",
        },
        14,
        15,
        OPERATOR,
    ),
    "CoordControlBacklogGrowing": Case(
        {
            fleet("query_backlog", QUERY): "20000+100x30",
            fleet("query_backlog", {**QUERY, "query": "large"}): "50000-100x30",
            fleet("query_backlog", {**QUERY, "query": "small"}): "0+100x30",
        },
        15,
        16,
        QUERY,
    ),
    "CoordControlNondeterministicSubtask": Case(
        {driver("nondeterministic_subtasks_total", OPERATOR): "0 0 1"}, 1, 2, OPERATOR
    ),
    "CoordControlSlowCoordinator": Case({driver("slow_callbacks_total"): "0 2 4"}, 1, 2),
    "CoordControlStorageSlow": Case(
        {
            driver("group_commit_duration_seconds_bucket", le="1"): "0x20",
            driver("group_commit_duration_seconds_bucket", le="2.5"): "0+60x20",
            driver("group_commit_duration_seconds_bucket", le="+Inf"): "0+60x20",
        },
        10,
        11,
    ),
    "CoordControlConnectionsRejected": Case(
        {
            driver("endpoint_rejections_total", reason="secret"): "0 5 20",
            driver("endpoint_rejections_total", reason="tls"): "0 1 1",
        },
        1,
        2,
        {**JOB, "reason": "secret"},
    ),
    "CoordControlExporterDown": Case(
        {of("up", EXPORTER): "1 0 0 0", of("up", {"job": "another"}): "0x3"}, 2, 3, EXPORTER
    ),
    "CoordControlDatabaseDown": Case({driver("database_up", EXPORTER): "1 0 0 0"}, 2, 3, EXPORTER),
    "CoordControlAgentDisconnected": Case({driver("agent_connected"): "1 0 0 0"}, 2, 3),
    "CoordControlRecordsLost": Case({driver("agent_dropped_records_total"): "0 0 5"}, 1, 2),
    "CoordControlCommandWaits": Case(
        {
            fleet("oldest_open_command_timestamp_seconds", kind="trigger_savepoint", state="pending"): "0x10",
            fleet("oldest_open_command_timestamp_seconds", kind="stop", state="pending"): "0+60x10",
            fleet("oldest_open_command_timestamp_seconds", kind="verify", state="claimed"): "0x10",
            fleet("oldest_open_command_timestamp_seconds", kind="send_event", state="claimed"): "-3600x10",
        },
        5,
        6,
        {**JOB, "kind": "trigger_savepoint", "state": "pending"},
    ),
}


#: Alerts that there are two reasons for: the other one.
OTHER_CASES: Final[dict[str, Case]] = {
    # A job that never had a checkpoint, beside one that has them, and one that is younger.
    "CoordControlCheckpointOld": Case(
        {
            fleet("driver_start_time_seconds"): "0x20",
            fleet("job_alive"): "1x20",
            fleet("last_checkpoint_timestamp_seconds", kind="savepoint"): "0+60x20",
            fleet("driver_start_time_seconds", OTHER): "0x20",
            fleet("job_alive", OTHER): "1x20",
            fleet("last_checkpoint_timestamp_seconds", OTHER, kind="checkpoint"): "0+60x20",
            fleet("driver_start_time_seconds", {"job_name": "young"}): "300x20",
            fleet("job_alive", {"job_name": "young"}): "1x20",
            fleet("driver_start_time_seconds", {"job_name": "over"}): "0x20",
            fleet("job_alive", {"job_name": "over"}): "0x20",
        },
        15,
        16,
    ),
    "CoordControlCommandWaits": Case(
        {
            fleet("oldest_open_command_timestamp_seconds", kind="verify", state="claimed"): "0x20",
            fleet("oldest_open_command_timestamp_seconds", kind="stop", state="claimed"): "0+60x20",
            fleet("oldest_open_command_timestamp_seconds", kind="send_event", state="claimed"): "-3600x20",
        },
        15,
        16,
        {**JOB, "kind": "verify", "state": "claimed"},
    ),
}


def without_annotations(folder: Path) -> list[str]:
    """The rules again; promtool compares every word of an alert, and the words are not what is tested here."""
    names = []
    for path in RULES:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        for group in content["groups"]:
            for rule in group["rules"]:
                rule.pop("annotations", None)
        (folder / path.name).write_text(yaml.safe_dump(content), encoding="utf-8")
        names.append(path.name)
    return names


def story(name: str, case: Case) -> dict[str, Any]:
    labels = {**alert_rules()[name]["labels"], **case.labels}
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
        "alert_rule_test": [
            {"eval_time": f"{case.quiet}m", "alertname": name, "exp_alerts": []},
            {"eval_time": f"{case.fires}m", "alertname": name, "exp_alerts": [{"exp_labels": labels}]},
        ],
    }


def test_prometheus_accepts_them() -> None:
    promtool("check", "rules", *RULES)


def test_prometheus_loads_them_with_the_settings_of_the_compose_file(tmp_path: Path) -> None:
    config = yaml.safe_load((DEPLOY / "compose/prometheus/prometheus.yml").read_text(encoding="utf-8"))
    assert all(pattern.startswith("/etc/prometheus/rules/") for pattern in config["rule_files"])
    config["rule_files"] = [str(path) for path in RULES]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    promtool("check", "config", tmp_path / "prometheus.yml")


def test_every_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    assert CASES.keys() == alert_rules().keys()
    stories = [story(name, case) for name, case in (*CASES.items(), *OTHER_CASES.items())]
    content = {"rule_files": without_annotations(tmp_path), "evaluation_interval": "1m", "tests": stories}
    (tmp_path / "stories.yml").write_text(yaml.safe_dump(content), encoding="utf-8")
    promtool("test", "rules", tmp_path / "stories.yml")


def test_the_tool_notices_an_alert_that_does_not_fire(tmp_path: Path) -> None:
    name = "CoordControlEventsBlocked"
    wrong = story(name, Case({driver("blocked_age_seconds", OPERATOR): "0 1 2"}, 1, 2, OPERATOR))
    content = {"rule_files": without_annotations(tmp_path), "evaluation_interval": "1m", "tests": [wrong]}
    (tmp_path / "stories.yml").write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(AssertionError, match="CoordControlEventsBlocked"):
        promtool("test", "rules", tmp_path / "stories.yml")


def test_a_failed_checkpoint_is_one_that_counts() -> None:
    found = re.search(r'reason=~"([^"]+)"', alert_rules()["CoordControlCheckpointFailed"]["expr"])
    assert found is not None
    assert set(found[1].split("|")) == {reason.code for reason in FailureReason if reason.counts}


def test_each_alert_has_a_paragraph_and_each_paragraph_an_alert() -> None:
    page = PAGE.read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### (\S+)\n+(.+?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL))
    assert list(sections) == list(alert_rules())
    assert all(len(text.split()) > 20 for text in sections.values())
    for name, rule in alert_rules().items():
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == f"{PAGE.relative_to(CHECKOUT)}#{name.lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning")
