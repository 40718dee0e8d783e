"""Alerts without Prometheus: a sensor that notifies people when a check begins to fail, and when it passes again.

It reads the newest outcome of each check of the code location, from the sensor or from a run. The cursor holds the
checks whose failure was sent. If the callable raises, the cursor leaves that check as it was, and the next tick tries
again: an alert is sent at least once.

Threads: the sensor runs on the tick's thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

import dagster as dg
from dagster import AssetCheckEvaluation

from coord_control.dagster.asset_checks import CHECKS

__all__ = ["ALERTS_NAME", "CheckAlert", "build_check_alert_sensor"]

ALERTS_NAME: Final = "streaming_check_alert_sensor"
_INTERVAL_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class CheckAlert:
    """A check that has begun to fail, or passes again; ``str()`` is a sentence for people.

    Attributes:
        asset: with its path, such as ``flights/checkpoint``.
        check: its name, such as ``backlog``.
        passed: whether it passes again.
        severity: ``ERROR`` or ``WARN``.
        description: what the check has found.
    """

    asset: str
    check: str
    passed: bool
    severity: str
    description: str

    def __str__(self) -> str:
        verb = "passes again" if self.passed else "fails" if self.severity == "ERROR" else "warns"
        return f"{self.asset}: {self.check} {verb}: {self.description}"


def build_check_alert_sensor(
    notify: Callable[[CheckAlert], object],
    *,
    checks: Collection[str] = tuple(CHECKS),
    name: str = ALERTS_NAME,
    minimum_interval_seconds: int = _INTERVAL_SECONDS,
) -> dg.SensorDefinition:
    """Return a sensor that calls ``notify`` once for each check that begins to fail, and once when it passes again.

    Put it into the same code location as the streaming jobs. An alert is repeated if ``notify`` raises, and if Dagster
    dies before it has written the sensor's cursor.

    Args:
        notify: sends the alert: to Slack, by e-mail, to a pager. Give it a timeout of seconds.
        checks: the names of the checks; yours as well.
        minimum_interval_seconds: between two looks.
    """

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        sent = set(json.loads(context.cursor or "[]"))
        failed: list[str] = []
        for key, alert in _news(context, frozenset(checks), sent):
            try:
                notify(alert)
            except Exception as error:
                context.log.exception(f"not sent: {alert}")
                failed.append(f"{alert.asset}: {alert.check} ({type(error).__name__}: {error})")
                continue
            (sent.discard if alert.passed else sent.add)(key)
        reason = f"tried again later, because they could not be sent: {'; '.join(failed)}" if failed else None
        return dg.SensorResult(skip_reason=reason, cursor=json.dumps(sorted(sent)))

    return dg.SensorDefinition(
        name=name,
        evaluation_fn=evaluate,
        minimum_interval_seconds=minimum_interval_seconds,
        description="Notifies people when a check of a streaming job begins to fail, and when it passes again.",
        default_status=dg.DefaultSensorStatus.RUNNING,
    )


def _news(
    context: dg.SensorEvaluationContext, checks: frozenset[str], sent: set[str]
) -> Iterator[tuple[str, CheckAlert]]:
    """Yield each check that is not as it was sent last."""
    assert context.repository_def is not None, "a sensor belongs to a code location"
    keys = [key for key in context.repository_def.asset_checks_defs_by_key if key.name in checks]
    found = context.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    for key in sorted(found, key=str):
        evaluation = found[key].evaluation
        name = f"{key.asset_key.to_user_string()}:{key.name}"
        if isinstance(evaluation, AssetCheckEvaluation) and evaluation.passed is (name in sent):
            yield (
                name,
                CheckAlert(
                    asset=key.asset_key.to_user_string(),
                    check=key.name,
                    passed=evaluation.passed,
                    severity=evaluation.severity.value,
                    description=evaluation.description or "",
                ),
            )
