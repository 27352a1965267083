"""Checkpoints as the engine reported them: what was saved, where, and whether it is still there.

The recorder adds them here. The engine keeps the newest `checkpoint.keep` of a run and removes the others once a
newer one is complete; it does not report that, so they are `removed` here by the same rule. Nothing looks at disks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from db import audit, transitions
from db.messages import Checkpoint
from db.models import CheckpointRow, RunRow
from db.run_config import RunConfig
from db.store import Store, insert


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """A checkpoint; see `db.messages.Checkpoint`.

    Args:
        step: the next step to run when one goes on from it.
        status: `saved`, `removed` (newer ones took its place) or `failed` with the reason.
    """

    id: int
    step: int
    status: str
    path: str
    num_bytes: int
    pause_s: float
    seconds: float
    at: datetime
    attempt: str
    request: int
    reason: str


def all_checkpoints(store: Store, run: int, *, limit: int = 1000, offset: int = 0) -> list[CheckpointView]:
    """Checkpoints of a run, newest first, failed and removed ones too."""
    query = select(CheckpointRow).where(CheckpointRow.run == run).order_by(CheckpointRow.id.desc())
    with store.reading() as session:
        return [_view(row) for row in session.scalars(query.limit(limit).offset(offset))]


def saved(store: Store, run: int) -> list[CheckpointView]:
    """The checkpoints that a run can be continued from, newest first."""
    with store.reading() as session:
        return [_view(row) for row in session.scalars(_saved(run))]


def newest_saved(store: Store, run: int) -> CheckpointView | None:
    """The first of `saved`, which an engine that ended is started again from; None if there is none."""
    with store.reading() as session:
        row = session.scalar(_saved(run).limit(1))
        return None if row is None else _view(row)


def answer(store: Store, run: int, request: int) -> CheckpointView | None:
    """The first checkpoint that answers a request; None while there is none."""
    query = select(CheckpointRow).where(CheckpointRow.run == run, CheckpointRow.request >= request)
    with store.reading() as session:
        row = session.scalar(query.order_by(CheckpointRow.id).limit(1))
        return None if row is None else _view(row)


def add(session: Session, row: RunRow, message: Checkpoint) -> bool:
    """Writes down what the engine reports; false if it is there already. For `db/` only."""
    key = (
        CheckpointRow.run == row.id,
        CheckpointRow.attempt == message.attempt,
        CheckpointRow.seq == message.seq,
    )
    if session.scalar(select(CheckpointRow.id).where(*key)) is not None:
        return False
    session.execute(
        insert(session, CheckpointRow).on_conflict_do_nothing(),
        [
            {
                "run": row.id,
                "attempt": message.attempt,
                "seq": message.seq,
                "at": message.at,
                "step": message.step,
                "request": message.request,
                "status": message.outcome,
                "reason": message.reason,
                "path": message.path,
                "num_bytes": message.num_bytes,
                "pause_s": message.pause_s,
                "seconds": message.seconds,
            }
        ],
    )
    audit.add(
        session,
        actor="engine",
        action="checkpoint",
        run=row.id,
        target=f"step {message.step}",
        result=message.outcome,
        detail={
            "path": message.path,
            "reason": message.reason,
            "num_bytes": message.num_bytes,
            "pause_s": message.pause_s,
            "seconds": message.seconds,
        },
    )
    if message.outcome == "saved":
        _remove_older(session, row)
    return True


def _remove_older(session: Session, row: RunRow) -> None:
    """Those beyond the newest `keep`, and those that a newer one has written over."""
    for old in _replaced(
        session.scalars(_saved(row.id)).all(),
        keep=RunConfig.model_validate(row.config).checkpoint.keep,
    ):
        transitions.move_checkpoint(old, "removed")


def _saved(run: int) -> Select[CheckpointRow]:
    """Those of a run that are there, newest first."""
    query = select(CheckpointRow).where(CheckpointRow.run == run, CheckpointRow.status == "saved")
    return query.order_by(CheckpointRow.id.desc())


def _replaced(rows: Sequence[CheckpointRow], *, keep: int) -> list[CheckpointRow]:
    kept: set[str] = set()
    replaced = []
    for row in rows:
        if row.path in kept or len(kept) >= keep:
            replaced.append(row)
        else:
            kept.add(row.path)
    return replaced


def _view(row: CheckpointRow) -> CheckpointView:
    return CheckpointView(
        id=row.id,
        step=row.step,
        status=row.status,
        path=row.path,
        num_bytes=row.num_bytes,
        pause_s=row.pause_s,
        seconds=row.seconds,
        at=row.at,
        attempt=row.attempt,
        request=row.request,
        reason=row.reason,
    )
