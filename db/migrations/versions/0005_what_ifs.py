"""What-ifs: planning questions and their answers.

Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from db import columns

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "what_ifs",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("run", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("key", columns.Label(), nullable=False),
        sa.Column("actor", columns.Label(), nullable=False),
        sa.Column("source", columns.Label(), nullable=False),
        sa.Column("request", columns.Document(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("result", columns.Document(), nullable=True),
        sa.Column("seconds", columns.Real(), nullable=True),
        sa.Column("error", columns.Label(), nullable=False),
        sa.Column("worker", columns.Label(), nullable=False),
        sa.Column("created_at", columns.Instant(), nullable=False),
        sa.Column("claimed_at", columns.Instant(), nullable=True),
        sa.Column("done_at", columns.Instant(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_what_ifs_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_what_ifs"),
        sa.UniqueConstraint("key", name="uq_what_ifs_key"),
    )
    op.create_index("ix_what_ifs_status_id", "what_ifs", ["status", "id"], unique=False)
    op.create_index("ix_what_ifs_run_id", "what_ifs", ["run", "id"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_what_ifs_run_id", table_name="what_ifs")
    op.drop_index("ix_what_ifs_status_id", table_name="what_ifs")
    op.drop_table("what_ifs")
