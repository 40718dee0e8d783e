"""The metrics of a driver, grouped by subject."""

from __future__ import annotations

from typing import Final

from coord_control.control.measure import Place, shown
from coord_control.control.measures import CHECKPOINT
from coord_control.metrics.metric import OPERATOR, PREFIX, QUERY, SUBTASK, Metric, MetricKind, counter, gauge

__all__ = ["DRIVER"]


def _histogram(name: str, help_: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(PREFIX + name, MetricKind.HISTOGRAM, help_, labels)


_JOB: Final = (
    Metric(
        PREFIX + "driver_info",
        MetricKind.INFO,
        "Versions of the driver and of the subtask protocol, and where the driver runs.",
        ("version", "spark_version", "python_version", "protocol_version", "host", "pid", "master"),
    ),
    gauge("job_up", "1 while the job runs, 0 when it is ending or has failed; without a sample the driver is gone."),
    gauge("generation", "Generation of the driver: one more for each driver that the job has had."),
    gauge("driver_start_time_seconds", "When the driver opened the job, in seconds since 1970."),
    counter("slow_callbacks_total", "Coordinator callbacks that took longer than slow_callback_seconds."),
    gauge("callbacks_waiting", "Coordinator callbacks that wait for the one that is running."),
    counter("group_commits_total", "Writes of the epoch store."),
    counter("group_commit_records_total", "Records in the writes of the epoch store."),
    _histogram("group_commit_duration_seconds", "How long one write of the epoch store takes until it is durable."),
)

_QUERIES: Final = (
    Metric(
        PREFIX + "query_info",
        MetricKind.INFO,
        "Spark's id of the query, and the lineage in which it runs: a new one after each restore.",
        ("query", "query_id", "lineage"),
    ),
    gauge("query_state", "1 for the current state of the query, 0 for the others.", ("query", "state")),
    gauge("query_epoch", "Last epoch of the query that Spark has committed; without a sample there is none.", QUERY),
    counter("query_restarts_total", "Restarts of the query in place, by this driver.", QUERY),
    counter("query_batches_total", "Batches of the query that Spark has reported.", QUERY),
    counter("query_rows_total", "Rows that the query has read.", QUERY),
    counter("query_batch_seconds_total", "Time that Spark spent in batches of the query.", QUERY),
    gauge("query_input_rows_per_second", "Rows per second that the last batch took in from the sources.", QUERY),
    gauge("query_processed_rows_per_second", "How fast Spark processed the last batch.", QUERY),
    gauge(
        "query_backlog",
        "Records that a source had at the last batch and the query had not read; only sources that report it.",
        ("query", "source"),
    ),
    gauge(
        "query_batch_part_seconds",
        "How long each part of the last batch took, as Spark names it.",
        ("query", "part"),
    ),
    gauge("query_state_rows", "Rows of state that Spark keeps for the query.", QUERY),
    gauge("query_watermark_timestamp_seconds", "Watermark of the query, in seconds since 1970.", QUERY),
    gauge(
        "query_watermark_lag_seconds",
        "How far the watermark is behind the newest event of the last batch that had any.",
        QUERY,
    ),
)

_BLOCKED: Final = (
    gauge(
        "blocked_events",
        "Events that wait behind closed barriers now, by what closed them: the start of an epoch, or a checkpoint.",
        (*OPERATOR, "cause"),
    ),
    gauge("blocked_subtasks", "Subtasks for which at least one event waits behind a closed barrier now.", OPERATOR),
    gauge(
        "blocked_age_seconds",
        "How long the oldest event behind a closed barrier has waited; 0 if none waits.",
        OPERATOR,
    ),
    gauge(
        "blocked_checkpoint_id",
        "Oldest checkpoint behind whose barrier events wait now; without a sample there is none.",
        OPERATOR,
    ),
    gauge("closed_gateways", "Gateways at which an event that is sent now would have to wait.", OPERATOR),
    counter("events_blocked_total", "Events that had to wait behind a closed barrier.", OPERATOR),
    counter(
        "blocked_seconds_total",
        "Time during which at least one event waited at a gateway, added up over the operator's gateways.",
        OPERATOR,
    ),
)

_OPERATORS: Final = (
    gauge("operator_subtasks", "Declared parallelism of the operator.", OPERATOR),
    gauge("operator_epoch", "Epoch that is running now; without a sample there is none.", OPERATOR),
    gauge("mailbox_events", "Events that wait in the driver for the next epoch of their subtask.", OPERATOR),
    gauge("outbox_events", "Events of subtasks that wait in the driver for the commit of the running epoch.", OPERATOR),
    gauge(
        "channel_bytes",
        "Bytes that wait for subtasks: before and behind barriers, and inputs not asked for yet.",
        OPERATOR,
    ),
    gauge(
        "channel_max_bytes",
        "Bytes that wait for the subtask with most of them; above 32 MiB the query fails.",
        OPERATOR,
    ),
    counter("epochs_total", "Epochs that were settled.", OPERATOR),
    counter("epoch_begins_recorded_total", "Epochs whose begin had to be made durable.", OPERATOR),
    counter("acks_total", "Acknowledgements of subtasks.", OPERATOR),
    counter("acks_recorded_total", "Acknowledgements that had to be made durable.", OPERATOR),
    counter("events_total", "Events by direction: down from the coordinator, up to it.", (*OPERATOR, "direction")),
    counter("rows_total", "Rows of subtasks by direction, in or out.", (*OPERATOR, "direction")),
    counter("nondeterministic_subtasks_total", "Subtasks that gave different results for the same input.", OPERATOR),
    counter("attempts_refused_total", "Requests of task attempts that were stale.", OPERATOR),
    counter("attempts_failed_total", "Task attempts that ended without an acknowledgement.", OPERATOR),
    _histogram(
        "epoch_begin_duration_seconds",
        "From the first subtask that asks for the epoch until the coordinator has given its state.",
        OPERATOR,
    ),
    _histogram(
        "epoch_ack_duration_seconds",
        "From the coordinator's state until the last subtask has acknowledged the epoch.",
        OPERATOR,
    ),
    _histogram(
        "epoch_settle_duration_seconds",
        "From the last acknowledgement until Spark's commit of the epoch has been settled.",
        OPERATOR,
    ),
    _histogram(
        "epoch_duration_seconds",
        "From the first subtask that asks for the epoch until its commit has been settled.",
        OPERATOR,
    ),
    _histogram(
        "coordinator_snapshot_duration_seconds",
        "From the question for the coordinator's state to its answer, for epochs and checkpoints.",
        OPERATOR,
    ),
    gauge("control_event_number", "Number of the newest control event delivered to the coordinator.", OPERATOR),
    gauge("control_event_durable_number", "Number of the newest control event whose effect is durable.", OPERATOR),
    gauge("control_events_waiting", "Control events that were accepted and wait for the coordinator.", OPERATOR),
    counter("control_events_total", "Control events by outcome: applied or refused.", (*OPERATOR, "outcome")),
)

_LIVE_VALUES: Final = (
    gauge(
        "live_value",
        "Numbers and booleans of each live value, as accepted; queries see them from their next epoch on.",
        ("live", "field"),
    ),
    gauge("live_value_version", "Accepted version of the live value.", ("live",)),
    gauge("live_value_change_timestamp_seconds", "When the live value was changed, in seconds since 1970.", ("live",)),
    gauge("live_value_query_version", "Version that the newest epoch of the query has seen.", ("query", "live")),
)

_CHECKPOINTS: Final = (
    counter("checkpoints_started_total", "Checkpoints and savepoints that were started.", ("kind",)),
    counter("checkpoints_completed_total", "Checkpoints and savepoints that were completed.", ("kind",)),
    counter("checkpoints_failed_total", "Checkpoints and savepoints that failed, by reason.", ("kind", "reason")),
    gauge("checkpoints_in_progress", "Checkpoints and savepoints in progress.", ("kind",)),
    gauge("checkpoint_failures_in_a_row", "Checkpoints that count as failed since the last one that was completed."),
    gauge(
        "checkpoint_in_progress_start_timestamp_seconds",
        "When the oldest checkpoint in progress was triggered, in seconds since 1970; without a sample there is none.",
        ("kind",),
    ),
    gauge("checkpoint_in_progress_subtasks", "Subtasks that take part in the checkpoints in progress.", ("kind",)),
    gauge(
        "checkpoint_in_progress_passed_subtasks",
        "Subtasks that have passed the boundary of a checkpoint in progress.",
        ("kind",),
    ),
    _histogram("checkpoint_duration_seconds", "How long a checkpoint took, from trigger to completion.", ("kind",)),
    _histogram(
        "checkpoint_failed_duration_seconds", "How long a failed checkpoint took, from trigger to failure.", ("kind",)
    ),
    _histogram(
        "checkpoint_snapshot_duration_seconds", "How long the slowest coordinator of a checkpoint took.", ("kind",)
    ),
    _histogram(
        "checkpoint_blocked_duration_seconds",
        "Longest time for which a checkpoint kept a gateway closed.",
        ("kind",),
    ),
    gauge("last_checkpoint_id", "Id of the newest completed checkpoint.", ("kind",)),
    gauge(
        "last_checkpoint_timestamp_seconds",
        "When the newest completed checkpoint was completed, in seconds since 1970.",
        ("kind",),
    ),
    *(
        gauge(f"last_checkpoint_{each.name}", each.meaning.format("the newest completed checkpoint"), ("kind",))
        for each in shown(CHECKPOINT, Place.METRIC)
    ),
    gauge("last_failed_checkpoint_id", "Id of the newest failed checkpoint.", ("kind",)),
    gauge(
        "last_failed_checkpoint_timestamp_seconds",
        "When the newest failed checkpoint failed, in seconds since 1970.",
        ("kind",),
    ),
    gauge("last_restored_checkpoint_id", "Id of the checkpoint that the query was last restored from.", QUERY),
    gauge(
        "last_restored_checkpoint_timestamp_seconds", "When the query was last restored, in seconds since 1970.", QUERY
    ),
    counter("checkpoints_discarded_total", "Completed checkpoints that were removed from the storage."),
)

_RECOVERIES: Final = (
    counter("recoveries_total", "Recoveries that have ended, by cause.", ("query", "cause")),
    gauge("recoveries_in_progress", "Recoveries whose first commit is still awaited."),
    counter("recovery_epochs_rerun_total", "Epochs that were run again.", QUERY),
    _histogram(
        "recovery_duration_seconds",
        "How long a recovery took: from the failure, or the driver's start, to the first commit.",
        ("cause",),
    ),
)

_CONTROL: Final = (
    counter("commands_total", "Commands from the control database by kind and outcome.", ("kind", "outcome")),
    gauge("commands_in_progress", "Commands that are being carried out."),
    gauge("agent_connected", "1 if the last attempt to use the control database succeeded, 0 otherwise."),
    counter("agent_database_failures_total", "Failed attempts to use the control database."),
    gauge("agent_buffered_records", "Records that wait for the control database."),
    counter("agent_dropped_records_total", "Records that did not fit into the buffer or the database, and are lost."),
    gauge("agent_last_contact_timestamp_seconds", "When the control database was last used, in seconds since 1970."),
)

_ENDPOINT: Final = (
    gauge("endpoint_connections", "Open connections of Python workers, authenticated or not yet.", ("state",)),
    counter("endpoint_connections_accepted_total", "Connections that were accepted."),
    counter("endpoint_frames_total", "Frames by direction: requests in, answers out.", ("direction",)),
    counter("endpoint_answers_dropped_total", "Answers to connections that were gone."),
    counter("endpoint_rejections_total", "Connections and frames that were rejected, by reason.", ("reason",)),
    gauge("endpoint_held_bytes", "Incomplete frames and unsent answers of all connections."),
)

_SUBTASKS: Final = (
    gauge("subtask_gateway_open", "1 when an event that is sent now would not wait.", SUBTASK, on_request=True),
    gauge("subtask_blocked_events", "Events that wait behind closed barriers now.", SUBTASK, on_request=True),
    gauge(
        "subtask_blocked_age_seconds",
        "How long the oldest blocked event has waited; 0 if none waits.",
        SUBTASK,
        on_request=True,
    ),
    counter(
        "subtask_events_blocked_total",
        "Events that had to wait since the query was last restarted.",
        SUBTASK,
        on_request=True,
    ),
    counter(
        "subtask_blocked_seconds_total",
        "Time during which at least one event waited since the query was last restarted.",
        SUBTASK,
        on_request=True,
    ),
    gauge("subtask_mailbox_events", "Events that wait for the subtask's next epoch.", SUBTASK, on_request=True),
    gauge(
        "subtask_outbox_events",
        "Events of the subtask that wait for the commit of the running epoch.",
        SUBTASK,
        on_request=True,
    ),
    gauge("subtask_channel_bytes", "Bytes that wait for the subtask.", SUBTASK, on_request=True),
    Metric(
        PREFIX + "subtasks_left_out",
        MetricKind.GAUGE,
        "Subtasks that a scrape with ?subtasks=N does not show, because there are more.",
        on_request=True,
    ),
)

DRIVER: Final[tuple[Metric, ...]] = (
    *_JOB,
    *_QUERIES,
    *_BLOCKED,
    *_OPERATORS,
    *_LIVE_VALUES,
    *_CHECKPOINTS,
    *_RECOVERIES,
    *_CONTROL,
    *_ENDPOINT,
    *_SUBTASKS,
)
