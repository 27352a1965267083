"""Health, audit and access in a real browser: two contexts, one of which unlocks; the address brings the view back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from db import audit
from db.store import Store
from tests.app import seeded_store
from tests.app.healthy_beats import beat_healthily
from tests.app.seeded_store import database_url, tell_until_now
from tests.app.seeded_world import TOKEN, unlock
from tests.app.test_browser import CHROMIUM, WAIT_S, browser, serving

__all__ = ["browser"]  # a fixture of this module too

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium or Chrome on the PATH"),
]


@dataclass
class Installation:
    """A store, the dashboard's server, and what the server wrote."""

    url: str
    store: Store
    log: Path


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("home")
    with Store.open(database_url(folder), migrate=True) as store:
        tell_until_now(store, seeded_store.drifting_run)
        beat_healthily(store, run=1)
        with serving(folder) as (url, _):
            yield Installation(url=url, store=store, log=folder / "dashboard.log")


@pytest.fixture
def pages(browser: Any) -> Iterator[list[Any]]:
    """Two browsers that share nothing."""
    contexts = [browser.new_context(viewport={"width": 1440, "height": 900}) for _ in range(2)]
    for context in contexts:
        context.set_default_timeout(WAIT_S * 1000)
    yield [context.new_page() for context in contexts]
    for context in contexts:
        context.close()


def test_the_audit_view_survives_a_reload_and_its_links_lead_on(installation: Installation, pages: list[Any]) -> None:
    page = pages[0]
    page.goto(f"{installation.url}/audit?audit_actor=grace")
    page.wait_for_function("document.querySelectorAll('table[aria-label=Audit] tbody tr').length === 1")
    page.locator("table[aria-label=Audit] th button", has_text="Action").click()
    page.wait_for_url("**sort=action-**")
    page.reload()
    page.wait_for_selector("table[aria-label=Audit] th[aria-sort=descending] button:has-text('Action')")
    assert page.locator("table[aria-label=Audit] tbody tr").count() == 1
    page.locator("table[aria-label=Audit] td a", has_text="command").click()
    page.wait_for_url("**audit_text=command**")
    page.goto(f"{installation.url}/audit?audit_action=plan.switch&audit_result=rejected")
    page.locator("table[aria-label=Audit] td a", has_text="plan 4").click()
    page.wait_for_url("**/plans?run=1&version=4")
    page.locator(".health-corner a").click()
    page.wait_for_selector("table[aria-label='Health of broker']")
    assert page.url.partition("?")[0].endswith("/health")


def test_a_link_to_a_command_shows_all_that_became_of_it(installation: Installation, pages: list[Any]) -> None:
    page = pages[0]
    page.goto(f"{installation.url}/audit?audit_actor=grace")
    page.wait_for_function("document.querySelectorAll('table[aria-label=Audit] tbody tr').length === 1")
    page.locator("table[aria-label=Audit] td a", has_text="command").click()
    page.wait_for_function("document.querySelectorAll('table[aria-label=Audit] tbody tr').length === 3", timeout=10_000)


SLOW_LINK = """
const [send, listen] = [WebSocket.prototype.send, WebSocket.prototype.addEventListener];
window.sent = 0;
WebSocket.prototype.send = function (data) { window.sent += 1; return send.call(this, data); };
WebSocket.prototype.addEventListener = function (type, act, ...more) {
  const later = (event) => setTimeout(() => act.call(this, event), 1000);
  return listen.call(this, type, type === "message" ? later : act, ...more);
};
"""


@pytest.mark.parametrize(
    ("address", "sign", "head"),
    [("/audit", "table[aria-label=Audit]", "id,at,run,actor"), ("/", "table[aria-label=Runs]", "run,name")],
)
def test_a_download_does_not_hurry_before_the_next_refresh(
    installation: Installation, pages: list[Any], address: str, sign: str, head: str
) -> None:
    """On a slow link the page shows, for a second, what the server has drawn anew already."""
    page = pages[0]
    page.add_init_script(SLOW_LINK)
    page.goto(installation.url + address)
    page.wait_for_selector(sign)
    for _ in range(2):
        page.evaluate("window.sent = 0")
        page.wait_for_function("window.sent > 0")  # a refresh is asked for
    page.wait_for_timeout(700)  # done by the server, on its way to the page
    with page.expect_download(timeout=15_000) as waiting:
        page.get_by_role("button", name="CSV").click()
    assert Path(waiting.value.path()).read_text().startswith(head)
    page.wait_for_function("document.querySelector('[class*=st-key-download_]') === null")


def test_what_one_browser_unlocks_another_does_not_see(installation: Installation, pages: list[Any]) -> None:
    first, second = pages
    for page in pages:
        page.goto(f"{installation.url}/health")
        page.wait_for_selector("table[aria-label='Health of services']")
    unlock(first, "ada")
    second.reload()
    second.wait_for_selector("table[aria-label='Health of services']")
    assert second.locator(".st-key-frame_right >> text=Read-only").first.is_visible()
    assert "ada" not in second.inner_text("body")
    for page in pages:
        assert TOKEN not in page.content()
    assert TOKEN not in installation.log.read_text()
    (entry,) = audit.find(installation.store, audit.Filter(action="access.unlock"))
    assert (entry.actor, entry.result) == ("ada", "ok")
