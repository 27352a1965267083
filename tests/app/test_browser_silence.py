"""What a person sees when a process dies: the whole system, a browser, and `kill -9`.

Broker, worker, controller and dashboard are the real ones; the engine is scripted. The page must say who is silent
within a few seconds, and must not offer what cannot work.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.local.system import LocalSystem
from app.local.trainer import Trainer, first_plan
from db import heartbeats, history, runs
from db.run_config import RunConfig, TrainConfig
from db.runs import RunView
from db.settings import Settings
from tests.app.local_world import free_port, processes_of, scripted, wait_for
from tests.app.seeded_world import TOKEN, unlock
from tests.app.test_browser import CHROMIUM, WAIT_S, browser

__all__ = ["browser"]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium or Chrome on the PATH"),
]


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSystem]:
    home = tmp_path_factory.mktemp("home")
    environ = {"MALLEUS_HOME": str(home), "MALLEUS_PORT": str(free_port()), "MALLEUS_TOKEN": TOKEN}
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("MALLEUS_")]:
            patch.delenv(name)
        patch.setenv("MALLEUS_TOKEN", TOKEN)
        settings = Settings.from_env(environ)
        with LocalSystem(settings, has_dashboard=True, say=lambda _: None, wait=_wait) as running:
            yield running
    assert not processes_of(home)


@pytest.fixture
def training(system: LocalSystem) -> Iterator[Callable[[], RunView]]:
    """Starts a run that trains until it is killed."""
    started: list[Trainer] = []

    def start() -> RunView:
        config = RunConfig(name="watched", train=TrainConfig(num_steps=1_000_000))
        run = runs.create(system.store, config, plan=first_plan(config), actor="ada")
        started.append(Trainer(system.store, system.settings, run, engine=scripted()))
        wait_for(lambda: (runs.get(system.store, run.id).step or 0) > 3, "steps")
        return run

    yield start
    for trainer in started:
        trainer.kill()


@pytest.fixture
def page(system: LocalSystem, browser: Any) -> Iterator[Any]:
    opened = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    opened.set_default_timeout(WAIT_S * 1000)
    yield opened
    opened.context.close()


def test_a_killed_engine_is_not_shown_as_training(
    system: LocalSystem, training: Callable[[], RunView], page: Any
) -> None:
    run = training()
    _open_and_unlock(page, system, run)
    (pid,) = {device.pid for device in history.devices(system.store, run.id)}
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    killed_at = time.monotonic()
    page.wait_for_selector("text=The engine has been silent since")
    print(f"said after {time.monotonic() - killed_at:.1f} s")
    page.wait_for_selector("[data-freshness=stale]")
    assert page.locator(".badge.training").count() == 0
    _wait_disabled(page, "Pause", "Checkpoint")
    assert page.get_by_role("button", name="Stop").is_enabled(), "the controller still notes it"
    page.goto(f"{_url(system)}/inject?run={run.id}&devices=3")
    page.wait_for_selector("text=The engine has been silent since")
    _wait_disabled(page, "Clear all", "Inject 2.57")


def test_a_killed_controller_is_said_before_the_engine_is_blamed(
    system: LocalSystem, training: Callable[[], RunView], page: Any
) -> None:
    run = training()
    _open_and_unlock(page, system, run)
    page.evaluate(
        """() => {
            window.blamed = false;
            const look = () => window.blamed ||= document.body.innerText.includes("The engine has been silent");
            new MutationObserver(look).observe(document.body, {childList: true, subtree: true, characterData: true});
        }"""
    )
    os.kill(heartbeats.all_beats(system.store)["controller"].pid, signal.SIGKILL)
    killed_at = time.monotonic()
    page.wait_for_selector("text=The controller has been silent for")
    print(f"said after {time.monotonic() - killed_at:.1f} s")
    page.wait_for_selector("[data-freshness=stale]")
    assert not page.evaluate("window.blamed")
    _wait_disabled(page, "Pause", "Checkpoint", "Stop")
    system.watch()  # as `malleus up` does: it is started again, and catches up
    page.wait_for_selector("[data-freshness=fresh]")
    page.wait_for_selector("button:has-text('Pause'):not([disabled])")


def _open_and_unlock(page: Any, system: LocalSystem, run: RunView) -> None:
    page.goto(f"{_url(system)}/live?run={run.id}")
    page.wait_for_selector("[data-freshness=fresh]")
    unlock(page, "grace")
    page.wait_for_selector("button:has-text('Pause'):not([disabled])")


def _wait_disabled(page: Any, *names: str) -> None:
    for name in names:
        page.wait_for_selector(f"button:has-text('{name}')[disabled]")


def _url(system: LocalSystem) -> str:
    return f"http://127.0.0.1:{system.settings.port}"


def _wait(seconds: float) -> bool:
    time.sleep(seconds)
    return False
