"""Subtasks that have passed the boundary of a checkpoint are called so, and not "acknowledged", which is another fact.

Revision ID: 0004
"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_DETAILS = """
UPDATE checkpoint_details
SET queries = CAST(REPLACE(CAST(queries AS TEXT), '"acknowledged":', '"passed_subtasks":') AS JSON)
"""
_DETAILS_SQLITE = """
UPDATE checkpoint_details SET queries = REPLACE(queries, '"acknowledged":', '"passed_subtasks":')
"""


def upgrade() -> None:
    op.alter_column("checkpoints", "acknowledged", new_column_name="passed_subtasks")
    op.alter_column("checkpoint_subtasks", "seconds", new_column_name="passed_seconds")
    op.alter_column("checkpoint_subtasks", "acknowledged_seconds", new_column_name="ack_seconds")
    op.execute(_DETAILS_SQLITE if op.get_bind().dialect.name == "sqlite" else _DETAILS)
