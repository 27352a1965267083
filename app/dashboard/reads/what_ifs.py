"""What-ifs as they stand this moment: each time the store is asked."""

from __future__ import annotations

from app.dashboard.reads.source import store
from db import what_ifs
from db.what_ifs import WhatIfView


def what_if(id: int) -> WhatIfView:
    """One what-if, or `InputError`."""
    return what_ifs.get(store(), id)


def what_if_page(run: int | None, *, limit: int, offset: int) -> list[WhatIfView]:
    """What-ifs of a run or of all, newest first."""
    return what_ifs.recent(store(), run=run, limit=limit, offset=offset)


def num_what_ifs(run: int | None) -> int:
    """How many what-ifs a run, or all, have."""
    return what_ifs.count(store(), run=run)
