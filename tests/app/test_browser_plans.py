"""The Plans page in a real browser, on a whole local system with a scripted engine.

Broker, worker, controller and dashboard are the real ones; the engine is one process that obeys the desired document.
A person approves a plan with a reason, compares, downloads, replays and rolls back; every step ends in what the
engine reported.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.local.system import LocalSystem
from app.local.trainer import Trainer
from db import audit, commands, plans, runs
from db.run_config import ClusterConfig, ControlConfig, ModelConfig, ParallelConfig, RunConfig, TrainConfig
from db.settings import Settings
from db.store import Store
from planner.plan import even_plan
from tests.app.local_world import free_port, scripted, wait_for
from tests.app.seeded_world import TOKEN, unlock

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
WAIT_S = 60.0

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium or Chrome on the PATH"),
]


@dataclass
class World:
    """A system with a run in manual mode, one of whose devices is slow."""

    url: str
    store: Store
    run: int


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("home")
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("MALLEUS_")]:
            patch.delenv(name)
        patch.setenv("MALLEUS_TOKEN", TOKEN)
        settings = Settings.from_env({"MALLEUS_HOME": str(home), "MALLEUS_PORT": str(port), "MALLEUS_TOKEN": TOKEN})
        with LocalSystem(settings, has_dashboard=True, say=print, wait=_wait) as system:
            config = _config()
            run = runs.create(system.store, config, plan=_first_plan(config).to_json(), actor="ada")
            trainer = Trainer(system.store, settings, run, engine=scripted())
            try:
                wait_for(lambda: runs.get(system.store, run.id).status == "training", "it trains", WAIT_S)
                commands.submit(
                    system.store,
                    run.id,
                    "inject",
                    {"devices": [3], "rate": 2.57, "for_s": None},
                    actor="ada",
                    source="test",
                )
                wait_for(lambda: _statuses(system.store, run.id).get(2) == "ready", "a plan is ready", WAIT_S)
                yield World(url=f"http://127.0.0.1:{port}", store=system.store, run=run.id)
            finally:
                trainer.kill()


@pytest.fixture(scope="module")
def page(world: World) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        opened = browser.new_context(viewport={"width": 1440, "height": 1000}, accept_downloads=True).new_page()
        opened.set_default_timeout(WAIT_S * 1000)
        opened.goto(f"{world.url}/plans?run={world.run}")
        unlock(opened, "grace")
        yield opened
        browser.close()


def test_a_plan_is_approved_with_a_reason_and_becomes_active(world: World, page: Any) -> None:
    page.wait_for_selector("text=If the job moves to it now")
    page.get_by_role("textbox", name="Reason").fill("the night is long")
    page.get_by_role("textbox", name="Reason").press("Enter")
    page.get_by_role("button", name="Approve", exact=False).first.click()
    page.wait_for_selector("text=Reason: the night is long")
    page.get_by_role("button", name="Yes, approve").click()
    page.wait_for_selector("text=applied at step")
    wait_for(lambda: _statuses(world.store, world.run)[2] == "active", "the plan is active", WAIT_S)
    plan = plans.get(world.store, world.run, 2)
    assert (plan.decided_by, plan.decided_reason) == ("grace", "the night is long")
    assert "the night is long" in [
        entry.detail.get("decided_reason") for entry in audit.of_target(world.store, world.run, "plan 2")
    ]
    page.wait_for_selector("td .badge.plan-active")


def test_two_ticked_rows_are_compared_and_survive_a_reload(world: World, page: Any) -> None:
    page.goto(f"{world.url}/plans?run={world.run}")
    page.locator("button.tick-box[data-pick='2']").click()
    page.wait_for_url("**version=2")
    page.locator("button.tick-box[data-pick='1']").click()
    page.wait_for_selector("text=Plan v1 → v2")
    page.wait_for_selector(".arrow")
    page.reload()
    page.wait_for_selector(".arrow")
    page.wait_for_selector("i.moved.new")
    assert "diff=" in page.url


def test_the_list_is_downloaded_as_it_is_filtered(world: World, page: Any) -> None:
    page.goto(f"{world.url}/plans?run={world.run}&status=active,superseded")
    page.wait_for_selector("text=plans selected")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="CSV").click()
    rows = list(csv.DictReader(io.StringIO(Path(waiting.value.path()).read_text())))
    assert [(row["version"], row["status"]) for row in rows] == [("2", "active"), ("1", "superseded")]
    assert rows[0]["decided_reason"] == "the night is long"
    assert rows[0]["bytes_moved"] == "1000"


def test_a_bundle_is_downloaded_and_replayed(world: World, page: Any, tmp_path: Path) -> None:
    page.goto(f"{world.url}/plans?run={world.run}&version=2")
    page.wait_for_selector("text=digests equal")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Bundle").click()
    file = tmp_path / "bundle.json"
    shutil.copy(waiting.value.path(), file)
    page.goto(f"{world.url}/plans?run={world.run}&view=replay")
    unlock(page, "grace")
    page.wait_for_selector("text=Replay this plan")
    page.locator("input[type=file]").set_input_files(str(file))
    page.get_by_role("button", name="Replay bundle.json").click()
    page.wait_for_selector(".replay.same")
    document = json.loads(file.read_text())
    document["answer"]["bound_s"] *= 2
    (tmp_path / "forged.json").write_text(json.dumps(document))
    page.locator("input[type=file]").set_input_files(str(tmp_path / "forged.json"))
    page.get_by_role("button", name="Replay forged.json").click()
    page.wait_for_selector(".replay.different")
    assert page.locator(".replay.different").count() == 1


def test_a_roll_back_is_a_new_version_that_says_where_it_returns(world: World, page: Any) -> None:
    page.goto(f"{world.url}/plans?run={world.run}&version=1")
    unlock(page, "grace")
    page.wait_for_selector("text=If the job moves to it now")
    page.get_by_role("textbox", name="Reason").fill("calmer")
    page.get_by_role("textbox", name="Reason").press("Enter")
    page.get_by_role("button", name="Roll back to this plan", exact=False).first.click()
    page.wait_for_selector("text=becomes a new version")
    page.wait_for_selector("text=Reason: calmer")
    page.get_by_role("button", name="Yes, roll back").click()
    page.wait_for_selector("text=back to v1")

    def returned() -> bool:
        newest = plans.all_plans(world.store, world.run, limit=1)[0]
        return (newest.trigger, newest.parent, newest.status, newest.decided_reason) == (
            "rollback", 1, "active", "calmer",
        )  # fmt: skip

    wait_for(returned, "the run is back on its first plan", WAIT_S)


def _config() -> RunConfig:
    return RunConfig(
        name="manual",
        model=ModelConfig(num_layers=16),
        train=TrainConfig(global_batch=16, num_steps=100_000),
        cluster=ClusterConfig(num_nodes=2, devices_per_node=4),
        parallel=ParallelConfig(dp=2, tp=2, pp=2, max_tp=4, max_dp=4),
        control=ControlConfig(mode="manual"),
    )


def _first_plan(config: RunConfig) -> Any:
    parallel = config.parallel
    return even_plan(
        config.nodes,
        num_layers=config.model.num_layers,
        num_micro_batches=config.train.global_batch,
        micro_batch_size=1,
        dp_degree=parallel.dp,
        tp_degree=parallel.tp,
        pp_degree=parallel.pp,
    )


def _statuses(store: Store, run: int) -> dict[int, str]:
    return {plan.version: plan.status for plan in plans.all_plans(store, run)}


def _wait(timeout_s: float) -> bool:
    time.sleep(timeout_s)
    return False
