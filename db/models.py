"""The tables. Rows never leave `db/`; each table has one module that reads and writes it.

    runs ─┬─ devices            one row a device
          ├─ steps ── samples   one row a step; one row a step and device
          │           samples_minute   samples rolled up by age
          ├─ evaluations        loss on text that is not trained on
          ├─ checkpoints        what was saved, where, and whether it is still there
          ├─ plans, switches    versions of the plan; outcomes of moving to them
          ├─ episodes           spans of straggling
          ├─ injections         stragglers that were asked for
          └─ commands, audit    what people asked for; what happened
    what_ifs                    planning questions of people, of a run or of none, and their answers
    heartbeats                  one row a service

Statuses change through `db.transitions` only. Keys are composite where a natural key exists, so
that repeated messages meet a unique key.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Boolean, ForeignKey, Index, Integer, MetaData, String, UniqueConstraint, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from db.columns import Document, Instant, Label, Real

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}

_Id = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    """Base of all tables."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy reads it from the class)
        int: BigInteger(),
        float: Real(),
        str: Label(),
        bool: Boolean(),
        datetime: Instant(),
        dict[str, Any]: Document(),
        list[str]: Document(),
    }


def _run_key(**options: Any) -> Mapped[int]:
    return mapped_column(_Id, ForeignKey("runs.id", ondelete="CASCADE"), **options)


class RunRow(Base):
    """One training run, what it should do (`desired_version` and the columns under it) and does."""

    __tablename__ = "runs"
    __table_args__ = (
        Index(None, "status"),
        Index("uq_runs_key", "key", unique=True),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=True)
    key: Mapped[str | None]
    name: Mapped[str]
    status: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(default="")
    config: Mapped[dict[str, Any]]
    profile: Mapped[dict[str, Any] | None]
    desired_version: Mapped[int]
    target_plan_version: Mapped[int]
    active_plan_version: Mapped[int | None]
    mode: Mapped[str] = mapped_column(String(16))
    is_paused: Mapped[bool] = mapped_column(default=False)
    is_stopping: Mapped[bool] = mapped_column(default=False)
    checkpoint_request: Mapped[int] = mapped_column(default=0)
    max_restarts: Mapped[int] = mapped_column(default=0)
    num_restarts: Mapped[int] = mapped_column(default=0)
    attempt: Mapped[str | None]
    past_attempts: Mapped[list[str]] = mapped_column(default=list)
    last_seq: Mapped[int] = mapped_column(default=-1)
    observed_version: Mapped[int] = mapped_column(default=0)
    applied_version: Mapped[int] = mapped_column(default=0)
    stream_cursor: Mapped[str] = mapped_column(default="0-0")
    step: Mapped[int | None]
    loss: Mapped[float | None]
    step_s: Mapped[float | None]
    num_stale: Mapped[int] = mapped_column(default=0)
    num_invalid: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    last_seen_at: Mapped[datetime | None]


class DeviceRow(Base):
    """A device of a run; host, pid and backend as its rank introduced itself."""

    __tablename__ = "devices"

    run: Mapped[int] = _run_key(primary_key=True)
    device: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    node: Mapped[int]
    rank: Mapped[int | None]
    host: Mapped[str | None]
    pid: Mapped[int | None]
    backend: Mapped[str | None]


class StepRow(Base):
    """One optimizer step; an attempt that begins before it removes it, since its work was lost."""

    __tablename__ = "steps"
    __table_args__ = (Index(None, "run", "plan_version", "step"), {"sqlite_with_rowid": False})

    run: Mapped[int] = _run_key(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    attempt: Mapped[str]
    seq: Mapped[int]
    at: Mapped[datetime]
    phase: Mapped[str] = mapped_column(String(16))
    plan_version: Mapped[int]
    desired_version: Mapped[int]
    step_s: Mapped[float]
    loss: Mapped[float]
    num_tokens: Mapped[int]
    first_sample: Mapped[int]
    stop_sample: Mapped[int]
    grad_norm: Mapped[float | None]
    learning_rate: Mapped[float | None]
    mfu: Mapped[float | None]


class EvaluationRow(Base):
    """Loss on text that is not trained on, with the weights before `step`; the newest attempt's."""

    __tablename__ = "evaluations"
    __table_args__ = ({"sqlite_with_rowid": False},)

    run: Mapped[int] = _run_key(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    attempt: Mapped[str]
    at: Mapped[datetime]
    loss: Mapped[float]
    num_tokens: Mapped[int]
    seconds: Mapped[float]


class CheckpointRow(Base):
    """A checkpoint that was completed or could not be; `step` is the next one to run from it."""

    __tablename__ = "checkpoints"
    __table_args__ = (UniqueConstraint("run", "attempt", "seq"), Index(None, "run", "step"))

    id: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=True)
    run: Mapped[int] = _run_key()
    attempt: Mapped[str]
    seq: Mapped[int]
    at: Mapped[datetime]
    step: Mapped[int]
    request: Mapped[int]
    status: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str]
    path: Mapped[str]
    num_bytes: Mapped[int]
    pause_s: Mapped[float]
    seconds: Mapped[float]


class SampleRow(Base):
    """One device in one step. The key appends in step order; the index serves one device's line."""

    __tablename__ = "samples"
    __table_args__ = (Index(None, "run", "device", "step"), {"sqlite_with_rowid": False})

    run: Mapped[int] = _run_key(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    device: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    rate: Mapped[float]
    compute_s: Mapped[float]
    phase: Mapped[str] = mapped_column(String(16))


class SampleMinuteRow(Base):
    """Samples of one device in one minute (`train` steps only); NaN rates are counted apart."""

    __tablename__ = "samples_minute"
    __table_args__ = ({"sqlite_with_rowid": False},)

    run: Mapped[int] = _run_key(primary_key=True)
    device: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    minute_at: Mapped[datetime] = mapped_column(primary_key=True)
    first_step: Mapped[int]
    last_step: Mapped[int]
    num_samples: Mapped[int]
    num_unknown: Mapped[int]
    rate_min: Mapped[float]
    rate_median: Mapped[float]
    rate_max: Mapped[float]


class EpisodeRow(Base):
    """A span in which a device straggled; at most one open one a device."""

    __tablename__ = "episodes"
    __table_args__ = (
        Index(None, "run", "start_step"),
        Index(
            "uq_episodes_open",
            "run",
            "device",
            unique=True,
            sqlite_where=text("end_at IS NULL"),
            postgresql_where=text("end_at IS NULL"),
        ),
    )

    id: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=True)
    run: Mapped[int] = _run_key()
    device: Mapped[int]
    start_step: Mapped[int]
    start_at: Mapped[datetime]
    end_step: Mapped[int | None]
    end_at: Mapped[datetime | None]
    rate: Mapped[float]
    peak: Mapped[float]
    cause: Mapped[str]
    evidence: Mapped[dict[str, Any]]


class PlanRow(Base):
    """One version of a run's plan: what asked for it, what came out, what became of it."""

    __tablename__ = "plans"
    __table_args__ = (
        UniqueConstraint("run", "key"),
        Index(None, "run", "status"),
        # All that a list sorts and filters by: the wide documents of other plans are not read for it.
        Index(
            "ix_plans_list",
            *("run", "version", "status", "trigger", "active_at"),
            *("predicted_s", "measured_s", "bound_s", "gap", "solve_s"),
        ),
    )

    run: Mapped[int] = _run_key(primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    key: Mapped[str]
    trigger: Mapped[str]
    status: Mapped[str] = mapped_column(String(16))
    rates: Mapped[dict[str, Any]]
    document: Mapped[dict[str, Any] | None]
    job: Mapped[dict[str, Any] | None]
    predicted_s: Mapped[float | None]
    current_s: Mapped[float | None]
    measured_s: Mapped[float | None]
    bound_s: Mapped[float | None]
    gap: Mapped[float | None]
    solve_s: Mapped[float | None]
    solver: Mapped[str] = mapped_column(default="")
    seed: Mapped[int] = mapped_column(default=0)
    parent: Mapped[int | None]
    requested_by: Mapped[str]
    decided_by: Mapped[str] = mapped_column(default="")
    decided_reason: Mapped[str] = mapped_column(default="")
    worker: Mapped[str] = mapped_column(default="")
    reason: Mapped[str] = mapped_column(default="")
    details: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[datetime]
    claimed_at: Mapped[datetime | None]
    solved_at: Mapped[datetime | None]
    decided_at: Mapped[datetime | None]
    active_at: Mapped[datetime | None]


class SwitchRow(Base):
    """The outcome of moving to a plan, with the digests before and after."""

    __tablename__ = "switches"
    __table_args__ = (
        UniqueConstraint("run", "attempt", "seq"),
        Index(None, "run", "step"),
        Index(None, "run", "plan_version"),
    )

    id: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=True)
    run: Mapped[int] = _run_key()
    attempt: Mapped[str]
    seq: Mapped[int]
    at: Mapped[datetime]
    step: Mapped[int]
    plan_version: Mapped[int]
    from_version: Mapped[int]
    outcome: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str]
    bytes_moved: Mapped[int]
    pause_s: Mapped[float]
    phases: Mapped[dict[str, Any]]
    digests_before: Mapped[dict[str, Any]]
    digests_after: Mapped[dict[str, Any]]
    digests_equal: Mapped[bool]


class InjectionRow(Base):
    """A straggler that was asked for; at most one open one a device."""

    __tablename__ = "injections"
    __table_args__ = (
        Index(None, "run", "status"),
        Index(
            "uq_injections_open",
            "run",
            "device",
            unique=True,
            sqlite_where=text("status <> 'cleared'"),
            postgresql_where=text("status <> 'cleared'"),
        ),
    )

    id: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=True)
    run: Mapped[int] = _run_key()
    device: Mapped[int]
    rate: Mapped[float]
    status: Mapped[str] = mapped_column(String(16))
    command: Mapped[int | None]
    desired_version: Mapped[int]
    requested_at: Mapped[datetime]
    until_at: Mapped[datetime | None]
    applied_at: Mapped[datetime | None]
    applied_step: Mapped[int | None]
    cleared_at: Mapped[datetime | None]


class CommandRow(Base):
    """What a person (or a script) asked a run to do."""

    __tablename__ = "commands"
    __table_args__ = (UniqueConstraint("run", "key"), Index(None, "status", "id"), Index(None, "run", "id"))

    id: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=True)
    run: Mapped[int] = _run_key()
    key: Mapped[str | None]
    kind: Mapped[str] = mapped_column(String(16))
    arguments: Mapped[dict[str, Any]]
    actor: Mapped[str]
    source: Mapped[str]
    status: Mapped[str] = mapped_column(String(16))
    result: Mapped[str] = mapped_column(default="")
    desired_version: Mapped[int | None]
    request: Mapped[int | None]
    applied_step: Mapped[int | None]
    created_at: Mapped[datetime]
    accepted_at: Mapped[datetime | None]
    done_at: Mapped[datetime | None]


class WhatIfRow(Base):
    """A planning question that touches no run: what is asked, and what a worker found."""

    __tablename__ = "what_ifs"
    __table_args__ = (UniqueConstraint("key"), Index(None, "status", "id"), Index(None, "run", "id"))

    id: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=True)
    run: Mapped[int | None] = _run_key(nullable=True)
    key: Mapped[str]
    actor: Mapped[str]
    source: Mapped[str]
    request: Mapped[dict[str, Any]]
    status: Mapped[str] = mapped_column(String(16))
    result: Mapped[dict[str, Any] | None]
    seconds: Mapped[float | None]
    error: Mapped[str] = mapped_column(default="")
    worker: Mapped[str] = mapped_column(default="")
    created_at: Mapped[datetime]
    claimed_at: Mapped[datetime | None]
    done_at: Mapped[datetime | None]


class AuditRow(Base):
    """One thing that happened, and who did it. Rows are only ever added."""

    __tablename__ = "audit"
    __table_args__ = (Index(None, "run", "id"), Index(None, "run", "target"))

    id: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=True)
    at: Mapped[datetime]
    run: Mapped[int | None] = _run_key(nullable=True)
    actor: Mapped[str]
    source: Mapped[str]
    action: Mapped[str]
    target: Mapped[str]
    result: Mapped[str]
    detail: Mapped[dict[str, Any]]


class HeartbeatRow(Base):
    """When a service last said that it is alive."""

    __tablename__ = "heartbeats"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    at: Mapped[datetime]
    pid: Mapped[int]
    host: Mapped[str]
    detail: Mapped[dict[str, Any]]
