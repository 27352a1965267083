"""The audit log: who did what to which run, and what came of it. Entries are only ever added.

Other modules of `db/` add their entry inside the transaction that does the thing, so that neither
exists without the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, String, case, cast, func, or_, select
from sqlalchemy.orm import Session

from db.messages import utc_now
from db.models import AuditRow
from db.store import Store

SERVICES = ("controller", "engine", "worker", "launcher")
"""Actors that are programs; their entries need not say through what."""

SORTS = ("at", "run", "actor", "source", "action", "target", "result")
MAX_CHOICES = 50


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

    @property
    def via(self) -> str:
        """Through what it was done: the source, or the program that acted; empty if that was not said."""
        if self.source:
            return self.source
        service = self.actor.partition("@")[0]
        return service if service in SERVICES else ""

    @property
    def reason(self) -> str:
        """Why, in the words of who did it; empty if there are none."""
        return str(self.detail.get("reason") or self.detail.get("result") or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which entries are wanted; what is None or empty does not matter.

    Args:
        source: as `AuditView.via`.
        text: found in actor, action, target, result or detail, whatever its case.
        since, until: instants, the first included, the last not.
    """

    run: int | None = None
    actor: str = ""
    source: str = ""
    action: str = ""
    result: str = ""
    text: str = ""
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Values that occur, each list the most frequent `MAX_CHOICES` at most, in alphabetical order."""

    runs: tuple[int, ...]
    actors: tuple[str, ...]
    sources: tuple[str, ...]
    actions: tuple[str, ...]
    results: tuple[str, ...]


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


def find(
    store: Store,
    wanted: Filter,
    *,
    sort: str = "at",
    is_descending: bool = True,
    limit: int = 100,
    offset: int = 0,
) -> list[AuditView]:
    """Entries that match, sorted; equal ones newest first.

    Args:
        sort: one of `SORTS`; another one counts as `at`.
    """
    own: dict[str, Any] = {"at": AuditRow.id, "source": _VIA}
    column = own[sort] if sort in own else getattr(AuditRow, sort) if sort in SORTS else AuditRow.id
    order = column.desc() if is_descending else column.asc()
    query = _matching(select(AuditRow), wanted).order_by(order, AuditRow.id.desc()).limit(limit).offset(offset)
    with store.reading() as session:
        return [_view(row) for row in session.scalars(query)]


def count(store: Store, wanted: Filter) -> int:
    """How many entries match."""
    with store.reading() as session:
        return session.scalar(_matching(select(func.count()).select_from(AuditRow), wanted)) or 0


def choices(store: Store) -> Choices:
    """What the entries can be filtered by."""
    with store.reading() as session:

        def values(column: Any) -> tuple[Any, ...]:
            query = select(column).where(column.is_not(None)).group_by(column)
            query = query.order_by(func.count().desc(), column).limit(MAX_CHOICES)
            return tuple(sorted(value for value in session.scalars(query) if value != ""))

        return Choices(
            runs=values(AuditRow.run),
            actors=values(AuditRow.actor),
            sources=values(_VIA),
            actions=values(AuditRow.action),
            results=values(AuditRow.result),
        )


def last(store: Store, run: int, action: str) -> AuditView | None:
    """The newest entry of a run with this action."""
    found = find(store, Filter(run=run, action=action), limit=1)
    return found[0] if found else None


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


_VIA: ColumnElement[str] = case(
    (AuditRow.source != "", AuditRow.source),
    *((or_(AuditRow.actor == name, AuditRow.actor.startswith(f"{name}@")), name) for name in SERVICES),
    else_="",
)


def _matching(query: Select[Any], wanted: Filter) -> Select[Any]:
    equals = (
        (AuditRow.run, wanted.run),
        (AuditRow.actor, wanted.actor),
        (_VIA, wanted.source),
        (AuditRow.action, wanted.action),
        (AuditRow.result, wanted.result),
    )
    for column, value in equals:
        if value not in (None, ""):
            query = query.where(column == value)
    if wanted.text:
        places = (AuditRow.actor, AuditRow.action, AuditRow.target, AuditRow.result, cast(AuditRow.detail, String))
        query = query.where(or_(*(place.icontains(wanted.text, autoescape=True) for place in places)))
    if wanted.since is not None:
        query = query.where(AuditRow.at >= wanted.since)
    if wanted.until is not None:
        query = query.where(AuditRow.at < wanted.until)
    return query


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
