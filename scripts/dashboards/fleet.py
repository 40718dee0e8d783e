"""The dashboard of all jobs of a control database, from what ``coordctl exporter`` says: blocked events first.

How long something is blocked, and because of which checkpoint, only drivers know: those columns are empty for a job
whose driver is not scraped.

Values; any thread.
"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard

from scripts.dashboards.panels import (
    BAD,
    GOOD,
    ID,
    WARN,
    Column,
    Query,
    Row,
    dashboard,
    graph,
    number,
    table_of,
    variable,
)

__all__ = ["fleet_dashboard"]

_JOB: Final = 'job_name=~"$job"'
_CHECKPOINT: Final = ', kind="checkpoint"'
_FAILED: Final = ', state="failed"'
_WAITS: Final = ((0, GOOD), (1, WARN))
_NONE_IS_GOOD: Final = ((0, GOOD), (1, BAD))


def fleet_dashboard() -> Dashboard:
    """Return the dashboard."""
    return dashboard(
        "Streaming jobs: all",
        "coord-control-fleet",
        "All jobs of a control database, as their drivers last said: what is blocked, who is alive, checkpoints, work, "
        "recoveries, commands, and the health of the control plane.",
        (variable("job", "Job", "label_values(coord_control_fleet_job_alive, job_name)"),),
        (_blocked(), _jobs(), _checkpoints(), _work(), _recoveries(), _commands(), _health()),
    )


def _of(name: str, labels: str = "") -> str:
    return f"coord_control_fleet_{name}{{{_JOB}{labels}}}"


def _blocked() -> Row:
    by = "by (job_name, query, operator)"
    drivers = f"{{{_JOB}}}"
    return Row(
        "Is anything blocked?",
        (
            number(
                "Blocked events", f"sum({_of('blocked_events')})", "At the last heartbeats.", limits=_WAITS, width=6
            ),
            number(
                "Jobs with blocked events",
                f"count(sum by (job_name) ({_of('blocked_events')}) > 0)",
                "At the last heartbeats.",
                limits=_WAITS,
                width=6,
            ),
            number(
                "Longest wait",
                f"max(coord_control_blocked_age_seconds{drivers})",
                "Of all drivers that are scraped.",
                unit="s",
                limits=((0, GOOD), (5, WARN), (60, BAD)),
                width=6,
            ),
            number("Closed gateways", f"sum({_of('closed_gateways')})", "At which an event would wait.", width=6),
            table_of(
                "Where, for how long, because of which checkpoint",
                ("job_name", "query", "operator"),
                Column("Blocked events", f"sum {by} ({_of('blocked_events')})", limits=_WAITS),
                Column("Oldest checkpoint", f"min {by} (coord_control_blocked_checkpoint_id{drivers})", ID),
                Column(
                    "Longest wait",
                    f"max {by} (coord_control_blocked_age_seconds{drivers})",
                    "s",
                    ((0, GOOD), (5, WARN), (60, BAD)),
                ),
                Column("Closed gateways", f"sum {by} ({_of('closed_gateways')})"),
                Column("Subtasks", f"sum {by} ({_of('operator_subtasks')})"),
                help_="All operators. Checkpoint and wait are known of drivers that are scraped.",
            ),
            graph(
                "Blocked events",
                Query(f"sum by (job_name, operator) ({_of('blocked_events')})", "{{job_name}}/{{operator}}"),
                help_="At each heartbeat.",
                stacked=True,
            ),
            graph(
                "Time with something blocked",
                Query(
                    f"rate({_of('blocked_seconds_total')}[$__rate_interval]) / {_of('operator_subtasks')}",
                    "{{job_name}}/{{operator}}",
                ),
                help_="Part of the time, on average over the operator's gateways.",
                unit="percentunit",
            ),
            graph(
                "Events that had to wait",
                Query(
                    f"sum by (job_name, operator) (rate({_of('events_blocked_total')}[$__rate_interval]))",
                    "{{job_name}}/{{operator}}",
                ),
                help_="Per second.",
                unit="eps",
            ),
        ),
    )


def _jobs() -> Row:
    by = "by (job_name)"
    dead = f"({_of('job_alive')} == 0 unless on (job_name) {_of('job_end_timestamp_seconds')})"
    return Row(
        "Jobs",
        (
            number("Alive", f"sum({_of('job_alive')})", "Their drivers' heartbeats are within the lease.", width=6),
            number("Dead drivers", f"count({dead})", "Of jobs that have not ended.", limits=_NONE_IS_GOOD, width=6),
            number(
                "Failed",
                f"sum({_of('job_state', _FAILED)})",
                "Ended with an error.",
                limits=_NONE_IS_GOOD,
                width=6,
            ),
            number(
                "Alerts firing",
                'count(ALERTS{alertname=~"CoordControl.*", alertstate="firing"})',
                "Of deploy/prometheus.",
                limits=_NONE_IS_GOOD,
                width=6,
            ),
            table_of(
                "Jobs",
                ("job_name",),
                Column("Alive", f"max {by} ({_of('job_alive')})", limits=((0, BAD), (1, GOOD))),
                Column("Heartbeat, ago", f"time() - max {by} ({_of('heartbeat_timestamp_seconds')})", "s"),
                Column("Up for", f"time() - max {by} ({_of('driver_start_time_seconds')})", "s"),
                Column("Generation", f"max {by} ({_of('generation')})", ID),
                Column("Rows/s", f"sum {by} ({_of('query_rows_per_second')})"),
                Column(
                    "Last checkpoint, ago",
                    f"time() - max {by} ({_of('last_checkpoint_timestamp_seconds', _CHECKPOINT)})",
                    "s",
                    ((0, GOOD), (900, WARN)),
                ),
                Column(
                    "Failures in a row",
                    f"max {by} ({_of('checkpoint_failures_in_a_row')})",
                    limits=((0, GOOD), (1, WARN), (3, BAD)),
                ),
                Column("Blocked events", f"sum {by} ({_of('blocked_events')})", limits=_WAITS),
                help_="What one job says in detail is on the dashboard of a job.",
            ),
            graph(
                "Jobs, by state",
                Query("sum by (state, alive) (coord_control_fleet_jobs) > 0", "{{state}}, alive: {{alive}}"),
                help_="As their drivers last said; a state of a dead driver is its last one.",
                stacked=True,
            ),
            graph(
                "Queries, by state",
                Query(f"sum by (state) ({_of('query_state')}) > 0", "{{state}}"),
                help_="Of jobs that are alive.",
                stacked=True,
            ),
            table_of(
                "Alerts",
                ("alertname", "alertstate", "severity", "job_name", "query", "operator", "kind", "reason"),
                Column(
                    "Series",
                    "count by (alertname, alertstate, severity, job_name, query, operator, kind, reason) "
                    '(ALERTS{alertname=~"CoordControl.*"})',
                ),
                help_="Pending and firing; docs/operations/alerts.md says what to do about each.",
                width=8,
            ),
        ),
    )


def _checkpoints() -> Row:
    def last(name: str) -> str:
        return f"max by (job_name, kind) ({_of(f'last_checkpoint_{name}')})"

    each = "{{job_name}}, {{kind}}"
    return Row(
        "Checkpoints and savepoints",
        (
            graph(
                "Age",
                Query(f"time() - {last('timestamp_seconds')}", each),
                help_="Of the newest on the storage.",
                unit="s",
            ),
            graph(
                "Duration",
                Query(last("duration_seconds"), each),
                Query(last("blocked_seconds"), f"{each}: a gateway was closed"),
                help_="Of the newest on the storage.",
                unit="s",
            ),
            graph(
                "Size",
                Query(last("state_bytes"), each),
                Query(last("new_bytes"), f"{each}, new"),
                help_="Of the newest on the storage; new: what no older one holds.",
                unit="bytes",
            ),
            graph(
                "Failures of the last hour, by reason",
                Query(
                    f"sum by (job_name, kind, reason) ({_of('checkpoint_failures_last_hour')})",
                    f"{each}: {{{{reason}}}}",
                ),
                help_="docs/operations.md has a table of reasons.",
                stacked=True,
            ),
            graph(
                "Completed and failed",
                Query(
                    f"sum by (job_name) (increase({_of('checkpoints_completed_total')}[$__rate_interval]))",
                    "{{job_name}}",
                ),
                Query(
                    f"sum by (job_name) (increase({_of('checkpoints_failed_total')}[$__rate_interval]))",
                    "{{job_name}}, failed",
                ),
                help_="How many.",
            ),
            graph(
                "Stored",
                Query(f"sum by (job_name, kind) ({_of('checkpoints_stored')})", each),
                help_="Complete ones on the storage.",
            ),
            graph(
                "In progress",
                Query(f"sum by (job_name) ({_of('checkpoints_in_progress')})", "{{job_name}}"),
                help_="Those that drivers are making.",
            ),
            graph(
                "Events that waited behind the newest",
                Query(last("blocked_events"), each),
                help_="How many it blocked.",
            ),
            graph(
                "Slowest coordinator of the newest",
                Query(last("snapshot_seconds"), each),
                help_="How long it took to give its state.",
                unit="s",
            ),
        ),
    )


def _work() -> Row:
    return Row(
        "Work",
        (
            graph(
                "Rows",
                Query(_of("query_rows_per_second"), "{{job_name}}/{{query}}, processed"),
                Query(_of("query_input_rows_per_second"), "{{job_name}}/{{query}}, taken in"),
                help_="Of the last batch.",
                unit="rowsps",
            ),
            graph(
                "Committed epoch",
                Query(_of("query_epoch"), "{{job_name}}/{{query}}"),
                help_="A line that stays flat: nothing new, or a query that does not get on.",
                unit=ID,
            ),
            graph(
                "Backlog",
                Query(_of("query_backlog"), "{{job_name}}/{{query}}"),
                help_="Records that sources had and the query had not read. Only sources that report it: Kafka does.",
            ),
            graph(
                "Watermark lag",
                Query(_of("query_watermark_lag_seconds"), "{{job_name}}/{{query}}"),
                help_="How far the watermark is behind the newest event of the last batch that had any.",
                unit="s",
            ),
            graph(
                "Events waiting for the next epoch",
                Query(f"sum by (job_name, operator) ({_of('mailbox_events')})", "{{job_name}}/{{operator}}"),
                help_="In the drivers' mailboxes.",
            ),
            graph("Spark's own state", Query(_of("query_state_rows"), "{{job_name}}/{{query}}"), help_="Rows."),
            graph(
                "Newest durable control event",
                Query(_of("control_event_durable_number"), "{{job_name}}/{{operator}}"),
                help_="Its number.",
                unit=ID,
            ),
        ),
    )


def _recoveries() -> Row:
    return Row(
        "Recoveries",
        (
            graph(
                "Recoveries of the last hour, by cause",
                Query(f"sum by (job_name, cause) ({_of('recoveries_last_hour')})", "{{job_name}}: {{cause}}"),
                help_="By when they began.",
                stacked=True,
            ),
            graph(
                "Duration of the last recovery",
                Query(_of("last_recovery_duration_seconds"), "{{job_name}}"),
                help_="From the failure, or the driver's start, to the first commit.",
                unit="s",
            ),
            graph(
                "Drivers and restarts",
                Query(f"changes({_of('generation')}[$__rate_interval])", "{{job_name}}, new drivers"),
                Query(
                    f"sum by (job_name) (increase({_of('query_restarts_total')}[$__rate_interval]))",
                    "{{job_name}}, restarts",
                ),
                help_="New drivers, and queries that were restarted in place.",
            ),
        ),
    )


def _commands() -> Row:
    return Row(
        "Commands",
        (
            graph(
                "Open",
                Query(f"sum by (job_name, kind, state) ({_of('commands_open')})", "{{job_name}}: {{kind}}, {{state}}"),
                help_="Pending: no driver has taken them. Claimed: they are carried out.",
            ),
            graph(
                "Open for",
                Query(
                    f"time() - min by (job_name, kind, state) ({_of('oldest_open_command_timestamp_seconds')})",
                    "{{job_name}}: {{kind}}, {{state}}",
                ),
                help_="The oldest of them. An event for an idle job is claimed until the job's next epoch.",
                unit="s",
            ),
            graph(
                "Ended within the last hour",
                Query(
                    f"sum by (job_name, kind, outcome) ({_of('commands_last_hour')})",
                    "{{job_name}}: {{kind}}, {{outcome}}",
                ),
                help_="By outcome.",
                stacked=True,
            ),
        ),
    )


def _health() -> Row:
    return Row(
        "Control plane",
        (
            number(
                "Control database",
                "min(coord_control_database_up)",
                "1: it answers the exporter. 0: it does not. None: there is no exporter.",
                limits=((0, BAD), (1, GOOD)),
                width=6,
            ),
            number(
                "Read",
                "time() - min(coord_control_database_read_timestamp_seconds)",
                "How old the numbers of this dashboard are.",
                unit="s",
                limits=((0, GOOD), (30, WARN)),
                width=6,
            ),
            number(
                "Targets that do not answer",
                'count(up{job=~"coord-control-.*"} == 0) or vector(0)',
                "Drivers and exporters.",
                limits=_NONE_IS_GOOD,
                width=6,
            ),
            number(
                "Alive, but not scraped",
                f"count({_of('job_alive')} == 1 unless on (job_name) coord_control_job_up) or vector(0)",
                "Drivers that Prometheus does not reach.",
                limits=_WAITS,
                width=6,
            ),
            graph(
                "Reading the database",
                Query("coord_control_database_read_duration_seconds", "{{instance}}"),
                help_="How long the exporter takes.",
                unit="s",
            ),
            graph(
                "Failures of the control database",
                Query("rate(coord_control_database_failures_total[$__rate_interval])", "{{instance}}"),
                Query(f"rate({_of('agent_database_failures_total')}[$__rate_interval])", "{{job_name}}"),
                help_="Per second, of the exporter and of drivers.",
                unit="ops",
            ),
            graph(
                "Records in drivers",
                Query(_of("agent_buffered_records"), "{{job_name}}, waiting"),
                Query(_of("agent_dropped_records_total"), "{{job_name}}, lost"),
                help_="That wait for the database, and that did not fit into the buffer.",
            ),
            table_of(
                "Versions",
                ("job_name", "host", "pid", "version", "spark_version", "supervised"),
                Column(
                    "Drivers", f"sum by (job_name, host, pid, version, spark_version, supervised) ({_of('job_info')})"
                ),
                help_="What runs where.",
                height=6,
            ),
        ),
    )
