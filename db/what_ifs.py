"""What-ifs: planning questions of people, asked on the dashboard, sent on by the controller, answered by a worker.

    submit > queued > (controller sends a task) > claim > solving > answered: done, or failed
                                                  cancel, at any moment before that: cancelled

Nothing here touches a run. A proposal that comes of an answer is a command of its own (`propose`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db import audit, runs, transitions
from db.columns import fits
from db.errors import InputError
from db.messages import utc_now
from db.models import WhatIfRow
from db.store import Store, insert
from db.what_if_request import WhatIfRequest

MAX_KEY_LENGTH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfView:
    """A what-if and what came of it.

    Args:
        run: the run that it started from, if any.
        result: what the planner found (`SolveResult` as JSON), once done.
        seconds: that the search took.
        error: why it failed or who cancelled it.
    """

    id: int
    run: int | None
    actor: str
    source: str
    request: WhatIfRequest
    status: str
    result: dict[str, Any] | None
    seconds: float | None
    error: str
    worker: str
    created_at: datetime
    claimed_at: datetime | None
    done_at: datetime | None

    @property
    def is_open(self) -> bool:
        return self.status in OPEN


OPEN = transitions.open_statuses(transitions.WHAT_IF)


def submit(
    store: Store, request: Mapping[str, Any], *, run: int | None, actor: str, source: str, key: str
) -> WhatIfView:
    """Checks a question's form and writes it down as queued.

    Args:
        request: see `WhatIfRequest`.
        key: idempotency key; the same key twice gives the same what-if.

    Raises:
        InputError: malformed request or key, or an unknown run. Nothing is written then.
    """
    if not 0 < len(key) <= MAX_KEY_LENGTH:
        raise InputError(f"key must have 1 to {MAX_KEY_LENGTH} characters, given {len(key)}")
    try:
        checked = WhatIfRequest.model_validate(request)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "request"
        raise InputError(f"{where} of a what-if: {first['msg']}, given {first['input']!r:.80}") from None
    with store.session() as session:
        if run is not None:
            runs.locked(session, run)
        added = session.scalar(
            insert(session, WhatIfRow)
            .values(
                run=run,
                key=key,
                actor=actor,
                source=source,
                request=checked.model_dump(),
                status="queued",
                error="",
                worker="",
                created_at=utc_now(),
            )
            .on_conflict_do_nothing(index_elements=["key"])
            .returning(WhatIfRow.id)
        )
        row = session.scalars(select(WhatIfRow).where(WhatIfRow.key == key)).one()
        if added is not None:
            _audit(session, row, actor=actor)
        return _view(row)


def claim(store: Store, id: int, *, worker: str) -> WhatIfRequest | None:
    """Takes a queued what-if to solve it; atomic. None: somebody else has it, or it has ended."""
    with store.session() as session:
        row = _locked(session, id)
        if row.status != "queued":
            return None
        row.worker = worker
        row.claimed_at = utc_now()
        _move(session, row, "solving", actor=worker)
        return WhatIfRequest.model_validate(row.request)


def answered(store: Store, id: int, *, result: Mapping[str, Any], seconds: float) -> WhatIfView:
    """Stores a worker's answer. One that is not waited for any more (cancelled, given up) is dropped."""
    with store.session() as session:
        row = _locked(session, id)
        if row.status == "solving":
            row.result = dict(result)
            row.seconds = seconds
            _move(session, row, "done", actor=row.worker)
        return _view(row)


def fail(store: Store, id: int, error: str, *, actor: str = "controller") -> WhatIfView:
    """Ends an open what-if without an answer; nothing happens to one that has ended."""
    with store.session() as session:
        row = _locked(session, id)
        if row.status in OPEN:
            row.error = error
            _move(session, row, "failed", actor=actor)
        return _view(row)


def cancel(store: Store, id: int, *, actor: str) -> WhatIfView:
    """A person does not want the answer any more.

    Raises:
        InputError: unknown what-if.
        TransitionError: it has ended already.
    """
    with store.session() as session:
        row = _locked(session, id)
        if row.status != "cancelled":
            _move(session, row, "cancelled", actor=actor)
            row.error = f"cancelled by {actor}"
        return _view(row)


def waiting(store: Store, *, limit: int = 20) -> list[WhatIfView]:
    """What is queued or solving, oldest first."""
    query = select(WhatIfRow).where(WhatIfRow.status.in_(OPEN)).order_by(WhatIfRow.id).limit(limit)
    with store.reading() as session:
        return [_view(row) for row in session.scalars(query)]


def recent(store: Store, *, run: int | None = None, limit: int = 20, offset: int = 0) -> list[WhatIfView]:
    """What-ifs, newest first; of one run, or of all."""
    query = select(WhatIfRow).order_by(WhatIfRow.id.desc()).limit(limit).offset(offset)
    if run is not None:
        query = query.where(WhatIfRow.run == run)
    with store.reading() as session:
        return [_view(row) for row in session.scalars(query)]


def count(store: Store, *, run: int | None = None) -> int:
    """How many there are, of one run or of all."""
    query = select(func.count()).select_from(WhatIfRow)
    if run is not None:
        query = query.where(WhatIfRow.run == run)
    with store.reading() as session:
        return session.scalar(query) or 0


def get(store: Store, id: int) -> WhatIfView:
    """One what-if, or `InputError`."""
    with store.reading() as session:
        return _view(_found(session, id))


def _found(session: Session, id: int) -> WhatIfRow:
    row = session.get(WhatIfRow, id) if fits(id) else None
    if row is None:
        raise InputError(f"unknown what-if {id}")
    return row


def _locked(session: Session, id: int) -> WhatIfRow:
    """The row, locked until the transaction ends; its run first, as every writer does."""
    row = _found(session, id)
    if row.run is not None:
        runs.locked(session, row.run)
    session.refresh(row, with_for_update=True)
    return row


def _move(session: Session, row: WhatIfRow, status: str, *, actor: str) -> None:
    transitions.move_what_if(row, status)
    if status not in OPEN:
        row.done_at = utc_now()
    _audit(session, row, actor=actor)


def _audit(session: Session, row: WhatIfRow, *, actor: str) -> None:
    request = row.request
    audit.add(
        session,
        actor=actor,
        action="what-if",
        run=row.run,
        target=f"what-if {row.id}",
        source=row.source if row.status == "queued" else "",
        result=row.status,
        detail={"title": request["title"], "rates": request["rates"], "train": request["train"], "error": row.error},
    )


def _view(row: WhatIfRow) -> WhatIfView:
    return WhatIfView(
        id=row.id,
        run=row.run,
        actor=row.actor,
        source=row.source,
        request=WhatIfRequest.model_validate(row.request),
        status=row.status,
        result=row.result,
        seconds=row.seconds,
        error=row.error,
        worker=row.worker,
        created_at=row.created_at,
        claimed_at=row.claimed_at,
        done_at=row.done_at,
    )
