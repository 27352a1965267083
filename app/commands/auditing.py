"""`malleus audit`: who did what, when, from where, and what came of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from app.commands.output import (
    Column,
    CsvOption,
    JsonOption,
    LimitOption,
    OffsetOption,
    clock,
    print_rows,
)
from app.commands.surroundings import open_store
from db.errors import InputError

COLUMNS: tuple[Column, ...] = (
    ("at", lambda row: clock(row.at)),
    ("run", lambda row: row.run),
    ("actor", lambda row: row.actor),
    ("source", lambda row: row.via),
    ("action", lambda row: row.action),
    ("target", lambda row: row.target),
    ("result", lambda row: row.result),
    ("reason", lambda row: row.reason),
)
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def audit(
    run: Annotated[int | None, typer.Option(help="Only this run.", show_default="all")] = None,
    actor: Annotated[str, typer.Option(help="Only what this one did.")] = "",
    action: Annotated[str, typer.Option(help="Only this action, such as plan.status.")] = "",
    source: Annotated[str, typer.Option(help="Only through this: cli, dashboard, controller, engine, worker.")] = "",
    result: Annotated[str, typer.Option(help="Only with this result.")] = "",
    text: Annotated[str, typer.Option(help="Only with this text in actor, action, target, result or detail.")] = "",
    since: Annotated[str, typer.Option(help="From then on: 15m, 2h, 7d, or 2026-01-31T14:00 (UTC).")] = "",
    until: Annotated[str, typer.Option(help="Before then: the same.")] = "",
    sort: Annotated[str, typer.Option(help="By at, run, actor, source, action, target or result.")] = "at",
    ascending: Annotated[bool, typer.Option("--ascending", help="Smallest or oldest first.")] = False,
    limit: LimitOption = 100,
    offset: OffsetOption = 0,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """List who did what, newest first."""
    from db import audit as log
    from db import runs as table_of_runs

    if sort not in log.SORTS:
        raise InputError(f"--sort must be one of {', '.join(log.SORTS)}, given {sort!r}")
    wanted = log.Filter(
        run=run,
        actor=actor,
        action=action,
        source=source,
        result=result,
        text=text,
        since=instant("--since", since),
        until=instant("--until", until),
    )
    with open_store() as store:
        if run is not None:
            table_of_runs.get(store, run)
        rows = log.find(store, wanted, sort=sort, is_descending=not ascending, limit=limit, offset=offset)
    empty = "nothing has been done yet" if wanted == log.Filter() else "no entry matches"
    print_rows(rows, COLUMNS, as_json=as_json, as_csv=as_csv, empty=empty)


def instant(name: str, text: str) -> datetime | None:
    """A moment: so long ago, or ISO 8601, UTC where it names no zone. Empty: None.

    Raises:
        InputError: neither of them.
    """
    if not text:
        return None
    if text[:-1].isdigit() and text[-1] in UNITS_S:
        seconds = int(text[:-1]) * UNITS_S[text[-1]]
        if seconds <= 100 * 366 * UNITS_S["d"]:
            return datetime.now(UTC) - timedelta(seconds=seconds)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"{name} must be such as 15m, 2h, 7d or 2026-01-31T14:00, given {text!r}") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
