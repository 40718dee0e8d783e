"""The lower half of one job's dashboard: epochs, events, the endpoint, the driver.

Values; any thread.
"""

from __future__ import annotations

from scripts.dashboards.job_queries import JOB, OPERATOR, QUERY, of, p95, rate
from scripts.dashboards.panels import (
    BAD,
    GOOD,
    ID,
    WARN,
    Column,
    Query,
    Row,
    graph,
    number,
    table_of,
)

__all__ = ["channels", "driver", "endpoint", "epochs"]


def epochs() -> Row:
    """How long epochs take, and what they do."""
    by = "query, operator"
    return Row(
        "Epochs",
        (
            graph(
                "Duration, 95th percentile",
                Query(p95("epoch_begin_duration_seconds", by, OPERATOR), "{{operator}}, begin"),
                Query(p95("epoch_ack_duration_seconds", by, OPERATOR), "{{operator}}, run"),
                Query(p95("epoch_settle_duration_seconds", by, OPERATOR), "{{operator}}, settle"),
                help_="Begin: until the coordinator has given its state. Run: until all subtasks have acknowledged. "
                "Settle: until Spark's commit is settled.",
                unit="s",
            ),
            graph(
                "Epochs",
                Query(f"sum by ({by}) ({rate('epochs_total')})", "{{operator}}"),
                Query(f"sum by (query) ({rate('query_batches_total', QUERY)})", "{{query}}, batches of Spark"),
                help_="Settled, per second.",
                unit="ops",
            ),
            graph(
                "Coordinator's state, 95th percentile",
                Query(p95("coordinator_snapshot_duration_seconds", by, OPERATOR), "{{operator}}"),
                help_="From the question for it to the answer.",
                unit="s",
            ),
            graph(
                "Committed epoch",
                Query(of("query_epoch", QUERY), "{{query}}"),
                help_="The last one that Spark has committed.",
                unit=ID,
            ),
            graph(
                "Rows",
                Query(f"sum by (query) ({rate('query_rows_total', QUERY)})", "{{query}}, read"),
                Query(f"sum by ({by}, direction) ({rate('rows_total')})", "{{operator}}, {{direction}}"),
                help_="Per second.",
                unit="rowsps",
            ),
            graph(
                "Rates of the last batch",
                Query(of("query_input_rows_per_second", QUERY), "{{query}}, taken in"),
                Query(of("query_processed_rows_per_second", QUERY), "{{query}}, processed"),
                help_="A query that processes no faster than it takes in has no reserve.",
                unit="rowsps",
            ),
            graph(
                "Backlog",
                Query(of("query_backlog", QUERY), "{{query}}, source {{source}}"),
                help_="Records that a source had and the query had not read. Only sources that report it: Kafka does.",
            ),
            graph(
                "Time of the last batch",
                Query(of("query_batch_part_seconds", QUERY), "{{query}}, {{part}}"),
                help_="By the parts that Spark names; addBatch is the work itself.",
                unit="s",
            ),
            graph(
                "Watermark lag",
                Query(of("query_watermark_lag_seconds", QUERY), "{{query}}"),
                help_="How far the watermark is behind the newest event of the last batch that had any.",
                unit="s",
            ),
            graph(
                "Spark's own state",
                Query(of("query_state_rows", QUERY), "{{query}}"),
                help_="Rows that Spark keeps for the query.",
            ),
            graph(
                "Time in batches",
                Query(f"sum by (query) ({rate('query_batch_seconds_total', QUERY)})", "{{query}}"),
                help_="Part of the time that Spark spent in batches; at 100 % the query cannot do more.",
                unit="percentunit",
            ),
            graph(
                "Attempts of tasks",
                Query(f"sum by ({by}) ({rate('attempts_failed_total')})", "{{operator}}, failed"),
                Query(f"sum by ({by}) ({rate('attempts_refused_total')})", "{{operator}}, stale"),
                Query(f"sum by ({by}) ({rate('nondeterministic_subtasks_total')})", "{{operator}}, other results"),
                help_="Per second. Failed: ended without an acknowledgement. Other results: for the same input.",
                unit="ops",
            ),
        ),
    )


def channels() -> Row:
    """What goes between coordinators and subtasks."""
    by = "query, operator"
    return Row(
        "Events between coordinators and subtasks",
        (
            graph(
                "Events",
                Query(f"sum by ({by}, direction) ({rate('events_total')})", "{{operator}}, {{direction}}"),
                help_="Per second: down from the coordinator, up to it.",
                unit="eps",
            ),
            graph(
                "Waiting in the driver",
                Query(f"sum by ({by}) ({of('mailbox_events')})", "{{operator}}, for the next epoch"),
                Query(f"sum by ({by}) ({of('outbox_events')})", "{{operator}}, for the commit"),
                help_="For subtasks in mailboxes, and from subtasks in outboxes.",
            ),
            graph(
                "Fullest channel",
                Query(f"max by ({by}) ({of('channel_max_bytes')})", "{{operator}}, one subtask"),
                Query(f"sum by ({by}) ({of('channel_bytes')})", "{{operator}}, all"),
                help_="Bytes that wait for one subtask; above 32 MiB the query fails.",
                unit="bytes",
            ),
        ),
    )


def endpoint() -> Row:
    """Where subtasks connect."""
    return Row(
        "Endpoint of the subtasks",
        (
            graph(
                "Connections",
                Query(of("endpoint_connections", JOB), "{{state}}"),
                help_="Of Python workers, authenticated or not yet.",
            ),
            graph(
                "Frames",
                Query(rate("endpoint_frames_total", JOB), "{{direction}}"),
                Query(rate("endpoint_connections_accepted_total", JOB), "connections let in"),
                help_="Per second: requests in, answers out.",
                unit="ops",
            ),
            graph(
                "Rejections",
                Query(f"sum by (reason) ({rate('endpoint_rejections_total', JOB)})", "{{reason}}"),
                Query(rate("endpoint_answers_dropped_total", JOB), "answers to closed connections"),
                help_="Connections and frames per second, by reason.",
                unit="ops",
            ),
        ),
    )


def driver() -> Row:
    """The process, its storage and its control database."""
    # Metrics of the process have no job_name.
    here = f"and on (job, instance) coord_control_job_up{{{JOB}}}"
    commits = "group_commit_duration_seconds"
    return Row(
        "Driver, storage and control database",
        (
            number("Up for", f"time() - max({of('driver_start_time_seconds', JOB)})", "This driver.", unit="s"),
            number(
                "Generation", f"max({of('generation', JOB)})", "One more for each driver that the job has had.", unit=ID
            ),
            number(
                "Control database",
                f"min({of('agent_connected', JOB)})",
                "1: it answered last. 0: it is away. None: there is none.",
                limits=((0, BAD), (1, GOOD)),
            ),
            number(
                "Last contact",
                f"time() - max({of('agent_last_contact_timestamp_seconds', JOB)})",
                "With the control database.",
                unit="s",
                limits=((0, GOOD), (30, WARN), (120, BAD)),
            ),
            number(
                "Records waiting for it",
                f"max({of('agent_buffered_records', JOB)})",
                "They are kept until it answers.",
                limits=((0, GOOD), (1000, WARN)),
            ),
            number(
                "Records lost",
                f"max({of('agent_dropped_records_total', JOB)})",
                "By this driver.",
                limits=((0, GOOD), (1, BAD)),
            ),
            graph(
                "Writes to the storage, 95th percentile",
                Query(p95(commits, "job_name", JOB), "until durable"),
                help_="Of the epoch store; every epoch waits for it.",
                unit="s",
            ),
            graph(
                "Records and writes",
                Query(rate("group_commit_records_total", JOB), "records"),
                Query(rate("group_commits_total", JOB), "writes"),
                help_="Per second.",
                unit="ops",
            ),
            graph(
                "Callbacks of coordinators",
                Query(of("callbacks_waiting", JOB), "waiting"),
                Query(f"increase({of('slow_callbacks_total', JOB)}[$__rate_interval])", "slow"),
                help_="One runs at a time; slow: longer than slow_callback_seconds.",
            ),
            graph(
                "Processor",
                Query(f"rate(process_cpu_seconds_total[$__rate_interval]) {here}", "{{instance}}"),
                help_="Cores that the driver's Python process uses; Java's is another process.",
            ),
            graph(
                "Memory",
                Query(f"process_resident_memory_bytes {here}", "{{instance}}"),
                help_="Of the same.",
                unit="bytes",
            ),
            graph(
                "Failures of the control database",
                Query(rate("agent_database_failures_total", JOB), "tries that failed"),
                help_="Per second.",
                unit="ops",
            ),
            table_of(
                "Versions",
                ("host", "pid", "version", "spark_version", "python_version", "protocol_version", "master"),
                Column(
                    "Drivers",
                    "sum by (host, pid, version, spark_version, python_version, protocol_version, master) "
                    f"({of('driver_info', JOB)})",
                ),
                help_="What runs where.",
                height=4,
            ),
        ),
    )
