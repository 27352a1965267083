"""Checkpoints, evaluations, restarts; what a step reports beside its loss.

Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from db import columns

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_RUN_COLUMNS = ("checkpoint_request", "max_restarts", "num_restarts")
_STEP_COLUMNS = ("grad_norm", "learning_rate", "mfu")


def upgrade() -> None:
    for name in _RUN_COLUMNS:
        op.add_column("runs", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    for name in _STEP_COLUMNS:
        op.add_column("steps", sa.Column(name, columns.Real(), nullable=True))
    op.add_column("commands", sa.Column("request", sa.BigInteger(), nullable=True))
    op.create_table(
        "checkpoints",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("run", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("attempt", columns.Label(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("at", columns.Instant(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("request", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("reason", columns.Label(), nullable=False),
        sa.Column("path", columns.Label(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("pause_s", columns.Real(), nullable=False),
        sa.Column("seconds", columns.Real(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_checkpoints_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_checkpoints"),
        sa.UniqueConstraint("run", "attempt", "seq", name="uq_checkpoints_run_attempt_seq"),
    )
    op.create_index("ix_checkpoints_run_step", "checkpoints", ["run", "step"], unique=False)
    op.create_table(
        "evaluations",
        sa.Column("run", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt", columns.Label(), nullable=False),
        sa.Column("at", columns.Instant(), nullable=False),
        sa.Column("loss", columns.Real(), nullable=False),
        sa.Column("num_tokens", sa.BigInteger(), nullable=False),
        sa.Column("seconds", columns.Real(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_evaluations_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "step", name="pk_evaluations"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("evaluations")
    op.drop_index("ix_checkpoints_run_step", table_name="checkpoints")
    op.drop_table("checkpoints")
    op.drop_column("commands", "request")
    for name in reversed(_STEP_COLUMNS):
        op.drop_column("steps", name)
    for name in reversed(_RUN_COLUMNS):
        op.drop_column("runs", name)
