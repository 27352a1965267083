"""The health page, and the mark in the corner of every page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from db.store import SCHEMA_REVISION, Store
from tests.app import seeded_store
from tests.app.healthy_beats import beat_healthily
from tests.app.seeded_store import tell_until_now
from tests.app.seeded_world import again, close_world, drawings, open_world, page, texts
from tests.app.story_rows import plain

MAIN = Path(__file__).parents[2] / "app" / "dashboard" / "main.py"


def show_health() -> None:
    from app.dashboard.views import health

    health.show()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    opened = open_world(tmp_path, monkeypatch)
    yield opened
    close_world(opened)


def test_everything_with_unit_and_since(store: Store) -> None:
    story = tell_until_now(store, seeded_store.straggling_run)
    beat_healthily(store, run=story.id)
    at = page(show_health)
    assert not at.exception
    said = plain(texts(at))
    for fact in (
        "healthy", "answers in 310 µs", "1.25 MB used of 256 MB", "812 messages", "answered in 42.0 ms",
        "180 ms behind", "a round", "SQLite", "samples", "a batch", "attempt 1", "Malleus 0.1.0",
        f"schema {SCHEMA_REVISION}", "UTC",
    ):  # fmt: skip
        assert fact in said
    assert 'class="health ok"' in said
    assert "problem" not in said


def test_only_what_needs_a_look(store: Store) -> None:
    beat_healthily(store, run=1, broker="away", broker_facts=None)
    at = page(show_health, health_show="not ok")
    said = texts(at)
    assert "cannot be reached" in said
    assert "MALLEUS_REDIS_URL" in said
    assert "Write latency" not in said
    assert "cannot be reached" in texts(again(at))
    assert at.query_params["health_show"] in ("not ok", ["not ok"])
    at.button_group(key="health_show").set_value("all").run()
    assert "Write latency" in texts(at)


def test_an_empty_store_says_what_to_run(store: Store) -> None:
    at = page(show_health)
    assert not at.exception
    assert "malleus up" in texts(at)


def test_every_page_carries_the_mark(store: Store) -> None:
    tell_until_now(store, seeded_store.healthy_run)
    beat_healthily(store, run=1)
    at = AppTest.from_file(str(MAIN), default_timeout=60).run()
    assert not at.exception
    mark = drawings(at)["frame_health"]["html"]
    assert 'class="health ok"' in mark
    assert ">healthy</a>" in mark
    assert 'href="health?"' in mark
    beat_healthily(store, run=1, broker="away", broker_facts=None)
    assert ">1 problem</a>" in drawings(again(at))["frame_health"]["html"]
