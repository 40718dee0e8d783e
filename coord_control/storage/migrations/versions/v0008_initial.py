"""The tables of the first release. Versions 0001 to 0007 were of commits before it; no way leads from them.

Revision ID: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("actor", sa.String(256), nullable=False),
        sa.Column("host", sa.String(256), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("job", sa.String(256)),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("outcome", sa.String(32), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_index("ix_audit_job", "audit", ["job", "id"])
    op.create_index("ix_audit_subject", "audit", ["subject", "id"])
    op.create_table(
        "jobs",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("root", sa.String(4096), nullable=False),
        sa.Column("folder", sa.String(4096), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("host", sa.String(256), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("driver_started_at", _TIME, nullable=False),
        sa.Column("heartbeat_at", _TIME, nullable=False),
        sa.Column("lease_seconds", sa.Float(), nullable=False),
        sa.Column("ended_at", _TIME),
        sa.Column("end_reason", sa.Text(), nullable=False),
        sa.Column("is_supervised", sa.Boolean(), nullable=False),
        sa.Column("log_file", sa.String(4096)),
        sa.Column("spark_version", sa.String(64), nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("live", sa.JSON()),
        sa.Column("agent", sa.JSON()),
        sa.CheckConstraint(
            "state IN ('starting', 'running', 'stopping', 'ended', 'failed')", name=op.f("ck_jobs_state")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("name", name=op.f("uq_jobs_name")),
    )
    op.create_table(
        "savepoints",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("path", sa.String(4096), nullable=False),
        sa.Column("job_name", sa.String(256)),
        sa.Column("checkpoint", sa.BigInteger()),
        sa.Column("label", sa.String(128)),
        sa.Column("imported", sa.Boolean(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", _TIME),
        sa.Column("recorded_at", _TIME, nullable=False),
        sa.Column("applied_numbers", sa.JSON(), nullable=False),
        sa.Column("verified_at", _TIME),
        sa.Column("verified_ok", sa.Boolean()),
        sa.Column("problems", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_savepoints")),
        sa.UniqueConstraint("path", name=op.f("uq_savepoints_path")),
    )
    op.create_index("ix_savepoints_job", "savepoints", ["job_name", "checkpoint"])
    op.create_table(
        "upkeep",
        sa.Column("duty", sa.String(64), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("duty", name=op.f("pk_upkeep")),
    )
    op.create_table(
        "counters",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_counters")),
    )
    op.execute("INSERT INTO counters (name, value) VALUES ('changes', 0)")
    op.create_table(
        "checkpoint_counts",
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("checkpoints", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_checkpoint_counts_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "kind", "state", name=op.f("pk_checkpoint_counts")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("checkpoint", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("label", sa.String(128)),
        sa.Column("key", sa.String(256)),
        sa.Column("cause", sa.String(256), nullable=False),
        sa.Column("requested_by", sa.String(256)),
        sa.Column("generation", sa.BigInteger()),
        sa.Column("triggered_at", _TIME, nullable=False),
        sa.Column("finished_at", _TIME),
        sa.Column("duration_seconds", sa.Float()),
        sa.Column("state_bytes", sa.BigInteger(), nullable=False),
        sa.Column("new_bytes", sa.BigInteger(), nullable=False),
        sa.Column("blocked_events", sa.BigInteger(), nullable=False),
        sa.Column("blocked_seconds", sa.Float(), nullable=False),
        sa.Column("snapshot_seconds", sa.Float(), nullable=False),
        sa.Column("path", sa.String(4096)),
        sa.Column("reason", sa.String(64)),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("statistics", sa.JSON(), nullable=False),
        sa.Column("settled_sequence", sa.BigInteger()),
        sa.CheckConstraint("kind IN ('checkpoint', 'savepoint')", name=op.f("ck_checkpoints_kind")),
        sa.CheckConstraint(
            "state IN ('in_progress', 'failed', 'completed', 'discarded')", name=op.f("ck_checkpoints_state")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_checkpoints_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "checkpoint", name=op.f("pk_checkpoints")),
    )
    op.create_index("ix_checkpoints_newest", "checkpoints", ["job_id", "kind", "state", "checkpoint"])
    op.create_index("ix_checkpoints_triggered_at", "checkpoints", ["triggered_at"])
    op.create_index("uq_checkpoints_settled_sequence", "checkpoints", ["settled_sequence"], unique=True)
    op.create_table(
        "commands",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("key", sa.String(256), nullable=False),
        sa.Column("operator", sa.String(256)),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("requested_by", sa.String(256), nullable=False),
        sa.Column("requested_from", sa.String(256), nullable=False),
        sa.Column("requested_at", _TIME, nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.Column("generation", sa.BigInteger()),
        sa.Column("claimed_at", _TIME),
        sa.Column("number", sa.BigInteger()),
        sa.Column("checkpoint", sa.BigInteger()),
        sa.Column("progress", sa.JSON()),
        sa.Column("result", sa.JSON()),
        sa.Column("error", sa.JSON()),
        sa.Column("finished_at", _TIME),
        sa.Column("cancel_requested_at", _TIME),
        sa.CheckConstraint(
            "state IN ('pending', 'claimed', 'completed', 'failed', 'refused', 'expired', 'cancelled')",
            name=op.f("ck_commands_state"),
        ),
        sa.CheckConstraint("length(CAST(payload AS TEXT)) <= 600000", name=op.f("ck_commands_payload")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_commands_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_commands")),
    )
    op.create_index("ix_commands_due", "commands", ["state", "expires_at"])
    op.create_index("ix_commands_newest", "commands", ["job_id", "id"])
    op.create_index("ix_commands_state", "commands", ["job_id", "state", "id"])
    op.create_index("uq_commands_key", "commands", ["job_id", "key"], unique=True)
    op.create_index("uq_commands_number", "commands", ["job_id", "operator", "number"], unique=True)
    op.create_table(
        "generations",
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("generation", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("host", sa.String(256), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("started_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME),
        sa.Column("end_reason", sa.Text(), nullable=False),
        sa.Column("is_clean", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_generations_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "generation", name=op.f("pk_generations")),
    )
    op.create_table(
        "live_changes",
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("since", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_live_changes_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "name", "version", name=op.f("pk_live_changes")),
    )
    op.create_index("ix_live_changes_newest", "live_changes", ["job_id", "at"])
    op.create_table(
        "operator_samples",
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("operator", sa.String(256), nullable=False),
        sa.Column("resolution_seconds", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("blocked_events", sa.BigInteger(), nullable=False),
        sa.Column("blocked_seconds", sa.Float(), nullable=False),
        sa.Column("blocked_now_max", sa.BigInteger(), nullable=False),
        sa.Column("mailbox_max", sa.BigInteger(), nullable=False),
        sa.Column("closed_max", sa.BigInteger(), nullable=False),
        sa.Column("events_down", sa.BigInteger(), nullable=False),
        sa.Column("events_up", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_operator_samples_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "operator", "resolution_seconds", "at", name=op.f("pk_operator_samples")),
    )
    op.create_index("ix_operator_samples_at", "operator_samples", ["resolution_seconds", "at"])
    op.create_table(
        "operators",
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("uid", sa.String(256), nullable=False),
        sa.Column("query", sa.String(256), nullable=False),
        sa.Column("parallelism", sa.Integer(), nullable=False),
        sa.Column("event_types", sa.JSON(), nullable=False),
        sa.Column("applied_number", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_operators_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "uid", name=op.f("pk_operators")),
    )
    op.create_table(
        "queries",
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("query_id", sa.String(64), nullable=False),
        sa.Column("lineage", sa.String(4096), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("epoch", sa.BigInteger()),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.Column("last_failure", sa.Text(), nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_queries_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "name", name=op.f("pk_queries")),
    )
    op.create_table(
        "query_samples",
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("query", sa.String(256), nullable=False),
        sa.Column("resolution_seconds", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("epochs", sa.Integer(), nullable=False),
        sa.Column("epoch_last", sa.BigInteger()),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("rows_per_second", sa.Float()),
        sa.Column("batch_seconds_avg", sa.Float()),
        sa.Column("batch_seconds_max", sa.Float()),
        sa.Column("state_rows", sa.BigInteger()),
        sa.Column("lag_seconds", sa.Float()),
        sa.Column("backlog", sa.BigInteger()),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_query_samples_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "query", "resolution_seconds", "at", name=op.f("pk_query_samples")),
    )
    op.create_index("ix_query_samples_at", "query_samples", ["resolution_seconds", "at"])
    op.create_table(
        "recoveries",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("query", sa.String(256), nullable=False),
        sa.Column("cause", sa.String(64), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("from_epoch", sa.BigInteger()),
        sa.Column("from_checkpoint", sa.BigInteger()),
        sa.Column("path", sa.String(4096)),
        sa.Column("started_at", _TIME, nullable=False),
        sa.Column("duration_seconds", sa.Float()),
        sa.Column("epochs_rerun", sa.Integer(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger()),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_recoveries_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_recoveries")),
    )
    op.create_index("ix_recoveries_checkpoint", "recoveries", ["job_id", "from_checkpoint"])
    op.create_index("ix_recoveries_newest", "recoveries", ["job_id", "id"])
    op.create_index("ix_recoveries_started_at", "recoveries", ["started_at"])
    op.create_index("uq_recoveries_sequence", "recoveries", ["sequence"], unique=True)
    op.create_index(
        "uq_recoveries_once", "recoveries", ["job_id", "generation", "query", "cause", "started_at"], unique=True
    )
    op.create_table(
        "checkpoint_details",
        sa.Column("job_id", _ID, autoincrement=False, nullable=False),
        sa.Column("checkpoint", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("queries", sa.JSON(), nullable=False),
        sa.Column("subtasks", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id", "checkpoint"],
            ["checkpoints.job_id", "checkpoints.checkpoint"],
            name=op.f("fk_checkpoint_details_job_id_checkpoint"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("job_id", "checkpoint", name=op.f("pk_checkpoint_details")),
    )
    op.create_table(
        "live_values",
        sa.Column("job_id", _ID, autoincrement=False, nullable=False),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("schema", sa.JSON(), nullable=False),
        sa.Column("uses", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id", "name", "version"],
            ["live_changes.job_id", "live_changes.name", "live_changes.version"],
            name=op.f("fk_live_values_job_id_name_version"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("job_id", "name", name=op.f("pk_live_values")),
    )
