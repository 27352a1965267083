"""What a failure would lead to, for every run that there can be."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.failure_outlook import failure_outlook
from db import runs
from db.runs import RunView
from db.store import Store
from tests.app import seeded_store


@pytest.fixture
def run(tmp_path: Path) -> RunView:
    with Store.open(seeded_store.database_url(tmp_path), migrate=True) as store:
        story = seeded_store.healthy_run(store, begin_at=datetime.now(UTC) - timedelta(hours=1))
        return replace(runs.get(store, story.id), max_restarts=3, step=26)


@pytest.mark.parametrize(
    ("num_restarts", "first_step", "saved_step", "said"),
    [
        (0, 0, 20, "(restart 1 of 3) from the checkpoint of step 20. 7 steps are repeated."),
        (2, 0, 26, "(restart 3 of 3) from the checkpoint of step 26. 1 step is repeated."),
        (1, 0, 27, "(restart 2 of 3) from the checkpoint of step 27. 0 steps are repeated."),
        (0, 0, None, "(restart 1 of 3) from step 0: there is no checkpoint yet. 27 steps are repeated."),
        (0, 12, None, "(restart 1 of 3) from step 12: there is no checkpoint yet. 15 steps are repeated."),
        (3, 0, 20, "The engine ends and no restart is left (3 allowed): the run ends as failed."),
    ],
)
def test_outlook(run: RunView, num_restarts: int, first_step: int, saved_step: int | None, said: str) -> None:
    given = replace(run, num_restarts=num_restarts)
    assert failure_outlook(given, first_step=first_step, saved_step=saved_step).endswith(said)
