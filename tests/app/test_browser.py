"""The real pages in a real browser: the system's Chromium against the dashboard's own server.

What AppTest cannot see is tested here: that nothing is fetched from elsewhere, that the browser's side
of the drawings works, that zoom and selection survive a refresh, and that a page whose server is
silent does not look alive.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.dashboard.launch import HEALTH_PATH, command
from app.dashboard.rate_colors import contrast
from db import commands
from db.settings import Settings
from db.store import Store
from tests.app import seeded_store
from tests.app.local_world import free_port, wait_for
from tests.app.seeded_run import SeededRun
from tests.app.seeded_store import alive, database_url, tell_until_now
from tests.app.seeded_world import TOKEN, unlock

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
WAIT_S = 40.0

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium or Chrome on the PATH"),
]


@dataclass
class Installation:
    """A store with a run that goes on, and the dashboard's server."""

    url: str
    store: Store
    story: SeededRun
    server: subprocess.Popen[bytes]


@dataclass
class Watched:
    """What a page said that it should not."""

    problems: list[str] = field(default_factory=list)

    def of(self, page: Any) -> None:
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("request", self._request)

    def _console(self, message: Any) -> None:
        # The framework looks for its own server under the page's path first; that 404 is its way.
        if message.type == "error" and "_stcore" not in json.dumps(message.location):
            self.problems.append(f"console: {message.text}")

    def _request(self, request: Any) -> None:
        if not request.url.startswith(("http://127.0.0.1", "data:", "blob:", "ws://127.0.0.1")):
            self.problems.append(f"fetched {request.url}")


@contextmanager
def serving(
    folder: Path, *, port: int | None = None, environ: Mapping[str, str] | None = None
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The dashboard's own server on the store in a folder: its address and its process; it writes `dashboard.log`.

    Args:
        port: a free one by default.
        environ: more settings.
    """
    port = port or free_port()
    given = {**os.environ, "MALLEUS_HOME": str(folder), "MALLEUS_TOKEN": TOKEN, "MALLEUS_PORT": str(port)}
    given |= environ or {}
    given.pop("MALLEUS_DATABASE_URL", None)
    argv, environment = command(Settings.from_env(given), given)
    with (folder / "dashboard.log").open("wb") as log:
        server = subprocess.Popen(argv, env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: _answers(url + HEALTH_PATH) or server.poll() is not None, "the dashboard comes up", WAIT_S)
        assert server.poll() is None, (folder / "dashboard.log").read_text()
        yield url, server
    finally:
        server.terminate()
        server.wait(timeout=20)


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("home")
    with Store.open(database_url(folder), migrate=True) as store:
        story = tell_until_now(store, seeded_store.straggling_run)
        ended = threading.Event()
        player = threading.Thread(target=_play, args=(story, ended))
        player.start()
        try:
            with serving(folder) as (url, server):
                yield Installation(url=url, store=store, story=story, server=server)
        finally:
            ended.set()
            player.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def page(browser: Any, watched: Watched) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(WAIT_S * 1000)
    opened = context.new_page()
    watched.of(opened)
    yield opened
    context.close()


@pytest.mark.parametrize(
    ("address", "sign"),
    [
        ("/", "table[aria-label=Runs]"),
        ("/live?run=1", ".plot .main-svg"),
        ("/inject?run=1", "ol.drill"),
        ("/plans?run=1&version=2", ".map .stage"),
        ("/plans?run=1&version=2&diff=1", "i.moved.new"),
    ],
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_load_clean_and_fetch_nothing_from_elsewhere(
    installation: Installation, page: Any, watched: Watched, address: str, sign: str, scheme: str
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(installation.url + address)
    page.wait_for_selector(sign)
    assert page.locator("[data-testid=stException], [data-testid=stAlert]").count() == 0
    assert watched.problems == []
    if address != "/":
        page.wait_for_function("document.title === 'run 1 training · Malleus'")
    for chrome in ("stAppDeployButton", "stMainMenu", "stStatusWidget"):
        assert not page.locator(f"[data-testid={chrome}]").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_chosen_devices_are_readable(installation: Installation, page: Any, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{installation.url}/inject?run=1&devices=5,6")
    tags = page.locator("[data-tag]")
    tags.nth(1).wait_for()
    for number in range(2):
        colors = tags.nth(number).evaluate(
            """(tag) => [getComputedStyle(tag.firstElementChild).color, getComputedStyle(tag).backgroundColor]"""
        )
        ink, ground = ("#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", color)[:3]) for color in colors)
        assert contrast(ink, ground) >= 4.5, f"{colors}"


def test_the_runs_page_answers_to_its_name(installation: Installation, page: Any, watched: Watched) -> None:
    page.goto(f"{installation.url}/runs?text=llama&order=up")
    page.wait_for_selector("table[aria-label=Runs] tr.leads")
    page.wait_for_function("location.pathname === '/' && location.search.includes('text=llama')")
    assert page.get_by_placeholder("Filter by name").input_value() == "llama"
    assert page.get_by_role("dialog").count() == 0, "the framework says so of a page that it does not know"
    assert watched.problems == []
    page.reload()
    page.wait_for_selector("table[aria-label=Runs] tr.leads")
    assert "text=llama" in page.url


def test_another_host_name_is_refused(installation: Installation, page: Any) -> None:
    address = installation.url.replace("http://127.0.0.1", "")
    with socket.create_connection(("127.0.0.1", int(address.removeprefix(":")))) as connection:
        connection.sendall(
            b"GET /_stcore/stream HTTP/1.1\r\nHost: evil.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert b"101" not in connection.recv(64).split(b"\r\n")[0]


def test_a_deep_link_survives_a_reload(installation: Installation, page: Any) -> None:
    page.goto(f"{installation.url}/live?run=1")
    page.locator("button.cell[data-pick='3']").click()
    page.wait_for_url("**/live?run=1&device=3")
    page.wait_for_selector("text=Rate of device 3")
    page.reload()
    page.wait_for_selector("text=Rate of device 3")
    assert page.locator("button.cell[data-pick='3']").get_attribute("aria-pressed") == "true"
    page.locator("a", has_text="plan v2").first.click()
    page.wait_for_url("**/plans?run=1&version=2")


def test_zoom_and_selection_survive_refreshes(installation: Installation, page: Any) -> None:
    page.goto(f"{installation.url}/live?run=1&device=3")
    page.wait_for_selector(".plot .main-svg")
    box = page.locator(".plot").bounding_box()
    y = box["y"] + 150
    page.mouse.move(box["x"] + 400, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 700, y, steps=5)
    page.mouse.up()
    page.wait_for_function("document.querySelector('.plot').layout.xaxis.autorange === false")
    zoomed = page.evaluate("document.querySelector('.plot').layout.xaxis.range")
    step = installation.story.step
    page.wait_for_function(f"document.querySelector('.plot').data.at(-1).x.length > {step + 1}")
    assert page.evaluate("document.querySelector('.plot').layout.xaxis.range") == zoomed
    assert page.locator("button.cell[data-pick='3']").get_attribute("aria-pressed") == "true"


def test_a_click_while_the_plot_library_is_on_its_way_costs_no_chart(
    installation: Installation, page: Any, watched: Watched
) -> None:
    held: list[Any] = []
    page.route("**/plotly.min.js*", lambda route: held.append(route))
    with page.expect_request("**/plotly.min.js*"):
        page.goto(f"{installation.url}/live?run=1")
    page.mouse.click(700, 60)
    held.pop().continue_()
    page.wait_for_selector(".plot .main-svg")
    assert watched.problems == []


def test_writes_need_the_token_and_end_in_an_acknowledgement(installation: Installation, page: Any) -> None:
    store, run = installation.store, installation.story.id
    page.goto(f"{installation.url}/inject?run=1")
    page.locator("button.cell[data-pick='5']").click()
    page.locator("button.cell[data-pick='6']").click()
    page.wait_for_url("**devices=5%2C6")
    submit = page.get_by_role("button", name="Inject 2.57")
    submit.wait_for()
    assert submit.is_disabled()
    known = len(commands.recent(store, run))

    page.get_by_role("button", name="Read-only").click()
    page.get_by_role("textbox", name="Write token").fill("guess")
    page.get_by_role("button", name="Unlock").click()
    page.wait_for_selector("text=not the write token")
    page.get_by_role("textbox", name="Write token").fill(TOKEN)
    page.get_by_role("textbox", name="Your name").fill("grace")
    page.get_by_role("button", name="Unlock").click()
    page.wait_for_selector("button:has-text('Inject 2.57'):not([disabled])")
    submit.dblclick()
    page.wait_for_selector("text=waits for the controller")
    asked, *older = commands.recent(store, run)
    assert len(older) == known, "a double click acts once"
    assert (asked.arguments["devices"], asked.actor, asked.source) == ([5, 6], "grace", "dashboard")

    commands.accept(store, asked.id, desired_version=50)
    commands.apply_observed(store, run, 50, 777)
    page.wait_for_selector("text=applied at step 777")


def test_a_second_browser_does_not_see_the_token_of_the_first(installation: Installation, browser: Any) -> None:
    first, second = browser.new_page(), browser.new_page()
    for opened in (first, second):
        opened.set_default_timeout(WAIT_S * 1000)
        opened.goto(f"{installation.url}/live?run=1")
    unlock(first, "ada")
    first.wait_for_selector("button:has-text('Pause'):not([disabled])")
    second.reload()
    second.wait_for_selector("button:has-text('Read-only')")
    assert second.get_by_role("button", name="Pause").is_disabled()
    first.close()
    second.close()


def test_a_hidden_tab_rests(installation: Installation, page: Any) -> None:
    page.goto(f"{installation.url}/live?run=1")
    page.wait_for_selector(".plot .main-svg")
    page.evaluate(
        """() => {
            window.refreshes = 0;
            const age = document.querySelector('[data-age]');
            new MutationObserver(() => window.refreshes++).observe(age, {attributeFilter: ['data-age']});
        }"""
    )
    page.wait_for_function("window.refreshes > 1")
    page.evaluate(_VISIBILITY % "true")
    quiet_since, seen = time.monotonic(), page.evaluate("window.refreshes")
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() - quiet_since < 4:  # the condition: nothing for four seconds
        assert time.monotonic() < deadline, "still refreshing"
        page.wait_for_timeout(200)
        now = page.evaluate("window.refreshes")
        if now != seen:
            quiet_since, seen = time.monotonic(), now
    page.evaluate(_VISIBILITY % "false")
    page.wait_for_function(f"window.refreshes > {seen}")


def test_a_page_whose_server_is_silent_turns_stale(installation: Installation, page: Any) -> None:
    page.goto(f"{installation.url}/live?run=1")
    page.wait_for_selector(".plot .main-svg")
    page.wait_for_selector("[data-freshness=fresh]")
    installation.server.send_signal(signal.SIGSTOP)
    try:
        page.wait_for_selector("[data-freshness=stale]")
        assert page.evaluate("document.documentElement.hasAttribute('data-malleus-stale')")
    finally:
        installation.server.send_signal(signal.SIGCONT)
    page.wait_for_selector("[data-freshness=fresh]")


_VISIBILITY = """() => {
    Object.defineProperty(document, 'hidden', {value: %s, configurable: true});
    document.dispatchEvent(new Event('visibilitychange'));
}"""


def _play(story: SeededRun, ended: threading.Event) -> None:
    """The run goes on, one step a second, and the services beat."""
    while not ended.wait(1.0):
        story.now = datetime.now(UTC) - timedelta(seconds=1.0)
        story.steps(1, step_s=1.0)
        alive(story.store)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
