"""Why a plan was decided as it was; indexes for lists of plans, their switches and their history.

Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from db import columns

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_LISTED = (
    *("run", "version", "status", "trigger", "active_at"),
    *("predicted_s", "measured_s", "bound_s", "gap", "solve_s"),
)


def upgrade() -> None:
    op.add_column("plans", sa.Column("decided_reason", columns.Label(), nullable=False, server_default=""))
    op.create_index("ix_plans_list", "plans", list(_LISTED), unique=False)
    op.create_index("ix_switches_run_plan_version", "switches", ["run", "plan_version"], unique=False)
    op.create_index("ix_audit_run_target", "audit", ["run", "target"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_audit_run_target", "audit")
    op.drop_index("ix_switches_run_plan_version", "switches")
    op.drop_index("ix_plans_list", "plans")
    op.drop_column("plans", "decided_reason")
