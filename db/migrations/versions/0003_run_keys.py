"""An idempotency key for the start of a run.

Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from db import columns

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("key", columns.Label(), nullable=True))
    op.create_index("uq_runs_key", "runs", ["key"], unique=True)


def downgrade() -> None:
    op.drop_index("uq_runs_key", table_name="runs")
    op.drop_column("runs", "key")
