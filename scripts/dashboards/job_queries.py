"""How the queries of one job's dashboard are written: its labels, and the usual functions over a metric.

Values and pure functions.
"""

from __future__ import annotations

from typing import Final

__all__ = ["BY_CHECKPOINT", "BY_EPOCH", "CHECKPOINT", "JOB", "OPERATOR", "QUERY", "of", "p95", "rate"]

JOB: Final = 'job_name="$job"'
QUERY: Final = f'{JOB}, query=~"$query"'
OPERATOR: Final = f'{QUERY}, operator=~"$operator"'
BY_EPOCH: Final = f'{OPERATOR}, cause="epoch"'
BY_CHECKPOINT: Final = f'{OPERATOR}, cause="checkpoint"'
CHECKPOINT: Final = f'{JOB}, kind="checkpoint"'


def of(name: str, labels: str = OPERATOR) -> str:
    """Return the expression of a driver's metric, given its name without the prefix."""
    return f"coord_control_{name}{{{labels}}}"


def rate(name: str, labels: str = OPERATOR) -> str:
    """Return the expression of a counter per second."""
    return f"rate({of(name, labels)}[$__rate_interval])"


def p95(name: str, by: str, labels: str) -> str:
    """Return the expression of the 95th percentile of a histogram, by some labels."""
    return f"histogram_quantile(0.95, sum by ({by}, le) ({rate(f'{name}_bucket', labels)}))"
