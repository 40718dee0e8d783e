"""The metrics of ``coordctl exporter``: the control database, and every job in it as last reported by its driver.

The names differ from those of a driver, so that a sum over one of them never counts the same thing twice.
"""

from __future__ import annotations

from typing import Final

from coord_control.control.measure import Place, shown
from coord_control.control.measures import CHECKPOINT
from coord_control.metrics.metric import OPERATOR, PREFIX, QUERY, SUBTASK, Metric, MetricKind, Source

__all__ = ["FLEET"]


def _gauge(name: str, help_: str, labels: tuple[str, ...] = (), *, on_request: bool = False) -> Metric:
    return Metric(f"{PREFIX}fleet_{name}", MetricKind.GAUGE, help_, labels, Source.EXPORTER, on_request=on_request)


def _counter(name: str, help_: str, labels: tuple[str, ...] = (), *, on_request: bool = False) -> Metric:
    return Metric(f"{PREFIX}fleet_{name}", MetricKind.COUNTER, help_, labels, Source.EXPORTER, on_request=on_request)


def _of_database(name: str, kind: MetricKind, help_: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(PREFIX + name, kind, help_, labels, Source.EXPORTER, is_of_job=False)


_DATABASE: Final = (
    _of_database("exporter_info", MetricKind.INFO, "Version of the exporter.", ("version", "python_version")),
    _of_database("database_up", MetricKind.GAUGE, "1 when the control database has answered, 0 when it has not."),
    _of_database("database_failures_total", MetricKind.COUNTER, "Reads of the control database that failed."),
    _of_database("database_read_duration_seconds", MetricKind.GAUGE, "How long the last read that worked took."),
    _of_database(
        "database_read_timestamp_seconds", MetricKind.GAUGE, "When these metrics were read, in seconds since 1970."
    ),
    _of_database(
        "fleet_jobs", MetricKind.GAUGE, "Jobs by state, and whether their driver is alive.", ("state", "alive")
    ),
)

_JOBS: Final = (
    Metric(
        PREFIX + "fleet_job_info",
        MetricKind.INFO,
        "Versions of the job's driver, and where it runs.",
        ("version", "spark_version", "host", "pid", "supervised"),
        Source.EXPORTER,
    ),
    _gauge("job_alive", "1 when the driver's last heartbeat is within its lease and the job has not ended."),
    _gauge("job_state", "1 for the state that the driver last reported, 0 for the others.", ("state",)),
    _gauge("generation", "Generation of the driver: one more for each driver that the job has had."),
    _gauge("driver_start_time_seconds", "When the driver started, in seconds since 1970."),
    _gauge("heartbeat_timestamp_seconds", "When the driver last wrote, in seconds since 1970."),
    _gauge("lease_seconds", "How long after a heartbeat the driver counts as alive."),
    _gauge(
        "job_end_timestamp_seconds",
        "When the job ended, in seconds since 1970; without a sample it is running or lost.",
    ),
    _gauge("agent_buffered_records", "Records that wait in the driver for the database."),
    _counter("agent_dropped_records_total", "Records that the driver has lost."),
    _counter("agent_database_failures_total", "The driver's failed attempts to use the database."),
)

_QUERIES: Final = (
    _gauge("query_state", "1 for the current state of the query, 0 for the others.", ("query", "state")),
    _gauge("query_epoch", "Last epoch of the query that Spark has committed; without a sample there is none.", QUERY),
    _counter("query_restarts_total", "Restarts of the query in place, by its present driver.", QUERY),
    _gauge("query_input_rows_per_second", "Rows per second that the last batch took in from the sources.", QUERY),
    _gauge(
        "query_backlog",
        "Records that the sources had at the last batch and the query had not read; without a sample none reports it.",
        QUERY,
    ),
    _gauge("query_rows_per_second", "How fast Spark processed the last batch.", QUERY),
    _gauge("query_state_rows", "Rows of state that Spark keeps for the query.", QUERY),
    _gauge("query_watermark_timestamp_seconds", "Watermark of the query, in seconds since 1970.", QUERY),
    _gauge(
        "query_watermark_lag_seconds",
        "How far the watermark is behind the newest event of the last batch that had any.",
        QUERY,
    ),
)

_OPERATORS: Final = (
    _gauge("operator_subtasks", "Declared parallelism of the operator.", OPERATOR),
    _gauge("operator_epoch", "Epoch that ran at the last heartbeat; without a sample none did.", OPERATOR),
    _gauge("blocked_events", "Events that waited behind closed barriers at the last heartbeat.", OPERATOR),
    _gauge("closed_gateways", "Gateways that were closed at the last heartbeat.", OPERATOR),
    _gauge("mailbox_events", "Events that waited for the next epoch of their subtask.", OPERATOR),
    _counter("events_blocked_total", "Events that had to wait since the query was last restarted.", OPERATOR),
    _counter(
        "blocked_seconds_total",
        "Time during which an event waited since the query was last restarted, added up over the operator's gateways.",
        OPERATOR,
    ),
    _gauge("control_event_durable_number", "Number of the newest control event whose effect is durable.", OPERATOR),
)

_LIVE_VALUES: Final = (
    _gauge(
        "live_value",
        "Numbers and booleans of each live value, as accepted; queries see them from their next epoch on.",
        ("live", "field"),
    ),
    _gauge("live_value_version", "Accepted version of the live value.", ("live",)),
    _gauge("live_value_change_timestamp_seconds", "When the live value was changed, in seconds since 1970.", ("live",)),
    _gauge("live_value_query_version", "Version that the newest epoch of the query has seen.", ("query", "live")),
)

_CHECKPOINTS: Final = (
    _counter("checkpoints_completed_total", "Checkpoints and savepoints that were completed, ever.", ("kind",)),
    _counter("checkpoints_failed_total", "Checkpoints and savepoints that failed, ever.", ("kind",)),
    _gauge("checkpoints_stored", "Completed checkpoints that are on the storage.", ("kind",)),
    _gauge("checkpoints_in_progress", "Checkpoints and savepoints in progress."),
    _gauge("checkpoint_failures_in_a_row", "Checkpoints that count as failed since the last one that was completed."),
    _gauge(
        "checkpoint_failures_last_hour", "Checkpoints that failed within the last hour, by reason.", ("kind", "reason")
    ),
    _gauge("last_checkpoint_id", "Id of the newest completed checkpoint on the storage.", ("kind",)),
    _gauge(
        "last_checkpoint_timestamp_seconds",
        "When the newest completed checkpoint was completed, in seconds since 1970.",
        ("kind",),
    ),
    *(
        _gauge(f"last_checkpoint_{each.name}", each.meaning.format("the newest completed checkpoint"), ("kind",))
        for each in shown(CHECKPOINT, Place.METRIC)
    ),
    _gauge("last_failed_checkpoint_id", "Id of the newest failed checkpoint.", ("kind",)),
    _gauge(
        "last_failed_checkpoint_timestamp_seconds",
        "When the newest failed checkpoint failed, in seconds since 1970.",
        ("kind",),
    ),
)

_HISTORY: Final = (
    _gauge("recoveries_last_hour", "Recoveries that began within the last hour, by cause.", ("cause",)),
    _gauge("last_recovery_timestamp_seconds", "When the last recovery began, in seconds since 1970."),
    _gauge(
        "last_recovery_duration_seconds",
        "How long the last recovery took; without a sample it has not ended, or there was none.",
    ),
    _gauge("commands_open", "Commands that no driver has claimed yet, or that are in progress.", ("kind", "state")),
    _gauge(
        "oldest_open_command_timestamp_seconds",
        "When the oldest of the open commands was requested, in seconds since 1970.",
        ("kind", "state"),
    ),
    _gauge("commands_last_hour", "Commands of the last hour that have ended, by outcome.", ("kind", "outcome")),
)

_SUBTASKS: Final = (
    _gauge("subtask_gateway_open", "1 when an event that was sent would not have waited.", SUBTASK, on_request=True),
    _gauge("subtask_blocked_events", "Events that waited at the last heartbeat.", SUBTASK, on_request=True),
    _counter(
        "subtask_events_blocked_total",
        "Events that had to wait since the query was last restarted.",
        SUBTASK,
        on_request=True,
    ),
    _counter(
        "subtask_blocked_seconds_total",
        "Time during which at least one event waited since the query was last restarted.",
        SUBTASK,
        on_request=True,
    ),
    _gauge("subtask_mailbox_events", "Events that waited for the next epoch.", SUBTASK, on_request=True),
    Metric(
        PREFIX + "fleet_subtasks_left_out",
        MetricKind.GAUGE,
        "Subtasks of all jobs that a scrape with ?subtasks=N does not show.",
        source=Source.EXPORTER,
        is_of_job=False,
        on_request=True,
    ),
)

FLEET: Final[tuple[Metric, ...]] = (
    *_DATABASE,
    *_JOBS,
    *_QUERIES,
    *_OPERATORS,
    *_LIVE_VALUES,
    *_CHECKPOINTS,
    *_HISTORY,
    *_SUBTASKS,
)
