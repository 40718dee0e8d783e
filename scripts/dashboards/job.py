"""The dashboard of one job, from what its driver says: blocked events first.

Values; any thread.
"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard

from coord_control.control.measure import Place, Unit, shown
from coord_control.control.measures import CHECKPOINT as CHECKPOINT_MEASURES
from scripts.dashboards.job_inside import channels, driver, endpoint, epochs
from scripts.dashboards.job_queries import BY_CHECKPOINT, BY_EPOCH, CHECKPOINT, JOB, QUERY, of, p95, rate
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

__all__ = ["job_dashboard"]

_WAITS: Final = ((0, GOOD), (1, WARN))


def job_dashboard() -> Dashboard:
    """Return the dashboard."""
    return dashboard(
        "Streaming job",
        "coord-control-job",
        "One job as its driver sees it: what is blocked, checkpoints, epochs, recoveries, commands, endpoint, agent.",
        (
            variable("job", "Job", "label_values(coord_control_job_up, job_name)", all_=False),
            variable("query", "Query", f"label_values(coord_control_query_state{{{JOB}}}, query)"),
            variable("operator", "Operator", f"label_values(coord_control_operator_subtasks{{{QUERY}}}, operator)"),
        ),
        (_blocked(), _checkpoints(), epochs(), channels(), _recoveries(), _commands(), endpoint(), driver()),
    )


def _blocked() -> Row:
    by = "sum by (query, operator)"
    share = f"{rate('blocked_seconds_total')} / {of('operator_subtasks')}"
    return Row(
        "Is anything blocked?",
        (
            number(
                "Blocked events",
                f"sum({of('blocked_events')})",
                "Now; they wait behind closed barriers.",
                limits=_WAITS,
            ),
            number(
                "Longest wait",
                f"max({of('blocked_age_seconds')})",
                "For how long the oldest of these waits has lasted.",
                unit="s",
                limits=((0, GOOD), (5, WARN), (60, BAD)),
            ),
            number(
                "Subtasks concerned", f"sum({of('blocked_subtasks')})", "For which an event waits now.", limits=_WAITS
            ),
            number(
                "Because of checkpoint",
                f"min({of('blocked_checkpoint_id')})",
                "The oldest one behind whose barrier events wait. None: what waits, waits for the running epoch.",
                unit=ID,
            ),
            number(
                "Closed gateways",
                f"sum({of('closed_gateways')}) / sum({of('operator_subtasks')})",
                "Part of the gateways at which an event that is sent now would wait.",
                unit="percentunit",
            ),
            number(
                "Job",
                f"max({of('job_up', JOB)})",
                "1: it runs. 0: it is ending or has failed. None: its driver is gone.",
                limits=((0, BAD), (1, GOOD)),
            ),
            table_of(
                "Where, for how long, because of which checkpoint",
                ("query", "operator"),
                Column(
                    "Blocked by an epoch",
                    f"{by} ({of('blocked_events', BY_EPOCH)})",
                    limits=_WAITS,
                ),
                Column(
                    "Blocked by a checkpoint",
                    f"{by} ({of('blocked_events', BY_CHECKPOINT)})",
                    limits=_WAITS,
                ),
                Column("Oldest checkpoint", f"min by (query, operator) ({of('blocked_checkpoint_id')})", ID),
                Column(
                    "Longest wait",
                    f"max by (query, operator) ({of('blocked_age_seconds')})",
                    "s",
                    ((0, GOOD), (5, WARN), (60, BAD)),
                ),
                Column("Subtasks concerned", f"{by} ({of('blocked_subtasks')})"),
                Column("Closed gateways", f"{by} ({of('closed_gateways')})"),
                Column("Subtasks", f"{by} ({of('operator_subtasks')})"),
                help_="Now. Single subtasks: coordctl ui, or a scrape with ?subtasks=50.",
            ),
            graph(
                "Blocked events, by cause",
                Query(f"sum by (query, operator, cause) ({of('blocked_events')})", "{{operator}}, {{cause}}"),
                help_="What closed the barrier: the start of an epoch, or a checkpoint.",
                stacked=True,
            ),
            graph(
                "Time with something blocked",
                Query(share, "{{operator}}"),
                help_="Part of the time during which an event waited, on average over the operator's gateways.",
                unit="percentunit",
            ),
            graph(
                "Events that had to wait",
                Query(f"{by} ({rate('events_blocked_total')})", "{{operator}}"),
                help_="Per second.",
                unit="eps",
            ),
        ),
    )


def _checkpoints() -> Row:
    def last(name: str) -> str:
        return f"max by (kind) ({of(f'last_checkpoint_{name}', JOB)})"

    def each_measure(unit: Unit, *, but: str = "") -> list[Query]:
        measures = [each for each in shown(CHECKPOINT_MEASURES, Place.METRIC) if each.unit is unit and each.name != but]
        return [Query(last(each.name), f"{{{{kind}}}}: {each.title}") for each in measures]

    started = of("checkpoint_in_progress_start_timestamp_seconds", JOB)
    passed = of("checkpoint_in_progress_passed_subtasks", JOB)
    return Row(
        "Checkpoints and savepoints",
        (
            number(
                "Age of the last checkpoint",
                f"time() - max({of('last_checkpoint_timestamp_seconds', CHECKPOINT)})",
                "Since its completion, by this driver.",
                unit="s",
                width=6,
            ),
            number(
                "Failures in a row",
                f"max({of('checkpoint_failures_in_a_row', JOB)})",
                "That count, since the last one that was completed.",
                limits=((0, GOOD), (1, WARN), (3, BAD)),
                width=6,
            ),
            number("In progress for", f"time() - min({started})", "The oldest one.", unit="s", width=6),
            number(
                "Subtasks that passed",
                f"sum({passed}) / (sum({of('checkpoint_in_progress_subtasks', JOB)}) > 0)",
                "Share of the subtasks of the checkpoints in progress.",
                unit="percentunit",
                width=6,
            ),
            graph(
                "Duration",
                Query(p95("checkpoint_duration_seconds", "kind", JOB), "{{kind}}, 95th percentile"),
                Query(last("duration_seconds"), "{{kind}}, last"),
                help_="From trigger to completion.",
                unit="s",
            ),
            graph(
                "Parts of the last one",
                *each_measure(Unit.SECONDS, but="duration_seconds"),
                help_="For how long it kept a gateway closed at most, and how long its slowest coordinator took.",
                unit="s",
            ),
            graph(
                "Age",
                Query(f"time() - {last('timestamp_seconds')}", "{{kind}}"),
                help_="Of the last one that is complete.",
                unit="s",
            ),
            graph(
                "Parts, 95th percentile",
                Query(p95("checkpoint_blocked_duration_seconds", "kind", JOB), "{{kind}}: a gateway was closed"),
                Query(p95("checkpoint_snapshot_duration_seconds", "kind", JOB), "{{kind}}: slowest coordinator"),
                Query(p95("checkpoint_failed_duration_seconds", "kind", JOB), "{{kind}}: from trigger to failure"),
                help_="The same of all that ended, and how long those took that failed.",
                unit="s",
            ),
            graph(
                "Events that waited behind the last one",
                Query(last("blocked_events"), "{{kind}}"),
                help_="How many it blocked.",
            ),
            graph(
                "Removed",
                Query(f"increase({of('checkpoints_discarded_total', JOB)}[$__rate_interval])", "removed"),
                help_="Completed ones that were removed from the storage, because newer ones are complete.",
            ),
            graph(
                "Size of the last one",
                *each_measure(Unit.BYTES),
                help_="New: what no older one holds. Linked and copied: how its files got there.",
                unit="bytes",
            ),
            graph(
                "Failures, by reason",
                Query(
                    f"sum by (kind, reason) (increase({of('checkpoints_failed_total', JOB)}[$__rate_interval])) > 0",
                    "{{kind}}: {{reason}}",
                ),
                help_="docs/operations.md has a table of reasons.",
            ),
            graph(
                "Completed and in progress",
                Query(
                    f"sum by (kind) (increase({of('checkpoints_completed_total', JOB)}[$__rate_interval]))",
                    "{{kind}}, completed",
                ),
                Query(f"sum by (kind) ({of('checkpoints_in_progress', JOB)})", "{{kind}}, in progress"),
                help_="How many.",
            ),
        ),
    )


def _recoveries() -> Row:
    return Row(
        "Recoveries",
        (
            graph(
                "Recoveries, by cause",
                Query(
                    f"sum by (query, cause) (increase({of('recoveries_total', QUERY)}[$__rate_interval])) > 0",
                    "{{query}}: {{cause}}",
                ),
                Query(of("recoveries_in_progress", JOB), "not over yet"),
                help_="It is over with the first commit.",
            ),
            graph(
                "Time to recover, 95th percentile",
                Query(p95("recovery_duration_seconds", "cause", JOB), "{{cause}}"),
                help_="From the failure, or the driver's start, to the first commit.",
                unit="s",
            ),
            graph(
                "Work done again",
                Query(
                    f"sum by (query) (increase({of('query_restarts_total', QUERY)}[$__rate_interval]))",
                    "{{query}}, restarts",
                ),
                Query(
                    f"sum by (query) (increase({of('recovery_epochs_rerun_total', QUERY)}[$__rate_interval]))",
                    "{{query}}, epochs",
                ),
                help_="Restarts in place, and epochs that were run again.",
            ),
        ),
    )


def _commands() -> Row:
    by = "query, operator"
    return Row(
        "Commands and events from outside",
        (
            graph(
                "Commands",
                Query(
                    f"sum by (kind, outcome) (increase({of('commands_total', JOB)}[$__rate_interval])) > 0",
                    "{{kind}}: {{outcome}}",
                ),
                Query(of("commands_in_progress", JOB), "in progress"),
                help_="From the control database, by outcome.",
            ),
            graph(
                "Control events",
                Query(f"sum by ({by}, outcome) ({rate('control_events_total')})", "{{operator}}, {{outcome}}"),
                help_="Per second: given to the coordinator, or refused by it.",
                unit="eps",
            ),
            graph(
                "Control events in transit",
                Query(f"sum by ({by}) ({of('control_events_waiting')})", "{{operator}}, for the coordinator"),
                Query(
                    f"sum by ({by}) ({of('control_event_number')} - {of('control_event_durable_number')})",
                    "{{operator}}, for an epoch",
                ),
                help_="Accepted and not given to the coordinator yet; given to it, and not durable yet.",
            ),
        ),
    )
