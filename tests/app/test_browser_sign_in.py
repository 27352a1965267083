"""Sign-in in a real browser through a real OpenID Connect provider: who may look, who may write, and who neither."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from db import audit, commands
from db.store import Store
from tests.app import seeded_store, toured_store
from tests.app.local_world import free_port, wait_for
from tests.app.oidc_provider import Provider, provider
from tests.app.seeded_store import database_url, tell_until_now
from tests.app.test_browser import WAIT_S, browser, pytestmark, serving

__all__ = ["browser", "pytestmark"]  # a fixture, and the marks of this module too


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    url: str
    store: Store
    provider: Provider
    log: Path


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """A dashboard in which ada operates and everyone of her domain looks."""
    folder, port = tmp_path_factory.mktemp("home"), free_port()
    with (
        Store.open(database_url(folder), migrate=True) as store,
        provider(redirect_uri=f"http://127.0.0.1:{port}/oauth2callback") as issuer,
    ):
        story = tell_until_now(store, seeded_store.healthy_run)
        environ = {
            "MALLEUS_OPERATORS": "ada@example.org",
            "MALLEUS_VIEWERS": "@example.org",
            "MALLEUS_OIDC_CLIENT_ID": issuer.client_id,
            "MALLEUS_OIDC_CLIENT_SECRET": issuer.client_secret,
            "MALLEUS_OIDC_SERVER_METADATA_URL": issuer.metadata_url,
            "MALLEUS_OIDC_REDIRECT_URI": issuer.redirect_uri,
        }
        with toured_store.going_on([story]), serving(folder, port=port, environ=environ) as (url, _):
            yield Installation(url=url, store=store, provider=issuer, log=folder / "dashboard.log")


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A browser of its own: no cookie is there."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(WAIT_S * 1000)
    yield context.new_page()
    context.close()


def sign_in(page: Any, installation: Installation, name: str, address: str = "/live?run=1") -> None:
    page.goto(installation.url + address)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{installation.provider.issuer}/**")
    page.get_by_role("link", name=name, exact=True).click()
    page.wait_for_url(f"{installation.url}/**")


def test_a_link_leads_where_it_should_after_a_sign_in(installation: Installation, page: Any) -> None:
    sign_in(page, installation, "ada", "/stragglers?run=1&devices=3")
    page.wait_for_url("**/stragglers?run=1&devices=3**")
    page.wait_for_selector("button.cell[data-pick='3'][data-picked]")
    page.goto(installation.url)
    page.wait_for_selector("table[aria-label=Runs]")
    assert "stragglers" not in page.url, "only once"


def test_an_operator_signs_in_writes_under_the_own_address_and_signs_out(installation: Installation, page: Any) -> None:
    login = audit.Filter(action="access.login", actor="ada@example.org")
    earlier = len(audit.find(installation.store, login))
    sign_in(page, installation, "ada")
    page.wait_for_url("**/live?run=1")
    page.get_by_role("button", name="Pause").click()
    wait_for(lambda: commands.recent(installation.store, 1), "the command is written down")
    (asked,) = commands.recent(installation.store, 1)
    assert (asked.kind, asked.actor, asked.source) == ("pause", "ada@example.org", "dashboard")
    told = audit.find(installation.store, login)
    assert {entry.result for entry in told} == {"operator"}
    assert 1 <= len(told) - earlier <= 2, "one entry a browser session: the page's, and the first page's if it ran"
    page.reload()
    page.get_by_role("button", name="ada@example.org").click()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("button", name="Sign in").wait_for()
    assert "healthy" not in page.inner_text("body")


def test_a_viewer_looks_and_cannot_write(installation: Installation, page: Any) -> None:
    sign_in(page, installation, "bob")
    page.wait_for_url("**/live?run=1")
    page.wait_for_selector("button:has-text('bob@example.org')")
    page.wait_for_selector(".plot .main-svg")
    assert page.get_by_role("button", name="Pause").is_disabled()


@pytest.mark.parametrize(("name", "shown"), [("eve", "eve@elsewhere.net"), ("liar", "This account")])
def test_who_is_in_no_list_sees_nothing(installation: Installation, page: Any, name: str, shown: str) -> None:
    sign_in(page, installation, name)
    page.wait_for_selector(f"text={shown} may not see this installation")
    page.goto(f"{installation.url}/live?run=1")
    page.wait_for_selector(f"text={shown} may not see this installation")
    assert page.locator(".plot, table, .figures").count() == 0
    page.get_by_role("button", name="Sign out").wait_for()


def test_the_provider_refused_nothing_and_no_secret_is_in_the_log(installation: Installation) -> None:
    assert installation.provider.refused == []
    log = installation.log.read_text()
    cookie_secret = (installation.log.parent / ".streamlit" / "cookie_secret").read_text()
    assert installation.provider.client_secret not in log
    assert cookie_secret not in log
