"""The audit log: who did what to which run, and what came of it. Entries are only ever added.

Other modules of `db/` add their entry inside the transaction that does the thing, so that neither
exists without the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from db.messages import utc_now
from db.models import AuditRow
from db.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditView:
    """One entry. `target` names the thing within the run, such as `plan 3` or `device 5`."""

    id: int
    at: datetime
    run: int | None
    actor: str
    source: str
    action: str
    target: str
    result: str
    detail: dict[str, Any]


def record(
    store: Store,
    *,
    actor: str,
    action: str,
    run: int | None = None,
    target: str = "",
    detail: Mapping[str, Any] | None = None,
    result: str = "",
    source: str = "",
) -> None:
    """Adds one entry.

    Args:
        actor: who (`controller`, `engine`, a person's name).
        source: through what (`cli`, `dashboard`, ...).
    """
    with store.session() as session:
        add(session, actor=actor, action=action, run=run, target=target, detail=detail, result=result, source=source)


def entries(store: Store, run: int | None = None, limit: int = 100, offset: int = 0) -> list[AuditView]:
    """Entries of one run, or of all, newest first."""
    query = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit).offset(offset)
    if run is not None:
        query = query.where(AuditRow.run == run)
    with store.reading() as session:
        return [_view(row) for row in session.scalars(query)]


def of_target(store: Store, run: int, target: str, *, limit: int = 50) -> list[AuditView]:
    """Entries of one thing of a run (`plan 3`), oldest first; the last ones if there are more."""
    query = select(AuditRow).where(AuditRow.run == run, AuditRow.target == target)
    with store.reading() as session:
        return [_view(row) for row in reversed(session.scalars(query.order_by(AuditRow.id.desc()).limit(limit)).all())]


def add(
    session: Session,
    *,
    actor: str,
    action: str,
    run: int | None = None,
    target: str = "",
    detail: Mapping[str, Any] | None = None,
    result: str = "",
    source: str = "",
) -> None:
    """Adds one entry inside a transaction. For `db/` only."""
    session.add(
        AuditRow(
            at=utc_now(),
            run=run,
            actor=actor,
            source=source,
            action=action,
            target=target,
            result=result,
            detail=dict(detail or {}),
        )
    )


def _view(row: AuditRow) -> AuditView:
    return AuditView(
        id=row.id,
        at=row.at,
        run=row.run,
        actor=row.actor,
        source=row.source,
        action=row.action,
        target=row.target,
        result=row.result,
        detail=row.detail,
    )
