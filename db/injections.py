"""Injections: stragglers that were asked for. At most one is open on a device.

An injection is `requested` when the controller adds it, `active` once the engine reports a desired
version that carries it, and `cleared` by a person, by a newer one on the same device, or by time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db import audit, runs, transitions
from db.messages import utc_now
from db.models import InjectionRow, RunRow
from db.schedule import HEALTHY, Entry
from db.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionView:
    """One injection.

    Args:
        rate: times slower than healthy.
        command: id of the command that asked for it, if one did.
        desired_version: first version of the desired document that carries it.
    """

    id: int
    run: int
    device: int
    rate: float
    status: str
    command: int | None
    desired_version: int
    requested_at: datetime
    until_at: datetime | None
    applied_at: datetime | None
    applied_step: int | None
    cleared_at: datetime | None


def add(
    store: Store,
    run: int,
    device: int,
    rate: float,
    until_at: datetime | None = None,
    command: int | None = None,
) -> InjectionView:
    """Asks for a straggler, instead of the one that is open on the device.

    The next `runs.change` carries it; that version is its `desired_version`.

    Args:
        until_at: when to clear it; None: never.
    """
    with store.session() as session:
        return _view(_add(session, runs.locked(session, run), device, rate, until_at, command))


def play(
    store: Store, run: int, entries: Sequence[tuple[Entry, datetime | None]], *, command: int, now: datetime
) -> int:
    """Asks for the next entries of a schedule, each with the time when it is to be cleared, and for one new
    desired version that carries them, in one transaction: `num_played` grows by their number or not at all.

    An entry whose time is over already, and one that says that a device is healthy, is cleared at once.

    Returns:
        The new `desired_version`.
    """
    with store.session() as session:
        row = runs.locked(session, run)
        for entry, until_at in entries:
            injection = _add(session, row, entry.device, entry.rate, until_at, command)
            if until_at is not None and until_at <= now:
                _clear(session, injection, reason="its time was over when the controller came to it")
            elif entry.rate == HEALTHY:
                _clear(session, injection, reason="healthy again")
            session.flush()
        row.desired_version += 1
        return row.desired_version


def num_played(store: Store, run: int, command: int) -> int:
    """How many injections a command has led to."""
    query = select(func.count()).where(InjectionRow.run == run, InjectionRow.command == command)
    with store.reading() as session:
        return session.scalar(query) or 0


def of_command(store: Store, run: int, command: int) -> list[InjectionView]:
    """The injections that a command has led to, oldest first."""
    query = select(InjectionRow).where(InjectionRow.run == run, InjectionRow.command == command)
    with store.reading() as session:
        return [_view(row) for row in session.scalars(query.order_by(InjectionRow.id))]


def open_injections(store: Store, run: int) -> list[InjectionView]:
    """The injections that are requested or active, by device."""
    with store.reading() as session:
        return [_view(row) for row in _open(session, run, None)]


def all_injections(store: Store, run: int, *, limit: int = 100, offset: int = 0) -> list[InjectionView]:
    """Injections of a run, cleared ones too, newest first."""
    query = select(InjectionRow).where(InjectionRow.run == run).order_by(InjectionRow.id.desc())
    with store.reading() as session:
        return [_view(row) for row in session.scalars(query.limit(limit).offset(offset))]


def clear(store: Store, run: int, devices: Sequence[int] | None = None) -> list[InjectionView]:
    """Clears the open injections on these devices (None: on all), and returns them."""
    with store.session() as session:
        runs.locked(session, run)
        rows = _open(session, run, devices)
        for row in rows:
            _clear(session, row, reason="cleared")
        return [_view(row) for row in rows]


def expired(store: Store, now: datetime) -> list[InjectionView]:
    """The open injections of runs that have not ended, whose time is over."""
    query = (
        select(InjectionRow)
        .join(RunRow, RunRow.id == InjectionRow.run)
        .where(InjectionRow.status != "cleared", InjectionRow.until_at <= now)
        .where(RunRow.status.in_(transitions.open_statuses(transitions.RUN)))
        .order_by(InjectionRow.id)
    )
    with store.reading() as session:
        return [_view(row) for row in session.scalars(query)]


def observed(store: Store, run: int, desired_version: int, step: int, at: datetime) -> list[InjectionView]:
    """The engine runs this version: the requested injections that it carries are active.

    Returns:
        The injections that became active.
    """
    query = select(InjectionRow).where(
        InjectionRow.run == run, InjectionRow.status == "requested", InjectionRow.desired_version <= desired_version
    )
    with store.reading() as session:
        if session.scalar(query.limit(1)) is None:
            return []
    with store.session() as session:
        runs.locked(session, run)
        rows = session.scalars(query.order_by(InjectionRow.device)).all()
        for row in rows:
            transitions.move_injection(row, "active")
            row.applied_at = at
            row.applied_step = step
            _audit(session, row, reason="", actor="engine")
        return [_view(row) for row in rows]


def _add(
    session: Session, row: RunRow, device: int, rate: float, until_at: datetime | None, command: int | None
) -> InjectionRow:
    for former in _open(session, row.id, [device]):
        _clear(session, former, reason="replaced")
    session.flush()
    injection = InjectionRow(
        run=row.id,
        device=device,
        rate=rate,
        status="requested",
        command=command,
        desired_version=row.desired_version + 1,
        requested_at=utc_now(),
        until_at=until_at,
    )
    session.add(injection)
    session.flush()
    _audit(session, injection, reason="")
    return injection


def _open(session: Session, run: int, devices: Sequence[int] | None) -> list[InjectionRow]:
    query = select(InjectionRow).where(InjectionRow.run == run, InjectionRow.status != "cleared")
    if devices is not None:
        query = query.where(InjectionRow.device.in_(devices))
    return list(session.scalars(query.order_by(InjectionRow.device)))


def _clear(session: Session, row: InjectionRow, *, reason: str) -> None:
    transitions.move_injection(row, "cleared")
    row.cleared_at = utc_now()
    _audit(session, row, reason=reason)


def _audit(session: Session, row: InjectionRow, *, reason: str, actor: str = "controller") -> None:
    audit.add(
        session,
        actor=actor,
        action="injection.status",
        run=row.run,
        target=f"device {row.device}",
        result=row.status,
        detail={"injection": row.id, "rate": row.rate, "reason": reason},
    )


def _view(row: InjectionRow) -> InjectionView:
    return InjectionView(
        id=row.id,
        run=row.run,
        device=row.device,
        rate=row.rate,
        status=row.status,
        command=row.command,
        desired_version=row.desired_version,
        requested_at=row.requested_at,
        until_at=row.until_at,
        applied_at=row.applied_at,
        applied_step=row.applied_step,
        cleared_at=row.cleared_at,
    )
