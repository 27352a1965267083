"""The What-if page in a real browser, from the grid to a proposal; controller and worker are stood in for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from db import commands, what_ifs
from db.store import Store
from planner.worker import solve_what_if
from tests.app.seeded_world import unlock
from tests.app.test_browser import CHROMIUM, Installation, Watched, browser, installation, page, watched

__all__ = ["browser", "installation", "page", "watched"]  # fixtures

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium or Chrome on the PATH"),
]


@pytest.fixture
def stand_in(installation: Installation) -> Iterator[None]:
    """Answers what-ifs as a worker would, and commands as a controller."""
    over = threading.Event()

    def work(store: Store) -> None:
        while not over.wait(0.1):
            for asked in what_ifs.waiting(store):
                solve_what_if(store, asked.id, worker="stand-in")
            for command in commands.pending(store):
                commands.finish(store, command.id, ok=True, result="plan 3 is ready and waits for approval")

    thread = threading.Thread(target=work, args=(installation.store,))
    thread.start()
    yield
    over.set()
    thread.join()


def test_from_the_grid_to_a_proposal(installation: Installation, page: Any, watched: Watched, stand_in: None) -> None:
    page.goto(f"{installation.url}/what-if?run=1")
    page.wait_for_selector("button.cell[data-pick='6']")
    unlock(page, "grace")
    page.wait_for_selector("button:has-text('Plan this'):not([disabled])")
    page.locator("button.cell[data-pick='6']").click()
    page.wait_for_selector("text=Rate of device 6")
    page.get_by_role("radio", name="5.42").click()
    page.wait_for_selector("button.cell.slow[data-pick='6']")
    page.wait_for_url(lambda url: "5.42" in url)
    page.get_by_role("button", name="Plan this").click()
    page.wait_for_selector(".map i.moved.new")
    page.wait_for_selector(".plot .main-svg")
    asked = what_ifs.recent(installation.store)[0]
    assert asked.request.rates[6] == 5.42
    assert page.url.endswith(f"/what-if?whatif={asked.id}")
    page.get_by_role("button", name="Propose to run 1").click()
    page.get_by_role("textbox", name="Reason").fill("node 1 is to be serviced")
    page.get_by_role("button", name="Yes, propose it").click()
    page.wait_for_selector("text=plan 3 is ready and waits for approval")
    command = commands.recent(installation.store, 1)[0]
    assert (command.kind, command.arguments["what_if"]) == ("propose", asked.id)
    assert command.arguments["reason"] == "node 1 is to be serviced"
    page.reload()
    page.wait_for_selector(".map i.moved.new")
    assert page.locator("button.cell.slow[data-pick='6']").count() == 1
    assert watched.problems == []
