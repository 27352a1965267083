"""The first tables: runs and everything that hangs on them, and heartbeats.

Revises: nothing
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from db import columns

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "heartbeats",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("at", columns.Instant(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("host", columns.Label(), nullable=False),
        sa.Column("detail", columns.Document(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_heartbeats"),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("name", columns.Label(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("reason", columns.Label(), nullable=False),
        sa.Column("config", columns.Document(), nullable=False),
        sa.Column("profile", columns.Document(), nullable=True),
        sa.Column("desired_version", sa.BigInteger(), nullable=False),
        sa.Column("target_plan_version", sa.BigInteger(), nullable=False),
        sa.Column("active_plan_version", sa.BigInteger(), nullable=True),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("is_paused", sa.Boolean(), nullable=False),
        sa.Column("is_stopping", sa.Boolean(), nullable=False),
        sa.Column("attempt", columns.Label(), nullable=True),
        sa.Column("past_attempts", columns.Document(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("observed_version", sa.BigInteger(), nullable=False),
        sa.Column("applied_version", sa.BigInteger(), nullable=False),
        sa.Column("stream_cursor", columns.Label(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("loss", columns.Real(), nullable=True),
        sa.Column("step_s", columns.Real(), nullable=True),
        sa.Column("num_stale", sa.BigInteger(), nullable=False),
        sa.Column("num_invalid", sa.BigInteger(), nullable=False),
        sa.Column("created_at", columns.Instant(), nullable=False),
        sa.Column("started_at", columns.Instant(), nullable=True),
        sa.Column("ended_at", columns.Instant(), nullable=True),
        sa.Column("last_seen_at", columns.Instant(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_runs_status", "runs", ["status"], unique=False)
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", columns.Instant(), nullable=False),
        sa.Column("run", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("actor", columns.Label(), nullable=False),
        sa.Column("source", columns.Label(), nullable=False),
        sa.Column("action", columns.Label(), nullable=False),
        sa.Column("target", columns.Label(), nullable=False),
        sa.Column("result", columns.Label(), nullable=False),
        sa.Column("detail", columns.Document(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_audit_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_run_id", "audit", ["run", "id"], unique=False)
    op.create_table(
        "commands",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("run", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("key", columns.Label(), nullable=True),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("arguments", columns.Document(), nullable=False),
        sa.Column("actor", columns.Label(), nullable=False),
        sa.Column("source", columns.Label(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("result", columns.Label(), nullable=False),
        sa.Column("desired_version", sa.BigInteger(), nullable=True),
        sa.Column("applied_step", sa.BigInteger(), nullable=True),
        sa.Column("created_at", columns.Instant(), nullable=False),
        sa.Column("accepted_at", columns.Instant(), nullable=True),
        sa.Column("done_at", columns.Instant(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_commands_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_commands"),
        sa.UniqueConstraint("run", "key", name="uq_commands_run_key"),
    )
    op.create_index("ix_commands_run_id", "commands", ["run", "id"], unique=False)
    op.create_index("ix_commands_status_id", "commands", ["status", "id"], unique=False)
    op.create_table(
        "devices",
        sa.Column("run", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("device", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("node", sa.BigInteger(), nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=True),
        sa.Column("host", columns.Label(), nullable=True),
        sa.Column("pid", sa.BigInteger(), nullable=True),
        sa.Column("backend", columns.Label(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_devices_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "device", name="pk_devices"),
    )
    op.create_table(
        "episodes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("run", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("device", sa.BigInteger(), nullable=False),
        sa.Column("start_step", sa.BigInteger(), nullable=False),
        sa.Column("start_at", columns.Instant(), nullable=False),
        sa.Column("end_step", sa.BigInteger(), nullable=True),
        sa.Column("end_at", columns.Instant(), nullable=True),
        sa.Column("rate", columns.Real(), nullable=False),
        sa.Column("peak", columns.Real(), nullable=False),
        sa.Column("cause", columns.Label(), nullable=False),
        sa.Column("evidence", columns.Document(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_episodes_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_episodes"),
    )
    op.create_index("ix_episodes_run_start_step", "episodes", ["run", "start_step"], unique=False)
    op.create_index(
        "uq_episodes_open",
        "episodes",
        ["run", "device"],
        unique=True,
        sqlite_where=sa.text("end_at IS NULL"),
        postgresql_where=sa.text("end_at IS NULL"),
    )
    op.create_table(
        "injections",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("run", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("device", sa.BigInteger(), nullable=False),
        sa.Column("rate", columns.Real(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("command", sa.BigInteger(), nullable=True),
        sa.Column("desired_version", sa.BigInteger(), nullable=False),
        sa.Column("requested_at", columns.Instant(), nullable=False),
        sa.Column("until_at", columns.Instant(), nullable=True),
        sa.Column("applied_at", columns.Instant(), nullable=True),
        sa.Column("applied_step", sa.BigInteger(), nullable=True),
        sa.Column("cleared_at", columns.Instant(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_injections_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_injections"),
    )
    op.create_index("ix_injections_run_status", "injections", ["run", "status"], unique=False)
    op.create_index(
        "uq_injections_open",
        "injections",
        ["run", "device"],
        unique=True,
        sqlite_where=sa.text("status <> 'cleared'"),
        postgresql_where=sa.text("status <> 'cleared'"),
    )
    op.create_table(
        "plans",
        sa.Column("run", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("key", columns.Label(), nullable=False),
        sa.Column("trigger", columns.Label(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("rates", columns.Document(), nullable=False),
        sa.Column("document", columns.Document(), nullable=True),
        sa.Column("job", columns.Document(), nullable=True),
        sa.Column("predicted_s", columns.Real(), nullable=True),
        sa.Column("current_s", columns.Real(), nullable=True),
        sa.Column("measured_s", columns.Real(), nullable=True),
        sa.Column("bound_s", columns.Real(), nullable=True),
        sa.Column("gap", columns.Real(), nullable=True),
        sa.Column("solve_s", columns.Real(), nullable=True),
        sa.Column("solver", columns.Label(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("parent", sa.BigInteger(), nullable=True),
        sa.Column("requested_by", columns.Label(), nullable=False),
        sa.Column("decided_by", columns.Label(), nullable=False),
        sa.Column("worker", columns.Label(), nullable=False),
        sa.Column("reason", columns.Label(), nullable=False),
        sa.Column("details", columns.Document(), nullable=False),
        sa.Column("created_at", columns.Instant(), nullable=False),
        sa.Column("claimed_at", columns.Instant(), nullable=True),
        sa.Column("solved_at", columns.Instant(), nullable=True),
        sa.Column("decided_at", columns.Instant(), nullable=True),
        sa.Column("active_at", columns.Instant(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_plans_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "version", name="pk_plans"),
        sa.UniqueConstraint("run", "key", name="uq_plans_run_key"),
    )
    op.create_index("ix_plans_run_status", "plans", ["run", "status"], unique=False)
    op.create_table(
        "samples",
        sa.Column("run", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("device", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("rate", columns.Real(), nullable=False),
        sa.Column("compute_s", columns.Real(), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_samples_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "step", "device", name="pk_samples"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_samples_run_device_step", "samples", ["run", "device", "step"], unique=False)
    op.create_table(
        "samples_minute",
        sa.Column("run", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("device", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("minute_at", columns.Instant(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("num_samples", sa.BigInteger(), nullable=False),
        sa.Column("num_unknown", sa.BigInteger(), nullable=False),
        sa.Column("rate_min", columns.Real(), nullable=False),
        sa.Column("rate_median", columns.Real(), nullable=False),
        sa.Column("rate_max", columns.Real(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_samples_minute_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "device", "minute_at", name="pk_samples_minute"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "steps",
        sa.Column("run", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt", columns.Label(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("at", columns.Instant(), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("plan_version", sa.BigInteger(), nullable=False),
        sa.Column("desired_version", sa.BigInteger(), nullable=False),
        sa.Column("step_s", columns.Real(), nullable=False),
        sa.Column("loss", columns.Real(), nullable=False),
        sa.Column("num_tokens", sa.BigInteger(), nullable=False),
        sa.Column("first_sample", sa.BigInteger(), nullable=False),
        sa.Column("stop_sample", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_steps_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "step", name="pk_steps"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_steps_run_plan_version_step", "steps", ["run", "plan_version", "step"], unique=False)
    op.create_table(
        "switches",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("run", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("attempt", columns.Label(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("at", columns.Instant(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("plan_version", sa.BigInteger(), nullable=False),
        sa.Column("from_version", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("reason", columns.Label(), nullable=False),
        sa.Column("bytes_moved", sa.BigInteger(), nullable=False),
        sa.Column("pause_s", columns.Real(), nullable=False),
        sa.Column("phases", columns.Document(), nullable=False),
        sa.Column("digests_before", columns.Document(), nullable=False),
        sa.Column("digests_after", columns.Document(), nullable=False),
        sa.Column("digests_equal", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_switches_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_switches"),
        sa.UniqueConstraint("run", "attempt", "seq", name="uq_switches_run_attempt_seq"),
    )
    op.create_index("ix_switches_run_step", "switches", ["run", "step"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_switches_run_step", table_name="switches")
    op.drop_table("switches")
    op.drop_index("ix_steps_run_plan_version_step", table_name="steps")
    op.drop_table("steps")
    op.drop_table("samples_minute")
    op.drop_index("ix_samples_run_device_step", table_name="samples")
    op.drop_table("samples")
    op.drop_index("ix_plans_run_status", table_name="plans")
    op.drop_table("plans")
    op.drop_index(
        "uq_injections_open",
        table_name="injections",
        sqlite_where=sa.text("status <> 'cleared'"),
        postgresql_where=sa.text("status <> 'cleared'"),
    )
    op.drop_index("ix_injections_run_status", table_name="injections")
    op.drop_table("injections")
    op.drop_index(
        "uq_episodes_open",
        table_name="episodes",
        sqlite_where=sa.text("end_at IS NULL"),
        postgresql_where=sa.text("end_at IS NULL"),
    )
    op.drop_index("ix_episodes_run_start_step", table_name="episodes")
    op.drop_table("episodes")
    op.drop_table("devices")
    op.drop_index("ix_commands_status_id", table_name="commands")
    op.drop_index("ix_commands_run_id", table_name="commands")
    op.drop_table("commands")
    op.drop_index("ix_audit_run_id", table_name="audit")
    op.drop_table("audit")
    op.drop_index("ix_runs_status", table_name="runs")
    op.drop_table("runs")
    op.drop_table("heartbeats")
