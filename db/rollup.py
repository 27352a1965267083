"""Rolls old samples up: raw rows of a minute become one row a device, then the raw rows go.

Only whole minutes that are over are rolled up, and the newest steps of every run stay raw, so that
its last rates can be read however long ago it ended. Steps, switches and plans are kept for good.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, exists, func, select
from sqlalchemy.orm import Session

from db import runs
from db.messages import utc_now
from db.models import RunRow, SampleMinuteRow, SampleRow, StepRow
from db.store import Store

NUM_STEPS_KEPT = 100
MAX_STEPS_A_TRANSACTION = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledUp:
    """What was done: raw rows that went, and rows by the minute that came."""

    num_samples: int
    num_minutes: int


def roll_up(store: Store, *, older_than: timedelta) -> RolledUp:
    """Rolls up the samples of every run that are older than this.

    May be interrupted and called again; several short transactions, so that writers are not kept
    waiting.
    """
    before = utc_now() - older_than
    with store.reading() as session:
        known = session.scalars(select(RunRow.id).order_by(RunRow.id)).all()
    num_samples = num_minutes = 0
    for run in known:
        while True:
            part = _roll_up_part(store, run, before)
            if part.num_samples == 0:
                break
            num_samples += part.num_samples
            num_minutes += part.num_minutes
    return RolledUp(num_samples=num_samples, num_minutes=num_minutes)


def _roll_up_part(store: Store, run: int, before: datetime) -> RolledUp:
    with store.session() as session:
        runs.locked(session, run)
        minutes = _whole_minutes(session, run, before)
        if not minutes:
            return RolledUp(num_samples=0, num_minutes=0)
        chosen = (SampleRow.run == run, SampleRow.step.in_(list(minutes)))
        samples = session.execute(
            select(SampleRow.step, SampleRow.device, SampleRow.rate, SampleRow.phase).where(*chosen)
        ).all()
        groups: dict[tuple[int, datetime], list[tuple[int, float]]] = defaultdict(list)
        for step, device, rate, phase in samples:
            if phase == "train":
                groups[device, minutes[step]].append((step, rate))
        for (device, minute_at), entries in groups.items():
            _write(session, _row(run, device, minute_at, entries))
        session.execute(delete(SampleRow).where(*chosen))
        return RolledUp(num_samples=len(samples), num_minutes=len(groups))


def _whole_minutes(session: Session, run: int, before: datetime) -> dict[int, datetime]:
    """Steps that have raw samples and may go, with their minutes; no minute is cut in two."""
    kept_at = session.scalar(
        select(StepRow.at).where(StepRow.run == run).order_by(StepRow.step.desc()).offset(NUM_STEPS_KEPT - 1).limit(1)
    )
    if kept_at is None:
        return {}
    query = (
        select(StepRow.step, StepRow.at)
        .where(StepRow.run == run, StepRow.at < _minute(min(before, kept_at)))
        .where(exists().where(SampleRow.run == StepRow.run, SampleRow.step == StepRow.step))
        .order_by(StepRow.step)
    )
    first_raw = session.scalar(select(func.min(SampleRow.step)).where(SampleRow.run == run))
    query = query.where(StepRow.step >= first_raw)
    minutes = {step: _minute(at) for step, at in session.execute(query.limit(MAX_STEPS_A_TRANSACTION))}
    if len(minutes) < MAX_STEPS_A_TRANSACTION:
        return minutes
    last = max(minutes.values())
    whole = {step: minute for step, minute in minutes.items() if minute != last}
    if whole:
        return whole
    return {step: last for step, at in session.execute(query.where(StepRow.at < last + timedelta(minutes=1)))}


def _minute(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0)


def _row(run: int, device: int, minute_at: datetime, entries: list[tuple[int, float]]) -> SampleMinuteRow:
    rates = [rate for _, rate in entries if not math.isnan(rate)]
    return SampleMinuteRow(
        run=run,
        device=device,
        minute_at=minute_at,
        first_step=min(step for step, _ in entries),
        last_step=max(step for step, _ in entries),
        num_samples=len(rates),
        num_unknown=len(entries) - len(rates),
        rate_min=min(rates, default=math.nan),
        rate_median=statistics.median(rates) if rates else math.nan,
        rate_max=max(rates, default=math.nan),
    )


def _write(session: Session, row: SampleMinuteRow) -> None:
    """Adds a row, or joins it with the one that is there: samples that came late (a repeated step)."""
    known = session.get(SampleMinuteRow, (row.run, row.device, row.minute_at))
    if known is None:
        session.add(row)
        return
    known.first_step = min(known.first_step, row.first_step)
    known.last_step = max(known.last_step, row.last_step)
    known.num_unknown += row.num_unknown
    if row.num_samples == 0:
        return
    if known.num_samples == 0:
        known.rate_min, known.rate_median, known.rate_max = row.rate_min, row.rate_median, row.rate_max
    else:
        total = known.num_samples + row.num_samples
        known.rate_min = min(known.rate_min, row.rate_min)
        known.rate_max = max(known.rate_max, row.rate_max)
        known.rate_median = (known.rate_median * known.num_samples + row.rate_median * row.num_samples) / total
    known.num_samples += row.num_samples
