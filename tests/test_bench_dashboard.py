"""The bench of the dashboard: its store is what it says, and a refresh's cost is written down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.dashboard import reads, refresh_log
from bench import large_store
from bench.large_store import Size
from db import audit, commands, episodes, history, plans
from db.store import Store
from planner.plan import Plan
from tests.app.seeded_world import close_world, open_world


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    opened = open_world(tmp_path, monkeypatch)
    yield opened
    close_world(opened)


def test_the_large_store_is_a_run_that_goes_on(store: Store) -> None:
    size = Size(num_devices=16, num_plans=60, num_samples=4_000)
    story = large_store.seed(store, size)
    story.steps(3)
    run = story.id
    assert plans.count(store, run) == 60
    assert [plan.status for plan in plans.all_plans(store, run, limit=1)] == ["ready"]
    assert plans.job(store, run, 50) is not None, "its page offers a bundle"
    copied = plans.get(store, run, 50)
    assert Plan.from_json(copied.document or {}).num_layers == 64
    assert copied.created_at < plans.get(store, run, 51).created_at
    assert len(history.samples(store, run, devices=[3])) == 253
    assert [switch.plan_version for switch in history.switches(store, run)] == [11, 21, 31, 41, 51]
    first, last = history.switches(store, run)[0], history.switches(store, run)[-1]
    assert history.switch_digests(store, run, first.id) == history.switch_digests(store, run, last.id)
    assert [entry.device for entry in episodes.all_episodes(store, run, is_open=True)] == []
    assert len(commands.recent(store, run, limit=100)) == 60
    assert len(audit.entries(store, run, limit=1000)) > 3 * 58
    found = reads.snapshot(run)
    assert (found.active_version, found.run.status, found.is_stale) == (51, "training", False)
    assert found.active_plan is not None
    assert found.figures.healthy_s is not None


def test_refreshes_are_logged_only_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(number: int) -> None:
        if number < 0:
            raise ValueError(number)

    monkeypatch.delenv(refresh_log.VARIABLE, raising=False)
    assert refresh_log.logged(draw) is draw
    log = tmp_path / "log"
    monkeypatch.setenv(refresh_log.VARIABLE, str(log))
    measured = refresh_log.logged(draw)
    measured(1)
    with pytest.raises(ValueError, match="-1"):
        measured(-1)
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [line["part"] for line in lines] == ["test_bench_dashboard"] * 2
    assert all(line["seconds"] >= 0 and line["cpu_s"] >= 0 for line in lines)
