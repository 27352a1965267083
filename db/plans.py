"""Plan versions: requested, solved by one worker, decided, switched to, superseded.

A plan is asked for (`request`) or brought ready-made (`add`); a worker claims it, at most one,
whatever the queue delivers twice; `solved` stores the answer; `move` follows the controller's and
people's decisions. The document is kept as JSON and not interpreted here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session, defer

from db import audit, plan_job, runs, transitions
from db.columns import fits
from db.errors import InputError, TransitionError
from db.messages import utc_now
from db.models import PlanRow, RunRow
from db.plan_job import PlanJob
from db.store import Store

PORTION = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """One version of a run's plan.

    Args:
        trigger: what asked for it (`initial`, `shift`, `command`, `rollback`, ...).
        rates: `{device: x}` that it was planned for.
        document: the plan (schema 1); None until solved, or if there is none.
        predicted_s, current_s, measured_s: step seconds: predicted, predicted of staying with the
            plan that was active, and measured once it ran.
        bound_s, gap: capacity bound in step seconds; relative distance to the solver's own bound.
        reason: why it has its status.
        decided_reason: why whoever decided (`decided_by`) decided so; later statuses leave it.
        details: log, runner-ups and whatever else the planner reports.
    """

    run: int
    version: int
    key: str
    trigger: str
    status: str
    rates: dict[int, float]
    document: dict[str, Any] | None
    predicted_s: float | None
    current_s: float | None
    measured_s: float | None
    bound_s: float | None
    gap: float | None
    solve_s: float | None
    solver: str
    seed: int
    parent: int | None
    requested_by: str
    decided_by: str
    worker: str
    reason: str
    details: dict[str, Any]
    created_at: datetime
    claimed_at: datetime | None
    solved_at: datetime | None
    decided_at: datetime | None
    active_at: datetime | None
    decided_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which plans of a run, and in which order.

    Args:
        statuses, triggers: those wanted; empty for all.
        sort: one of `SORTS`. Plans without the value come last in either direction.
    """

    statuses: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()
    sort: str = "version"
    is_descending: bool = True

    def __post_init__(self) -> None:
        if self.sort not in SORTS:
            raise InputError(f"plans are sorted by one of {', '.join(SORTS)}, given {self.sort!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRun:
    """How a plan that ran compares with its prediction; seconds of a step, None where unknown."""

    version: int
    active_at: datetime
    predicted_s: float | None
    measured_s: float | None
    bound_s: float | None


SORTS = ("version", "status", "trigger", "predicted_s", "measured_s", "bound_s", "gap", "solve_s")


def request(
    store: Store,
    run: int,
    *,
    trigger: str,
    rates: Mapping[int, float],
    parent: int | None,
    requested_by: str,
    key: str,
    seed: int = 0,
) -> PlanView:
    """Asks for a plan: the next version, queued. The same key twice gives the same row.

    Raises:
        InputError: unknown run.
    """
    values = {"status": "queued", "trigger": trigger, "parent": parent, "requested_by": requested_by, "seed": seed}
    return _create(store, run, key=key, rates=rates, values=values)


def add(
    store: Store,
    run: int,
    *,
    document: Mapping[str, Any],
    trigger: str,
    rates: Mapping[int, float],
    parent: int | None,
    requested_by: str,
    key: str,
    status: str = "ready",
    predicted_s: float | None = None,
    current_s: float | None = None,
    reason: str = "",
    details: Mapping[str, Any] | None = None,
    decided_reason: str = "",
) -> PlanView:
    """Adds a plan that needs no solving (a rollback, a person's proposal). Same key, same row.

    Args:
        status: `ready` to be decided, or `approved`.
        details: whatever else there is to say about it, such as the what-if that it came of.
        decided_reason: of an approved one: why `requested_by` wants it.

    Raises:
        InputError: unknown run, or another status.
    """
    if status not in ("ready", "approved"):
        raise InputError(f"a ready-made plan starts as ready or approved, given {status!r}")
    now = utc_now()
    values: dict[str, Any] = {
        "status": status,
        "document": dict(document),
        "trigger": trigger,
        "parent": parent,
        "requested_by": requested_by,
        "predicted_s": predicted_s,
        "current_s": current_s,
        "reason": reason,
        "details": dict(details or {}),
        "solved_at": now,
    }
    if status == "approved":
        values |= {"decided_by": requested_by, "decided_at": now, "decided_reason": decided_reason}
    return _create(store, run, key=key, rates=rates, values=values)


def claim(store: Store, run: int, version: int, *, worker: str) -> PlanJob | None:
    """Takes a queued plan to solve it; atomic.

    Returns:
        The job, or None: somebody else has it, it is decided already, or the run has no profile
        (the plan has then failed, with the reason).
    """
    with store.session() as session:
        run_row = runs.locked(session, run)
        row = found(session, run, version)
        if row.status != "queued":
            return None
        if run_row.profile is None:
            _move(session, run_row, row, "failed", actor=worker, reason="the run has no calibrated profile yet")
            return None
        _move(session, run_row, row, "solving", actor=worker, reason="")
        row.worker = worker
        row.claimed_at = utc_now()
        base = run_row.active_plan_version or row.parent
        current = None if base is None else session.get(PlanRow, (run, base))
        claimed = plan_job.build(run_row, row, current)
        row.job = claimed.to_json()
        return claimed


def job(store: Store, run: int, version: int) -> PlanJob | None:
    """The job that was solved for this version, for an exact replay; None if it was never claimed."""
    with store.reading() as session:
        document = found(session, run, version).job
        return None if document is None else PlanJob.from_json(document)


def solved(
    store: Store,
    run: int,
    version: int,
    *,
    document: Mapping[str, Any] | None,
    status: str,
    reason: str,
    predicted_s: float | None,
    current_s: float | None,
    bound_s: float | None,
    gap: float | None,
    solve_s: float | None,
    solver: str,
    details: Mapping[str, Any],
) -> PlanView:
    """Stores a worker's answer. A plan that is no longer `solving` (decided meanwhile, or answered already) stays.

    Args:
        status: `ready` (with a document), `rejected` (nothing better) or `failed`.

    Raises:
        InputError: unknown plan, another status, or `ready` without a document.
    """
    if status not in ("ready", "rejected", "failed"):
        raise InputError(f"a solved plan is ready, rejected or failed, given {status!r}")
    if status == "ready" and document is None:
        raise InputError("a ready plan needs a document, given none")
    with store.session() as session:
        run_row = runs.locked(session, run)
        row = found(session, run, version)
        if row.status != "solving":
            return _view(row)
        row.document = None if document is None else dict(document)
        row.predicted_s = predicted_s
        row.current_s = current_s
        row.bound_s = bound_s
        row.gap = gap
        row.solve_s = solve_s
        row.solver = solver
        row.details = dict(details)
        row.solved_at = utc_now()
        _move(session, run_row, row, status, actor=row.worker, reason=reason)
        return _view(row)


def move(
    store: Store,
    run: int,
    version: int,
    status: str,
    *,
    actor: str = "controller",
    reason: str = "",
    decided_reason: str | None = None,
) -> PlanView:
    """Moves a plan to a status; nothing happens when it has that status already.

    `active` supersedes the plan that was active and becomes the run's `active_plan_version`. `approved` and
    `rejected` are decisions of the actor, unless the engine refuses a plan that was decided before.

    Args:
        reason: why it has the status.
        decided_reason: of a decision: why the actor decides so; `reason` by default.

    Raises:
        InputError: unknown plan.
        TransitionError: the plan's status does not allow it.
    """
    with store.session() as session:
        run_row = runs.locked(session, run)
        row = found(session, run, version)
        if row.status != status:
            _move(session, run_row, row, status, actor=actor, reason=reason, decided_reason=decided_reason)
        return _view(row)


def set_measured(store: Store, run: int, version: int, seconds: float) -> None:
    """Keeps the measured step seconds of a plan."""
    with store.session() as session:
        runs.locked(session, run)
        found(session, run, version).measured_s = seconds


def statuses(store: Store, run: int, *, limit: int) -> dict[int, str]:
    """The status of the newest plans by version, newest first: cheap, since no document is read."""
    query = select(PlanRow.version, PlanRow.status).where(PlanRow.run == run).order_by(PlanRow.version.desc())
    with store.reading() as session:
        return {row.version: row.status for row in session.execute(query.limit(limit))}


def get(store: Store, run: int, version: int) -> PlanView:
    """One plan.

    Raises:
        InputError: unknown run or version; names those that there are.
    """
    with store.reading() as session:
        return _view(found(session, run, version))


def all_plans(
    store: Store, run: int, *, limit: int = 100, offset: int = 0, selection: Selection | None = None
) -> list[PlanView]:
    """Plans of a run, newest first unless the selection says otherwise."""
    chosen = selection or Selection()
    column = getattr(PlanRow, chosen.sort)
    order = [column.desc() if chosen.is_descending else column.asc()]
    if chosen.sort != "version":
        order = [column.is_(None), *order, PlanRow.version.desc()]
    query = select(PlanRow.version).where(*_chosen(run, chosen)).order_by(*order).limit(limit).offset(offset)
    with store.reading() as session:
        versions = list(session.scalars(query))
        found = _by_version(session, run, versions)
        return [found[version] for version in versions]


def of_versions(store: Store, run: int, versions: Collection[int]) -> dict[int, PlanView]:
    """The plans of these versions, by version; unknown ones are left out."""
    with store.reading() as session:
        return _by_version(session, run, sorted({version for version in versions if fits(version)}))


def count(store: Store, run: int, selection: Selection | None = None) -> int:
    """How many plans a run has, or how many of them are selected."""
    query = select(func.count()).select_from(PlanRow).where(*_chosen(run, selection or Selection()))
    with store.reading() as session:
        return session.scalar(query) or 0


def triggers(store: Store, run: int) -> list[str]:
    """What asked for plans of this run, each once, sorted."""
    query = select(PlanRow.trigger).where(PlanRow.run == run).distinct().order_by(PlanRow.trigger)
    with store.reading() as session:
        return list(session.scalars(query))


def all_that_ran(store: Store, run: int, *, limit: int = 10_000) -> list[PlanRun]:
    """The last plans that were ever active, oldest first."""
    columns = (PlanRow.version, PlanRow.active_at, PlanRow.predicted_s, PlanRow.measured_s, PlanRow.bound_s)
    query = select(*columns).where(PlanRow.run == run, PlanRow.active_at.is_not(None))
    with store.reading() as session:
        rows = session.execute(query.order_by(PlanRow.version.desc()).limit(limit)).all()
    return [PlanRun(**row._asdict()) for row in reversed(rows)]


def found(session: Session, run: int, version: int) -> PlanRow:
    """The plan's row, or `InputError`. For `db/` only."""
    runs.found(session, run)
    row = session.get(PlanRow, (run, version)) if fits(version) else None
    if row is None:
        known = list(
            session.scalars(
                select(PlanRow.version).where(PlanRow.run == run).order_by(PlanRow.version.desc()).limit(10)
            )
        )
        names = ", ".join(str(entry) for entry in reversed(known))
        raise InputError(f"run {run} has no plan {version}, known versions: {names}")
    return row


def _chosen(run: int, selection: Selection) -> list[ColumnElement[bool]]:
    where: list[ColumnElement[bool]] = [PlanRow.run == run]
    if selection.statuses:
        where.append(PlanRow.status.in_(selection.statuses))
    if selection.triggers:
        where.append(PlanRow.trigger.in_(selection.triggers))
    return where


def _by_version(session: Session, run: int, versions: Sequence[int]) -> dict[int, PlanView]:
    """In portions: a statement takes a limited number of values."""
    found: dict[int, PlanView] = {}
    for first in range(0, len(versions), PORTION):
        portion = versions[first : first + PORTION]
        query = select(PlanRow).where(PlanRow.run == run, PlanRow.version.in_(portion)).options(defer(PlanRow.job))
        found |= {row.version: _view(row) for row in session.scalars(query)}
    return found


def _create(store: Store, run: int, *, key: str, rates: Mapping[int, float], values: Mapping[str, Any]) -> PlanView:
    with store.session() as session:
        runs.locked(session, run)
        known = session.scalar(select(PlanRow).where(PlanRow.run == run, PlanRow.key == key))
        if known is not None:
            return _view(known)
        latest = session.scalar(select(func.max(PlanRow.version)).where(PlanRow.run == run)) or 0
        row = PlanRow(
            run=run,
            version=latest + 1,
            key=key,
            rates=plan_job.rates_to_json(rates),
            created_at=utc_now(),
            solver=values.get("solver", ""),
            **{"seed": 0, "decided_by": "", "decided_reason": "", "worker": "", "reason": "", "details": {}, **values},
        )
        session.add(row)
        session.flush()
        audit.add(
            session,
            actor=row.requested_by,
            action="plan.create",
            run=run,
            target=f"plan {row.version}",
            result=row.status,
            detail={
                "trigger": row.trigger,
                "key": key,
                "rates": row.rates,
                "parent": row.parent,
                "reason": row.decided_reason or row.reason,
            },
        )
        return _view(row)


def _move(
    session: Session,
    run_row: RunRow,
    row: PlanRow,
    status: str,
    *,
    actor: str,
    reason: str,
    decided_reason: str | None = None,
) -> None:
    former = row.status
    if status in ("ready", "approved", "active") and row.document is None:
        raise TransitionError(f"plan {row.version} of run {row.run} has no document, so it cannot become {status}")
    transitions.move_plan(row, status)
    now = utc_now()
    if reason:
        row.reason = reason
    if status == "approved" or (status == "rejected" and former != "switching"):
        row.decided_by = actor
        row.decided_at = now
        row.decided_reason = reason if decided_reason is None else decided_reason
    if status == "active":
        _supersede(session, run_row, row, actor=actor)
        row.active_at = now
        run_row.active_plan_version = row.version
    audit.add(
        session,
        actor=actor,
        action="plan.status",
        run=row.run,
        target=f"plan {row.version}",
        result=status,
        detail={"from": former, "reason": reason} | ({"decided_reason": decided_reason} if decided_reason else {}),
    )


def _supersede(session: Session, run_row: RunRow, successor: PlanRow, *, actor: str) -> None:
    query = select(PlanRow).where(
        PlanRow.run == run_row.id, PlanRow.status == "active", PlanRow.version != successor.version
    )
    for row in session.scalars(query).all():
        _move(session, run_row, row, "superseded", actor=actor, reason=f"plan {successor.version} is active")


def _view(row: PlanRow) -> PlanView:
    return PlanView(
        run=row.run,
        version=row.version,
        key=row.key,
        trigger=row.trigger,
        status=row.status,
        rates=plan_job.rates_from_json(row.rates),
        document=row.document,
        predicted_s=row.predicted_s,
        current_s=row.current_s,
        measured_s=row.measured_s,
        bound_s=row.bound_s,
        gap=row.gap,
        solve_s=row.solve_s,
        solver=row.solver,
        seed=row.seed,
        parent=row.parent,
        requested_by=row.requested_by,
        decided_by=row.decided_by,
        worker=row.worker,
        reason=row.reason,
        details=row.details,
        created_at=row.created_at,
        claimed_at=row.claimed_at,
        solved_at=row.solved_at,
        decided_at=row.decided_at,
        active_at=row.active_at,
        decided_reason=row.decided_reason,
    )
