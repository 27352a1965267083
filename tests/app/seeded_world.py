"""An installation in a temporary folder for the dashboard's page tests: store, token, empty caches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from app.dashboard import reads
from app.dashboard.reads import audit, drills, feed, system
from db.store import Store
from tests.app.seeded_store import database_url

TOKEN = "a-token-for-tests"

CACHED = (
    reads.all_runs,
    reads.run,
    reads.origins,
    reads.beats,
    reads.health,
    system._store_facts,
    reads.plan_page,
    reads.num_plans,
    reads.plan_triggers,
    reads.plan_story,
    reads.plans_that_ran,
    reads.plan_steps,
    reads.all_selected,
    reads.drill_steps,
    reads.drill_injections,
    drills._commands,
    drills._audit,
    reads.audit_choices,
    audit._audit_page,
    audit._audit_count,
)


def open_world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Points the dashboard at an empty store in the folder, and opens it. The caller closes it.

    A snapshot of a run that has not ended is read anew each time; `look_again` forgets the other reads.
    """
    monkeypatch.setenv("MALLEUS_HOME", str(folder))
    monkeypatch.setenv("MALLEUS_TOKEN", TOKEN)
    monkeypatch.delenv("MALLEUS_DATABASE_URL", raising=False)
    monkeypatch.setattr(feed, "FRESH_S", -1.0)
    st.cache_resource.clear()
    return Store.open(database_url(folder), migrate=True)


def look_again() -> None:
    """Forgets what the dashboard has read in the last moment; store, settings and the feeds of runs stay."""
    for cached in CACHED:
        cached.clear()


def close_world(store: Store) -> None:
    """Closes the dashboard's own store too, so that no connection is left behind."""
    try:
        reads.store().close()
    finally:
        st.cache_resource.clear()
        store.close()


def page(show: Callable[[], None], **params: str) -> AppTest:
    """A page as it is after its first run.

    Args:
        show: a function of its own, whose source draws the page (AppTest runs its text).
    """
    at = AppTest.from_function(show, default_timeout=60)
    for name, value in params.items():
        at.query_params[name] = value
    return again(at)


def again(at: AppTest) -> AppTest:
    """The page a refresh later."""
    look_again()
    return at.run()


def drawings(at: AppTest) -> dict[str, dict[str, Any]]:
    """What was sent to each mounted component, by its key."""
    found = {}
    for element in at.get("bidi_component"):
        key = element.proto.id.split("-", 2)[-1]
        found[key] = json.loads(element.proto.json) if element.proto.json else {}
    return found


def texts(at: AppTest) -> str:
    """The HTML of every drawing of the page, in order."""
    return "\n".join(entry["html"] for entry in drawings(at).values() if "html" in entry)


def unlock(page: Any, name: str) -> None:
    """Lets a person write in a browser's page (Playwright)."""
    page.get_by_role("button", name="Read-only").click()
    page.get_by_role("textbox", name="Write token").fill(TOKEN)
    page.get_by_role("textbox", name="Your name").fill(name)
    page.get_by_role("button", name="Unlock").click()
    page.wait_for_selector(f"button:has-text('{name}')")
