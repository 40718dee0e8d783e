"""The tables of the control database.

The clock of every time that decides something (leases, expiry) is the database's; see ``Transaction.now``. States are
text with a check, not enumerations of the database: a new state is then one constraint, on both databases. Lengths are
limited where a client chooses the text. No table holds a secret.

What Alembic makes by the scripts in ``migrations`` must equal what stands here; a test compares them on both databases.

Threads: constants.
"""

from __future__ import annotations

import enum
from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
)

from coord_control.storage.records import CheckpointKind, CheckpointState, CommandState, JobState
from coord_control.storage.types import Id, Message, Name, UtcDateTime

__all__ = [
    "MAX_KEY",
    "MAX_NAME",
    "MAX_PATH",
    "MAX_PAYLOAD_BYTES",
    "audit",
    "checkpoint_counts",
    "checkpoint_details",
    "checkpoints",
    "commands",
    "counters",
    "generations",
    "jobs",
    "live_changes",
    "live_values",
    "metadata",
    "operator_samples",
    "operators",
    "queries",
    "query_samples",
    "recoveries",
    "savepoints",
    "upkeep",
]

MAX_NAME: Final = 256  #: jobs, queries, operators have at most 100; hosts and people may have more
_MAX_LABEL: Final = 128  # of the columns; labels that are accepted are shorter (ids.MAX_LABEL)
MAX_KEY: Final = 256
MAX_PATH: Final = 4096
MAX_PAYLOAD_BYTES: Final = 600_000  #: as JSON: 256 KiB of a control event, and what escapes may make of it

#: Names as they are made by hand in the migrations, too: a constraint without a name cannot be altered later.
metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _one_of(column: str, values: type[enum.Enum]) -> CheckConstraint:
    listed = ", ".join(f"'{each.value}'" for each in values)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


def _job(*, primary_key: bool = False) -> Column[int]:
    return Column("job_id", Id, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=primary_key, nullable=False)


jobs: Final = Table(
    "jobs",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("name", Name(MAX_NAME), nullable=False, unique=True),
    Column("root", Name(MAX_PATH), nullable=False),
    Column("folder", Name(MAX_PATH), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("state", Name(16), nullable=False),
    Column("host", Name(MAX_NAME), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("driver_started_at", UtcDateTime, nullable=False),
    Column("heartbeat_at", UtcDateTime, nullable=False),
    Column("lease_seconds", Float, nullable=False),
    Column("ended_at", UtcDateTime),
    Column("end_reason", Message, nullable=False),
    Column("is_supervised", Boolean, nullable=False),
    Column("log_file", Name(MAX_PATH)),
    Column("spark_version", Name(64), nullable=False),
    Column("version", Name(64), nullable=False),
    Column("live", JSON(none_as_null=True)),
    Column("agent", JSON(none_as_null=True)),
    _one_of("state", JobState),
)

generations: Final = Table(
    "generations",
    metadata,
    _job(primary_key=True),
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("host", Name(MAX_NAME), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime),
    Column("end_reason", Message, nullable=False),
    Column("is_clean", Boolean, nullable=False),
)

queries: Final = Table(
    "queries",
    metadata,
    _job(primary_key=True),
    Column("name", Name(MAX_NAME), primary_key=True),
    Column("query_id", Name(64), nullable=False),
    Column("lineage", Name(MAX_PATH), nullable=False),
    Column("state", Name(32), nullable=False),
    Column("epoch", BigInteger),
    Column("restarts", Integer, nullable=False),
    Column("last_failure", Message, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)

operators: Final = Table(
    "operators",
    metadata,
    _job(primary_key=True),
    Column("uid", Name(MAX_NAME), primary_key=True),
    Column("query", Name(MAX_NAME), nullable=False),
    Column("parallelism", Integer, nullable=False),
    Column("event_types", JSON, nullable=False),  # and requests: those with an answer
    Column("applied_number", BigInteger, nullable=False),
)

#: What the log of a job's live values holds, and which epochs have seen it.
live_changes: Final = Table(
    "live_changes",
    metadata,
    _job(primary_key=True),
    Column("name", Name(MAX_NAME), primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("value", JSON, nullable=False),
    Column("by", Message, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("since", JSON, nullable=False),  # query -> epoch
    Index("ix_live_changes_newest", "job_id", "at"),
)

#: The live values that a job declares; what is accepted is one of the changes.
live_values: Final = Table(
    "live_values",
    metadata,
    Column("job_id", Id, primary_key=True, autoincrement=False),
    Column("name", Name(MAX_NAME), primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("schema", JSON, nullable=False),
    Column("uses", JSON, nullable=False),  # by query
    ForeignKeyConstraint(
        ["job_id", "name", "version"],
        ["live_changes.job_id", "live_changes.name", "live_changes.version"],
        ondelete="CASCADE",
    ),
)

checkpoints: Final = Table(
    "checkpoints",
    metadata,
    _job(primary_key=True),
    Column("checkpoint", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Name(16), nullable=False),
    Column("state", Name(16), nullable=False),
    Column("label", Name(_MAX_LABEL)),
    Column("key", Name(MAX_KEY)),
    Column("cause", Name(MAX_NAME), nullable=False),
    Column("requested_by", Name(MAX_NAME)),
    Column("generation", BigInteger),
    Column("triggered_at", UtcDateTime, nullable=False),
    Column("finished_at", UtcDateTime),
    Column("duration_seconds", Float),
    Column("state_bytes", BigInteger, nullable=False),
    Column("new_bytes", BigInteger, nullable=False),
    Column("blocked_events", BigInteger, nullable=False),
    Column("blocked_seconds", Float, nullable=False),
    Column("snapshot_seconds", Float, nullable=False),
    Column("path", Name(MAX_PATH)),
    Column("reason", Name(64)),
    Column("message", Message, nullable=False),
    # What else was measured: a column is only what SQL looks at, or a text that has to be made to fit.
    Column("statistics", JSON, nullable=False),
    # The place of its end among the changes of all jobs; given by the transaction that writes it, just before it ends.
    Column("settled_sequence", BigInteger),
    _one_of("kind", CheckpointKind),
    _one_of("state", CheckpointState),
    # Every listing is the newest of some kinds and states: one branch of this index each, or the primary key.
    Index("ix_checkpoints_newest", "job_id", "kind", "state", "checkpoint"),
    Index("ix_checkpoints_triggered_at", "triggered_at"),
    Index("uq_checkpoints_settled_sequence", "settled_sequence", unique=True),
)

#: The parts of a checkpoint. Not in its row, because percentiles read ten thousand rows, which should be short. The
#: subtasks have a column to themselves, because there may be ten thousand, and most readers need only their totals.
checkpoint_details: Final = Table(
    "checkpoint_details",
    metadata,
    Column("job_id", Id, primary_key=True, autoincrement=False),
    Column("checkpoint", BigInteger, primary_key=True, autoincrement=False),
    Column("queries", JSON, nullable=False),
    Column("subtasks", JSON, nullable=False),
    ForeignKeyConstraint(
        ["job_id", "checkpoint"], ["checkpoints.job_id", "checkpoints.checkpoint"], ondelete="CASCADE"
    ),
)

#: Total counts, so that a million rows need not be counted; includes removed history.
checkpoint_counts: Final = Table(
    "checkpoint_counts",
    metadata,
    _job(primary_key=True),
    Column("kind", Name(16), primary_key=True),
    Column("state", Name(16), primary_key=True),
    Column("checkpoints", BigInteger, nullable=False),
)

savepoints: Final = Table(
    "savepoints",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("path", Name(MAX_PATH), nullable=False, unique=True),
    # The name, not the row: a savepoint outlives its job, and may come from another database.
    Column("job_name", Name(MAX_NAME)),
    Column("checkpoint", BigInteger),
    Column("label", Name(_MAX_LABEL)),
    Column("imported", Boolean, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("created_at", UtcDateTime),
    Column("recorded_at", UtcDateTime, nullable=False),
    Column("applied_numbers", JSON, nullable=False),  # operator -> number of an event
    Column("verified_at", UtcDateTime),
    Column("verified_ok", Boolean),
    Column("problems", JSON, nullable=False),
    Index("ix_savepoints_job", "job_name", "checkpoint"),
)

commands: Final = Table(
    "commands",
    metadata,
    Column("id", Name(36), primary_key=True),
    _job(),
    Column("kind", Name(32), nullable=False),
    Column("key", Name(MAX_KEY), nullable=False),
    Column("operator", Name(MAX_NAME)),
    Column("payload", JSON, nullable=False),
    Column("state", Name(16), nullable=False),
    Column("requested_by", Name(MAX_NAME), nullable=False),
    Column("requested_from", Name(MAX_NAME), nullable=False),
    Column("requested_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    Column("generation", BigInteger),
    Column("claimed_at", UtcDateTime),
    Column("number", BigInteger),
    Column("checkpoint", BigInteger),
    Column("progress", JSON(none_as_null=True)),
    Column("result", JSON(none_as_null=True)),
    Column("error", JSON(none_as_null=True)),
    Column("finished_at", UtcDateTime),
    Column("cancel_requested_at", UtcDateTime),
    _one_of("state", CommandState),
    CheckConstraint(f"length(CAST(payload AS TEXT)) <= {MAX_PAYLOAD_BYTES}", name="payload"),
    # Two drivers can never give one position to two events.
    Index("uq_commands_number", "job_id", "operator", "number", unique=True),
    Index("uq_commands_key", "job_id", "key", unique=True),
    Index("ix_commands_newest", "job_id", "id"),
    Index("ix_commands_state", "job_id", "state", "id"),
    Index("ix_commands_due", "state", "expires_at"),
)

query_samples: Final = Table(
    "query_samples",
    metadata,
    _job(primary_key=True),
    Column("query", Name(MAX_NAME), primary_key=True),
    Column("resolution_seconds", Integer, primary_key=True, autoincrement=False),
    Column("at", UtcDateTime, primary_key=True),
    Column("epochs", Integer, nullable=False),
    Column("epoch_last", BigInteger),
    Column("rows", BigInteger, nullable=False),
    Column("rows_per_second", Float),
    Column("batch_seconds_avg", Float),
    Column("batch_seconds_max", Float),
    Column("state_rows", BigInteger),
    Column("lag_seconds", Float),
    Column("backlog", BigInteger),
    Index("ix_query_samples_at", "resolution_seconds", "at"),
)

operator_samples: Final = Table(
    "operator_samples",
    metadata,
    _job(primary_key=True),
    Column("operator", Name(MAX_NAME), primary_key=True),
    Column("resolution_seconds", Integer, primary_key=True, autoincrement=False),
    Column("at", UtcDateTime, primary_key=True),
    Column("blocked_events", BigInteger, nullable=False),
    Column("blocked_seconds", Float, nullable=False),
    Column("blocked_now_max", BigInteger, nullable=False),
    Column("mailbox_max", BigInteger, nullable=False),
    Column("closed_max", BigInteger, nullable=False),
    Column("events_down", BigInteger, nullable=False),
    Column("events_up", BigInteger, nullable=False),
    Index("ix_operator_samples_at", "resolution_seconds", "at"),
)

recoveries: Final = Table(
    "recoveries",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    _job(),
    Column("generation", BigInteger, nullable=False),
    Column("query", Name(MAX_NAME), nullable=False),  # empty: all of the job; NULLs would not be unique
    Column("cause", Name(64), nullable=False),
    Column("what", Message, nullable=False),
    Column("from_epoch", BigInteger),
    Column("from_checkpoint", BigInteger),
    Column("path", Name(MAX_PATH)),
    Column("started_at", UtcDateTime, nullable=False),
    Column("duration_seconds", Float),
    Column("epochs_rerun", Integer, nullable=False),
    Column("message", Message, nullable=False),
    Column("sequence", BigInteger),  # as with checkpoints
    # A recovery that is written twice, after a commit whose answer was lost, is one recovery.
    Index("uq_recoveries_once", "job_id", "generation", "query", "cause", "started_at", unique=True),
    Index("ix_recoveries_checkpoint", "job_id", "from_checkpoint"),
    Index("ix_recoveries_newest", "job_id", "id"),
    Index("ix_recoveries_started_at", "started_at"),
    Index("uq_recoveries_sequence", "sequence", unique=True),
)

audit: Final = Table(
    "audit",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("at", UtcDateTime, nullable=False),
    Column("actor", Name(MAX_NAME), nullable=False),
    Column("host", Name(MAX_NAME), nullable=False),
    Column("action", Name(64), nullable=False),
    Column("job", Name(MAX_NAME)),  # the name: the trail outlives the job
    Column("subject", Message(512), nullable=False),  # cut where it is longer than PostgreSQL's indexes take
    Column("outcome", Name(32), nullable=False),
    Column("details", JSON, nullable=False),
    Index("ix_audit_job", "job", "id"),
    Index("ix_audit_subject", "subject", "id"),
    Index("ix_audit_at", "at"),
)

#: What the background work has done, one row per duty; locked by the one process that does it.
upkeep: Final = Table(
    "upkeep",
    metadata,
    Column("duty", Name(64), primary_key=True),
    Column("at", UtcDateTime, nullable=False),
)

#: Numbers that are given once, by locking their row until the transaction ends: what has a number is visible to
#: everybody before a higher one is.
counters: Final = Table(
    "counters",
    metadata,
    Column("name", Name(64), primary_key=True),
    Column("value", BigInteger, nullable=False),
)
