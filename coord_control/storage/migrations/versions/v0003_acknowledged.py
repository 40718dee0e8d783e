"""When each subtask acknowledged the epoch at which a checkpoint was cut; nobody knows it of older checkpoints.

Revision ID: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("checkpoint_subtasks", sa.Column("acknowledged_seconds", sa.Float()))
