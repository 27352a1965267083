"""When each service last said that it is alive. Readers judge by the age; nothing here expires."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select

from db.messages import utc_now
from db.models import HeartbeatRow
from db.store import Store, insert


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatView:
    """A service's last beat."""

    name: str
    at: datetime
    pid: int
    host: str
    detail: dict[str, Any]


def beat(store: Store, name: str, detail: Mapping[str, Any] | None = None) -> None:
    """Says that the service `name` (`controller`, `worker`) of this process is alive now."""
    values = {"at": utc_now(), "pid": os.getpid(), "host": socket.gethostname(), "detail": dict(detail or {})}
    with store.session() as session:
        session.execute(
            insert(session, HeartbeatRow)
            .values(name=name, **values)
            .on_conflict_do_update(index_elements=["name"], set_=values)
        )


def all_beats(store: Store) -> dict[str, BeatView]:
    """The last beat of every service that ever beat, by name."""
    with store.reading() as session:
        return {
            row.name: BeatView(name=row.name, at=row.at, pid=row.pid, host=row.host, detail=row.detail)
            for row in session.scalars(select(HeartbeatRow).order_by(HeartbeatRow.name))
        }
