"""The main path in a real browser: a run is started from the page, trained by a scripted engine, drilled and stopped.

Broker, worker and controller are real processes; the engine is the scripted one, in torchrun's place.
"""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.dashboard.launch import HEALTH_PATH, command
from app.local.system import LocalSystem
from db import commands, plans, runs
from db.settings import Settings
from db.store import Store
from tests.app.local_world import free_port, processes_of, wait_for
from tests.app.seeded_world import TOKEN, unlock
from tests.app.test_browser import CHROMIUM, FLAGS, WAIT_S

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium or Chrome on the PATH"),
]


@dataclass
class Installation:
    """A whole system and the dashboard's server."""

    url: str
    store: Store
    settings: Settings


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    home = tmp_path_factory.mktemp("home")
    port = free_port()
    # Python imports this module by itself at start-up: so trainers get the scripted engine without an option.
    (home / "sitecustomize.py").write_text(
        "import app.local.commands\nfrom tests.app.local_world import scripted\n"
        "app.local.commands.torchrun = scripted()\n"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MALLEUS_")}
    environ |= {"MALLEUS_HOME": str(home), "MALLEUS_TOKEN": TOKEN, "MALLEUS_PORT": str(port)}
    environ["PYTHONPATH"] = f"{home}:{Path(__file__).parents[2]}"
    settings = Settings.from_env(environ)
    argv, environment = command(settings, environ)
    said: list[str] = []
    with LocalSystem(settings, has_dashboard=False, say=said.append, wait=_wait) as system:
        with (home / "dashboard.log").open("wb") as log:
            server = subprocess.Popen(argv, env=environment, cwd=home, stdout=log, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(lambda: _answers(url + HEALTH_PATH), "the dashboard comes up")
            yield Installation(url=url, store=system.store, settings=settings)
        finally:
            for run in runs.open_runs(system.store):
                commands.submit(system.store, run.id, "stop", {}, actor="test", source="test")
            wait_for(lambda: not runs.open_runs(system.store), "every run ends")
            server.terminate()
            server.wait(timeout=20)
    assert not said
    wait_for(lambda: not processes_of(home), "nothing is left behind")


@pytest.fixture
def page() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        context = browser.new_context(viewport={"width": 1440, "height": 1000})
        context.set_default_timeout(WAIT_S * 1000)
        yield context.new_page()
        browser.close()


def test_a_run_from_its_form_to_its_end(installation: Installation, page: Any) -> None:
    store = installation.store
    page.goto(installation.url)
    page.wait_for_selector("text=No run yet")
    unlock(page, "grace")
    page.get_by_role("button", name="Start a run").click()
    page.wait_for_url("**new=demo")
    page.wait_for_selector("text=What will start")
    page.wait_for_selector(".will-start .map .stage")
    name = page.get_by_role("textbox", name="Name", exact=True)
    name.fill("a/b")
    name.press("Enter")
    page.wait_for_selector("text=String should match pattern")
    name.fill("from the page")
    name.press("Enter")
    page.wait_for_selector(".will-start .map .stage")
    steps = page.get_by_role("spinbutton", name="Steps", exact=True)
    steps.fill("100000")
    steps.press("Enter")
    page.wait_for_selector("text=100,000")
    page.wait_for_selector("button:has-text('Start run'):not([disabled])")
    page.get_by_role("button", name="Start run").dblclick()
    page.wait_for_url("**started=1*")
    page.wait_for_selector("text=its first step")
    (run,) = runs.all_runs(store)
    assert (run.name, run.status, run.max_restarts) == ("from the page", "training", 3)
    assert plans.get(store, run.id, 1).requested_by == "grace"

    page.get_by_placeholder("Filter by name").fill("page")
    page.get_by_placeholder("Filter by name").press("Enter")
    page.wait_for_url("**text=page*")
    page.wait_for_selector("table[aria-label=Runs] tr.leads")
    page.get_by_role("button", name="Menu of run 1").click()
    page.locator("#run-menu-1 button", has_text="Pause").click()
    page.wait_for_selector(".badge.paused")
    page.wait_for_selector(".ack.applied >> text=pause")
    page.get_by_role("button", name="Menu of run 1").click()
    page.locator("#run-menu-1 button", has_text="Resume").click()
    page.wait_for_selector("table .badge.training")
    page.locator("tr.leads td").nth(4).click()
    page.wait_for_url("**/live?run=1")

    page.get_by_role("link", name="Inject").first.click()
    page.get_by_role("radio", name="Situation").or_(page.get_by_role("button", name="Situation")).first.click()
    page.locator(".card[data-pick=S2]").click()
    page.wait_for_url("**situation=S2*")
    page.get_by_role("button", name="Play S2").click()
    page.wait_for_selector(".ack.applied >> text=play S2")
    page.wait_for_selector("text=Report of play S2")
    played = next(entry for entry in commands.recent(store, 1) if entry.kind == "play")
    assert (played.actor, played.result) == ("grace", "1 injections played")
    page.locator(".row-button", has_text="Clear").click()
    page.wait_for_selector("text=No injection is open.")
    page.wait_for_selector("text=/Report of play S2.*/")

    page.goto(f"{installation.url}/?text=page&started=1")
    page.wait_for_selector("text=its first step")
    assert page.get_by_placeholder("Filter by name").input_value() == "page"


def _wait(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
