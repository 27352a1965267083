"""Episodes: spans in which a device straggled. At most one is open on a device of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from db import audit, runs
from db.models import EpisodeRow
from db.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeView:
    """One episode.

    Args:
        end_step, end_at: None while it lasts.
        rate, peak: when it was opened, and the highest since.
        cause: `device`, `stage`, `data`, `link`, `everyone` or `unknown`.
        evidence: what the verdict rests on.
    """

    id: int
    run: int
    device: int
    start_step: int
    start_at: datetime
    end_step: int | None
    end_at: datetime | None
    rate: float
    peak: float
    cause: str
    evidence: dict[str, Any]

    @property
    def is_open(self) -> bool:
        return self.end_at is None


def open_episode(
    store: Store,
    run: int,
    device: int,
    *,
    start_step: int,
    start_at: datetime,
    rate: float,
    cause: str,
    evidence: Mapping[str, Any],
) -> EpisodeView:
    """Opens an episode; if one is open on the device, that one is returned unchanged."""
    with store.session() as session:
        runs.locked(session, run)
        row = _open(session, run, device)
        if row is None:
            row = EpisodeRow(
                run=run,
                device=device,
                start_step=start_step,
                start_at=start_at,
                rate=rate,
                peak=rate,
                cause=cause,
                evidence=dict(evidence),
            )
            session.add(row)
            session.flush()
            _audit(session, row, "open")
        return _view(row)


def update_peak(store: Store, run: int, device: int, *, rate: float) -> EpisodeView | None:
    """Raises the peak of the device's open episode to `rate`, if that is higher (NaN never is)."""
    with store.session() as session:
        runs.locked(session, run)
        row = _open(session, run, device)
        if row is not None and (rate > row.peak or math.isnan(row.peak)):
            row.peak = rate
        return None if row is None else _view(row)


def close(store: Store, run: int, device: int, *, end_step: int, end_at: datetime) -> EpisodeView | None:
    """Ends the device's open episode; None if there is none."""
    with store.session() as session:
        runs.locked(session, run)
        row = _open(session, run, device)
        if row is None:
            return None
        row.end_step = end_step
        row.end_at = end_at
        _audit(session, row, "close")
        return _view(row)


def all_episodes(
    store: Store,
    run: int,
    *,
    devices: Sequence[int] | None = None,
    is_open: bool | None = None,
    limit: int = 100,
    offset: int = 0,
) -> list[EpisodeView]:
    """Episodes of a run, newest first.

    Args:
        devices: of these only; None: of all.
        is_open: True: only those that last; False: only those that ended.
    """
    query = select(EpisodeRow).where(EpisodeRow.run == run).order_by(EpisodeRow.id.desc())
    if devices is not None:
        query = query.where(EpisodeRow.device.in_(devices))
    if is_open is not None:
        query = query.where(EpisodeRow.end_at.is_(None) if is_open else EpisodeRow.end_at.is_not(None))
    with store.reading() as session:
        return [_view(row) for row in session.scalars(query.limit(limit).offset(offset))]


def _open(session: Session, run: int, device: int) -> EpisodeRow | None:
    return session.scalar(
        select(EpisodeRow).where(EpisodeRow.run == run, EpisodeRow.device == device, EpisodeRow.end_at.is_(None))
    )


def _audit(session: Session, row: EpisodeRow, result: str) -> None:
    audit.add(
        session,
        actor="controller",
        action="episode",
        run=row.run,
        target=f"device {row.device}",
        result=result,
        detail={"episode": row.id, "rate": row.rate, "peak": row.peak, "cause": row.cause},
    )


def _view(row: EpisodeRow) -> EpisodeView:
    return EpisodeView(
        id=row.id,
        run=row.run,
        device=row.device,
        start_step=row.start_step,
        start_at=row.start_at,
        end_step=row.end_step,
        end_at=row.end_at,
        rate=row.rate,
        peak=row.peak,
        cause=row.cause,
        evidence=row.evidence,
    )
