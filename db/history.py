"""What a run did: reads for charts, tables and the detector. Nothing here writes.

Long series are thinned in the database, so that a page costs the same whether a run has a hundred
steps or a million: of every bucket of steps the fastest, the slowest and the one with the highest
loss survive, so that spikes and NaN (which sorts highest) stay visible.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.orm import Session, defer

from db.errors import InputError
from db.models import DeviceRow, EvaluationRow, SampleMinuteRow, SampleRow, StepRow, SwitchRow
from db.store import Store

ROWS_PER_BUCKET = 3

_SAMPLE = (SampleRow.step, SampleRow.device, SampleRow.rate, SampleRow.compute_s, SampleRow.phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """One optimizer step; see `db.messages.Step`. `samples` is `[first, stop)`; NaN where nothing was reported."""

    step: int
    attempt: str
    at: datetime
    phase: str
    plan_version: int
    desired_version: int
    step_s: float
    loss: float
    num_tokens: int
    samples: tuple[int, int]
    grad_norm: float = math.nan
    learning_rate: float = math.nan
    mfu: float = math.nan

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the global batch per second of the step; NaN if it took no time that is known."""
        return self.num_tokens / self.step_s if self.step_s > 0 else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationView:
    """Loss on text that is not trained on, with the weights before `step`."""

    step: int
    loss: float
    num_tokens: int
    seconds: float
    at: datetime
    attempt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleView:
    """One device in one step. A rate of NaN means: nothing was measured."""

    step: int
    device: int
    rate: float
    compute_s: float
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteView:
    """One device in one minute, rolled up: of the rates that were measured in `train` steps."""

    device: int
    minute_at: datetime
    first_step: int
    last_step: int
    num_samples: int
    num_unknown: int
    rate_min: float
    rate_median: float
    rate_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RateView:
    """A device's last rate; NaN: unknown."""

    device: int
    rate: float
    step: int
    at: datetime
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RateWindow:
    """The last steps' rates: `rates[device][i]` belongs to `steps[i]`; NaN where nothing is known."""

    steps: tuple[int, ...]
    phases: tuple[str, ...]
    rates: dict[int, tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchView:
    """The outcome of moving to a plan; see `db.messages.Switch`. Digests come from `switch_digests`."""

    id: int
    attempt: str
    at: datetime
    step: int
    plan_version: int
    from_version: int
    outcome: str
    reason: str
    bytes_moved: int
    pause_s: float
    phases: dict[str, float]
    digests_equal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """A device; rank, host, pid and backend are None until its rank has introduced itself."""

    device: int
    node: int
    rank: int | None
    host: str | None
    pid: int | None
    backend: str | None


def steps(
    store: Store,
    run: int,
    *,
    since_step: int | None = None,
    until_step: int | None = None,
    max_points: int = 2000,
) -> list[StepView]:
    """Steps in order, thinned to at most `max_points`; the first and the last stay.

    Args:
        since_step, until_step: first and last step, both included.
        max_points: at least 5.
    """
    if max_points < 2 + ROWS_PER_BUCKET:
        raise InputError(f"max_points must be at least {2 + ROWS_PER_BUCKET}, given {max_points}")
    where = _range(StepRow.run == run, StepRow.step, since_step, until_step)
    with store.reading() as session:
        first, last, number = session.execute(
            select(func.min(StepRow.step), func.max(StepRow.step), func.count()).where(*where)
        ).one()
        query = select(StepRow).where(*where).order_by(StepRow.step)
        if number > max_points:
            chosen = _chosen(session, where, first, last, num_buckets=(max_points - 2) // ROWS_PER_BUCKET)
            query = select(StepRow).where(StepRow.run == run, StepRow.step.in_(chosen)).order_by(StepRow.step)
        return [_step_view(row) for row in session.scalars(query)]


def evaluations(
    store: Store,
    run: int,
    *,
    since_step: int | None = None,
    until_step: int | None = None,
    limit: int = 10_000,
) -> list[EvaluationView]:
    """Evaluations in step order, the last `limit` of them."""
    where = _range(EvaluationRow.run == run, EvaluationRow.step, since_step, until_step)
    query = select(EvaluationRow).where(*where).order_by(EvaluationRow.step.desc()).limit(limit)
    with store.reading() as session:
        return [
            EvaluationView(
                step=row.step,
                loss=row.loss,
                num_tokens=row.num_tokens,
                seconds=row.seconds,
                at=row.at,
                attempt=row.attempt,
            )
            for row in reversed(session.scalars(query).all())
        ]


def last_step(store: Store, run: int) -> StepView | None:
    """The last step that is recorded."""
    with store.reading() as session:
        row = session.scalar(select(StepRow).where(StepRow.run == run).order_by(StepRow.step.desc()).limit(1))
        return None if row is None else _step_view(row)


def samples(
    store: Store,
    run: int,
    *,
    devices: Sequence[int] | None = None,
    since_step: int | None = None,
    until_step: int | None = None,
    limit: int = 10_000,
    offset: int = 0,
) -> list[SampleView]:
    """Raw samples by step and device; those that were rolled up are in `sample_minutes`."""
    own = [SampleRow.run == run]
    if devices is not None:
        own.append(SampleRow.device.in_(devices))
    chosen = _range(and_(*own), SampleRow.step, since_step, until_step)
    if devices is not None and len(devices) == 1:
        # SQLite without statistics would walk the samples of all devices; the index alone knows the steps of this one.
        its_steps = select(SampleRow.step).where(*chosen).order_by(SampleRow.step).limit(limit).offset(offset)
        query = select(*_SAMPLE).where(*own, SampleRow.step.in_(its_steps.correlate(None)))
    else:
        query = select(*_SAMPLE).where(*chosen).limit(limit).offset(offset)
    query = query.order_by(SampleRow.step, SampleRow.device)
    with store.reading() as session:
        return [
            SampleView(step=step, device=device, rate=rate, compute_s=compute_s, phase=phase)
            for step, device, rate, compute_s, phase in session.execute(query)
        ]


def sample_minutes(
    store: Store,
    run: int,
    *,
    devices: Sequence[int] | None = None,
    since_at: datetime | None = None,
    until_at: datetime | None = None,
    limit: int = 10_000,
    offset: int = 0,
) -> list[MinuteView]:
    """Samples that were rolled up, by minute and device."""
    query = select(SampleMinuteRow).where(SampleMinuteRow.run == run)
    if devices is not None:
        query = query.where(SampleMinuteRow.device.in_(devices))
    if since_at is not None:
        query = query.where(SampleMinuteRow.minute_at >= since_at)
    if until_at is not None:
        query = query.where(SampleMinuteRow.minute_at <= until_at)
    query = query.order_by(SampleMinuteRow.minute_at, SampleMinuteRow.device).limit(limit).offset(offset)
    with store.reading() as session:
        return [
            MinuteView(
                device=row.device,
                minute_at=row.minute_at,
                first_step=row.first_step,
                last_step=row.last_step,
                num_samples=row.num_samples,
                num_unknown=row.num_unknown,
                rate_min=row.rate_min,
                rate_median=row.rate_median,
                rate_max=row.rate_max,
            )
            for row in session.scalars(query)
        ]


def latest_rates(store: Store, run: int) -> dict[int, RateView]:
    """Every device's rate in the last recorded step, by device; empty before the first."""
    newest = select(func.max(SampleRow.step)).where(SampleRow.run == run).scalar_subquery()
    query = (
        select(SampleRow, StepRow.at)
        .join(StepRow, (StepRow.run == SampleRow.run) & (StepRow.step == SampleRow.step))
        .where(SampleRow.run == run, SampleRow.step == newest)
        .order_by(SampleRow.device)
    )
    with store.reading() as session:
        return {
            row.device: RateView(device=row.device, rate=row.rate, step=row.step, at=at, phase=row.phase)
            for row, at in session.execute(query)
        }


def rate_window(store: Store, run: int, num_steps: int, *, only_train: bool = False) -> RateWindow:
    """The rates of the last `num_steps` steps, oldest first.

    Args:
        only_train: of steps of phase `train` only.
    """
    query = select(StepRow.step, StepRow.phase).where(StepRow.run == run)
    if only_train:
        query = query.where(StepRow.phase == "train")
    with store.reading() as session:
        chosen = session.execute(query.order_by(StepRow.step.desc()).limit(num_steps)).all()[::-1]
        if not chosen:
            return RateWindow(steps=(), phases=(), rates={})
        found = session.execute(
            select(SampleRow.step, SampleRow.device, SampleRow.rate).where(
                SampleRow.run == run, SampleRow.step >= chosen[0].step, SampleRow.step <= chosen[-1].step
            )
        ).all()
        known = session.scalars(select(DeviceRow.device).where(DeviceRow.run == run).order_by(DeviceRow.device)).all()
    rates = {(step, device): rate for step, device, rate in found}
    return RateWindow(
        steps=tuple(row.step for row in chosen),
        phases=tuple(row.phase for row in chosen),
        rates={device: tuple(rates.get((row.step, device), math.nan) for row in chosen) for device in known},
    )


def switches(
    store: Store, run: int, *, versions: Collection[int] | None = None, limit: int = 1000, offset: int = 0
) -> list[SwitchView]:
    """Switches of a run (or those to these plans), oldest first, rejected ones too."""
    where = [SwitchRow.run == run]
    if versions is not None:
        where.append(SwitchRow.plan_version.in_(versions))
    query = select(SwitchRow).where(*where).order_by(SwitchRow.id).limit(limit).offset(offset)
    query = query.options(defer(SwitchRow.digests_before), defer(SwitchRow.digests_after))
    with store.reading() as session:
        return [_switch_view(row) for row in session.scalars(query)]


def steps_of_plan(store: Store, run: int, plan_version: int) -> tuple[int, int, int] | None:
    """First and last step that ran under a plan, and their number; None if none did."""
    query = select(func.min(StepRow.step), func.max(StepRow.step), func.count()).where(
        StepRow.run == run, StepRow.plan_version == plan_version
    )
    with store.reading() as session:
        first, last, number = session.execute(query).one()
    return None if number == 0 else (first, last, number)


def switch_digests(store: Store, run: int, id: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The digests of a switch, before and after: `{parameter: {tensor: hex}}`."""
    query = select(SwitchRow.digests_before, SwitchRow.digests_after).where(SwitchRow.run == run, SwitchRow.id == id)
    with store.reading() as session:
        found = session.execute(query).one_or_none()
    if found is None:
        raise InputError(f"run {run} has no switch {id}")
    return found.digests_before, found.digests_after


def newest_switches(store: Store, run: int, *, after_id: int = 0, limit: int = 1000) -> list[SwitchView]:
    """The last `limit` switches of a run with a larger id than `after_id`, oldest first, rejected ones too."""
    query = (
        select(SwitchRow)
        .where(SwitchRow.run == run, SwitchRow.id > after_id)
        .order_by(SwitchRow.id.desc())
        .limit(limit)
        .options(defer(SwitchRow.digests_before), defer(SwitchRow.digests_after))
    )
    with store.reading() as session:
        return [_switch_view(row) for row in reversed(session.scalars(query).all())]


def devices(store: Store, run: int) -> list[DeviceView]:
    """The devices of a run, by id."""
    query = select(DeviceRow).where(DeviceRow.run == run).order_by(DeviceRow.device)
    with store.reading() as session:
        return [
            DeviceView(device=row.device, node=row.node, rank=row.rank, host=row.host, pid=row.pid, backend=row.backend)
            for row in session.scalars(query)
        ]


def median_step_s(
    store: Store,
    run: int,
    *,
    plan_version: int | None = None,
    since_step: int | None = None,
    until_step: int | None = None,
) -> float | None:
    """Median seconds of the steps of phase `train` that were measured; None if there are none."""
    where = _range(StepRow.run == run, StepRow.step, since_step, until_step)
    where += [StepRow.phase == "train", StepRow.step_s < math.inf]  # NaN sorts above infinity
    if plan_version is not None:
        where.append(StepRow.plan_version == plan_version)
    with store.reading() as session:
        number = session.scalar(select(func.count()).select_from(StepRow).where(*where)) or 0
        if number == 0:
            return None
        middle = session.scalars(
            select(StepRow.step_s)
            .where(*where)
            .order_by(StepRow.step_s)
            .offset((number - 1) // 2)
            .limit(2 - number % 2)
        ).all()
        return sum(middle) / len(middle)


def _range(
    run: ColumnElement[bool], step: Any, since_step: int | None, until_step: int | None
) -> list[ColumnElement[bool]]:
    where = [run]
    if since_step is not None:
        where.append(step >= since_step)
    if until_step is not None:
        where.append(step <= until_step)
    return where


def _chosen(
    session: Session, where: Sequence[ColumnElement[bool]], first: int, last: int, *, num_buckets: int
) -> list[int]:
    """The steps that survive thinning: ends, and fastest, slowest and highest loss of each bucket."""
    width = (last - first) // num_buckets + 1
    bucket = (StepRow.step - first) // width
    ranked = (
        select(
            StepRow.step,
            _rank(bucket, StepRow.step_s.asc()).label("fastest"),
            _rank(bucket, StepRow.step_s.desc()).label("slowest"),
            _rank(bucket, StepRow.loss.desc()).label("highest"),
        )
        .where(*where)
        .subquery()
    )
    query: Select[tuple[int]] = select(ranked.c.step).where(
        or_(ranked.c.fastest == 1, ranked.c.slowest == 1, ranked.c.highest == 1)
    )
    return sorted({first, last, *session.scalars(query)})


def _rank(bucket: ColumnElement[Any], order: ColumnElement[Any]) -> ColumnElement[int]:
    return func.row_number().over(partition_by=bucket, order_by=(order, StepRow.step))


def _step_view(row: StepRow) -> StepView:
    return StepView(
        step=row.step,
        attempt=row.attempt,
        at=row.at,
        phase=row.phase,
        plan_version=row.plan_version,
        desired_version=row.desired_version,
        step_s=row.step_s,
        loss=row.loss,
        num_tokens=row.num_tokens,
        samples=(row.first_sample, row.stop_sample),
        grad_norm=_known(row.grad_norm),
        learning_rate=_known(row.learning_rate),
        mfu=_known(row.mfu),
    )


def _known(value: float | None) -> float:
    return math.nan if value is None or math.isnan(value) else value  # one NaN, so that views compare


def _switch_view(row: SwitchRow) -> SwitchView:
    return SwitchView(
        id=row.id,
        attempt=row.attempt,
        at=row.at,
        step=row.step,
        plan_version=row.plan_version,
        from_version=row.from_version,
        outcome=row.outcome,
        reason=row.reason,
        bytes_moved=row.bytes_moved,
        pause_s=row.pause_s,
        phases=row.phases,
        digests_equal=row.digests_equal,
    )
