"""How large the database is and what it holds, cheaply: no count looks at more than `MAX_COUNTED` rows."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, literal, select, text
from sqlalchemy.orm import Session

from db.models import AuditRow, Base, CommandRow, EpisodeRow, PlanRow, SampleMinuteRow, SampleRow, StepRow
from db.store import SCHEMA_REVISION, Store

MAX_COUNTED = 1_000_000
BIG_TABLES: Mapping[str, type[Base]] = {
    "samples": SampleRow,
    "steps": StepRow,
    "samples_minute": SampleMinuteRow,
    "plans": PlanRow,
    "episodes": EpisodeRow,
    "commands": CommandRow,
    "audit": AuditRow,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """The database as it stands.

    Args:
        kind: `SQLite` or `PostgreSQL`.
        size_bytes: data and indexes.
        log_bytes: SQLite's write-ahead log; None elsewhere.
        free_bytes, disk_bytes: of the disk that holds an SQLite file; None elsewhere.
        num_rows: by table; `MAX_COUNTED` + 1 stands for more.
    """

    kind: str
    revision: str
    size_bytes: int
    log_bytes: int | None
    free_bytes: int | None
    disk_bytes: int | None
    num_rows: dict[str, int]


def store_facts(store: Store) -> StoreFacts:
    """Looks at the database.

    Raises:
        StoreError: it cannot be read.
    """
    with store.reading() as session:
        num_rows = {name: _num_rows(session, model) for name, model in BIG_TABLES.items()}
        if not store.is_sqlite:
            size_bytes = session.scalar(select(func.pg_database_size(func.current_database())))
            return StoreFacts(
                kind="PostgreSQL",
                revision=SCHEMA_REVISION,
                size_bytes=int(size_bytes or 0),
                log_bytes=None,
                free_bytes=None,
                disk_bytes=None,
                num_rows=num_rows,
            )
        pages, page_bytes = (int(session.scalar(text(f"PRAGMA {name}")) or 0) for name in ("page_count", "page_size"))
        path = next((row[2] for row in session.execute(text("PRAGMA database_list")) if row[1] == "main"), "")
    disk = shutil.disk_usage(Path(path).parent) if path else None
    return StoreFacts(
        kind="SQLite",
        revision=SCHEMA_REVISION,
        size_bytes=pages * page_bytes,
        log_bytes=_size_bytes(Path(f"{path}-wal")) if path else 0,
        free_bytes=None if disk is None else disk.free,
        disk_bytes=None if disk is None else disk.total,
        num_rows=num_rows,
    )


def _num_rows(session: Session, model: type[Base]) -> int:
    some = select(literal(1)).select_from(model).limit(MAX_COUNTED + 1).subquery()
    return session.scalar(select(func.count()).select_from(some)) or 0


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
