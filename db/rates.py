"""Straggling rates over a run, thinned in the database: of every block of steps the lowest, the mean, the highest.

A block says of one device what its `train` samples of some consecutive steps were; peaks and silence
survive any width. Young samples are raw rows, old ones were rolled up by the minute (`db.rollup`);
`span` says where one ends and the other begins. Nothing here writes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Row, Select, case, func, select

from db.errors import InputError
from db.models import SampleMinuteRow, SampleRow
from db.store import Store


class RateBlock(NamedTuple):
    """One device in consecutive steps; a tuple, because pages hold tens of thousands of them.

    Args:
        first_step, last_step: of the samples in it.
        num_known: samples with a rate, an infinite one included.
        num_unknown: samples whose rate is NaN.
        low, mean, high: of the known rates, straggling rate (1 is healthy); NaN if none is known. The mean
            of rolled-up samples is that of their minutes' medians.
    """

    device: int
    first_step: int
    last_step: int
    num_known: int
    num_unknown: int
    low: float
    mean: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSpan:
    """Which steps of a run have samples, first and last of each kind; None where there are none."""

    raw: tuple[int, int] | None
    rolled_up: tuple[int, int] | None


def span(store: Store, run: int) -> SampleSpan:
    """Where raw samples begin and end, and those that were rolled up (as the lowest device has them)."""
    minutes = select(SampleMinuteRow.first_step, SampleMinuteRow.last_step).where(SampleMinuteRow.run == run)
    lowest = select(func.min(SampleMinuteRow.device)).where(SampleMinuteRow.run == run).scalar_subquery()
    minutes = minutes.where(SampleMinuteRow.device == lowest).limit(1)
    raw = select(SampleRow.step).where(SampleRow.run == run).limit(1)
    with store.reading() as session:
        first = session.scalar(raw.order_by(SampleRow.step))
        last = session.scalar(raw.order_by(SampleRow.step.desc()))
        oldest = session.execute(minutes.order_by(SampleMinuteRow.minute_at)).one_or_none()
        newest = session.execute(minutes.order_by(SampleMinuteRow.minute_at.desc())).one_or_none()
    return SampleSpan(
        raw=None if first is None or last is None else (first, last),
        rolled_up=None if oldest is None or newest is None else (oldest.first_step, newest.last_step),
    )


def raw_blocks(
    store: Store, run: int, *, devices: Sequence[int] | None, since_step: int, until_step: int, width: int
) -> list[RateBlock]:
    """Blocks of raw samples, by device and step.

    Args:
        devices: of these only; None: of all.
        since_step, until_step: both included.
        width: steps a block; blocks begin at its multiples, so that they stay the same while a run grows.
    """
    known = SampleRow.rate <= math.inf  # NaN sorts above infinity, on SQLite too
    block = _block(SampleRow.step, width)
    query = (
        select(
            SampleRow.device,
            func.min(SampleRow.step),
            func.max(SampleRow.step),
            func.count(case((known, 1))),
            func.count(),
            func.min(SampleRow.rate),
            func.avg(case((known, SampleRow.rate))),
            func.max(case((known, SampleRow.rate))),
        )
        .where(SampleRow.run == run, SampleRow.phase == "train")
        .where(*_in_steps(store, devices, since_step, until_step))
        .group_by(SampleRow.device, block)
        .order_by(SampleRow.device, block)
    )
    return _rows(store, query)


def minute_blocks(
    store: Store, run: int, *, devices: Sequence[int] | None, since_step: int, until_step: int, width: int
) -> list[RateBlock]:
    """The same of samples that were rolled up: at least a minute each, of the minutes that begin in these steps."""
    minute = SampleMinuteRow
    is_known = minute.num_samples > 0
    block = _block(minute.first_step, width)
    total = func.sum(minute.num_samples)
    query = (
        select(
            minute.device,
            func.min(minute.first_step),
            func.max(minute.last_step),
            total,
            total + func.sum(minute.num_unknown),
            func.min(minute.rate_min),
            func.sum(case((is_known, minute.rate_median * minute.num_samples))) / func.nullif(total, 0),
            func.max(case((is_known, minute.rate_max))),
        )
        .where(minute.run == run, minute.first_step >= since_step, minute.first_step <= until_step)
        .group_by(minute.device, block)
        .order_by(minute.device, block)
    )
    if devices is not None:
        query = query.where(minute.device.in_(devices))
    return _rows(store, query)


def _block(step: Any, width: int) -> Any:
    if width < 1:
        raise InputError(f"width must be at least 1 step, given {width}")
    return step // width if width > 1 else step  # a group of its own a step


def _in_steps(
    store: Store, devices: Sequence[int] | None, since_step: int, until_step: int
) -> list[ColumnElement[bool]]:
    """Samples of these steps and devices, so that the index by device serves a few devices.

    SQLite without statistics holds a range of the primary key (all devices) for cheaper than any index; not
    so once it is told that the range leaves most rows (`likely`), and only for more than one device.
    """
    steps: list[ColumnElement[bool]] = [SampleRow.step >= since_step, SampleRow.step <= until_step]
    if devices is None:
        return steps
    if not store.is_sqlite:
        return [*steps, SampleRow.device.in_(devices)]
    return [*(func.likely(bound) for bound in steps), SampleRow.device.in_([*devices, *devices[:1]])]


def _rows(store: Store, query: Select[*tuple[Any, ...]]) -> list[RateBlock]:
    with store.reading() as session:
        return [_rate_block(row) for row in session.execute(query)]


def _rate_block(row: Row[*tuple[Any, ...]]) -> RateBlock:
    device, first, last, num_known, number, low, mean, high = row
    known, unknown = int(num_known), int(number) - int(num_known)
    if known == 0:
        return RateBlock(device, first, last, 0, unknown, math.nan, math.nan, math.nan)
    return RateBlock(device, first, last, known, unknown, low, float(mean), high)
