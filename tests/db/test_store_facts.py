"""Size and rows of the database, on both kinds."""

from __future__ import annotations

import pytest

from db import audit, store_facts
from db.runs import RunView
from db.store import SCHEMA_REVISION, Store


def test_size_and_rows(store: Store, run: RunView, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        audit.record(store, actor="ann", action="look")
    found = store_facts.store_facts(store)
    assert (found.kind, found.revision) == ("SQLite" if store.is_sqlite else "PostgreSQL", SCHEMA_REVISION)
    assert found.size_bytes > 10_000
    assert (found.num_rows["audit"], found.num_rows["plans"], found.num_rows["samples"]) == (4 + 0, 1, 0)
    assert (found.free_bytes is not None) == store.is_sqlite
    monkeypatch.setattr(store_facts, "MAX_COUNTED", 2)
    assert store_facts.store_facts(store).num_rows["audit"] == 3, "it stops counting one beyond the limit"
