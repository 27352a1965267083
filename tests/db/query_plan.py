"""How SQLite goes about a query that a function of `db` sends."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import event

from db.store import Store


def query_plan(store: Store, read: Callable[[], object], *, of: str) -> str:
    """The plan of the first query on the table `of` that `read` sends."""
    asked: list[tuple[str, object]] = []

    def watch(connection: object, cursor: object, statement: str, values: object, *_: object) -> None:
        asked.append((statement, values))

    event.listen(store._engine, "before_cursor_execute", watch)
    try:
        read()
    finally:
        event.remove(store._engine, "before_cursor_execute", watch)
    statement, values = next(entry for entry in asked if f"FROM {of}" in entry[0])
    with store._engine.connect() as connection:
        return str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all())
