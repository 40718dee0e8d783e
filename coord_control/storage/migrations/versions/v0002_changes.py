"""The order in which checkpoints ended and queries recovered, over all jobs.

What there is gets its place by its time; what comes later gets the next ones.

Revision ID: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_BACKFILL = """
CREATE TABLE coord_changes AS
SELECT row_number() OVER (ORDER BY at, is_recovery, job_id, id) AS place, is_recovery, job_id, id
FROM (
    SELECT coalesce(finished_at, triggered_at) AS at, 0 AS is_recovery, job_id, checkpoint AS id
    FROM checkpoints WHERE state <> 'in_progress'
    UNION ALL
    SELECT started_at AS at, 1 AS is_recovery, job_id, id FROM recoveries
) AS settled
"""

_CHECKPOINTS = """
UPDATE checkpoints SET settled_sequence = coord_changes.place FROM coord_changes
WHERE coord_changes.is_recovery = 0 AND coord_changes.job_id = checkpoints.job_id
AND coord_changes.id = checkpoints.checkpoint
"""

_RECOVERIES = """
UPDATE recoveries SET sequence = coord_changes.place FROM coord_changes
WHERE coord_changes.is_recovery = 1 AND coord_changes.id = recoveries.id
"""

_COUNTER = "INSERT INTO counters (name, value) SELECT 'changes', count(*) FROM coord_changes"


def upgrade() -> None:
    op.create_table(
        "counters",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_counters")),
    )
    op.add_column("checkpoints", sa.Column("settled_sequence", sa.BigInteger()))
    op.add_column("recoveries", sa.Column("sequence", sa.BigInteger()))
    for statement in (_BACKFILL, _CHECKPOINTS, _RECOVERIES, _COUNTER, "DROP TABLE coord_changes"):
        op.execute(statement)
    op.create_index("uq_checkpoints_settled_sequence", "checkpoints", ["settled_sequence"], unique=True)
    op.create_index("uq_recoveries_sequence", "recoveries", ["sequence"], unique=True)
