"""The whole loop through its real processes: broker, Celery worker, controller, torchrun and its ranks.

A small model and few devices; how long anything takes is not asserted here (see bench/demo.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import demo
from app.demo import DemoOptions, run_headless
from app.story_figures import Figures
from db import audit, commands, episodes, history, plans, runs
from db.settings import Settings
from db.store import Store
from planner.plan import Plan
from planner.spec import ClusterSpec
from planner.validate import violations

PRESET = """
name = "end to end"
[model]
num_layers = 8
[train]
global_batch = 8
num_steps = 300
[cluster]
memory_bytes = 1e9
[device]
layer_s = 0.03
"""
STRAGGLER = 1


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, Figures]:
    """Situation S1 on 4 devices, from the first step to the last."""
    folder = tmp_path_factory.mktemp("end_to_end")
    preset = folder / "preset.toml"
    preset.write_text(PRESET)
    settings = Settings.from_env({"MALLEUS_HOME": str(folder / "home")})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "PRESET", preset)
        figures = run_headless(settings, DemoOptions(num_devices=4, situation="S1"), say=print, actor="tester")
    return settings, figures


@pytest.fixture
def store(told: tuple[Settings, Figures]) -> Iterator[Store]:
    with Store.open(told[0].database_url) as opened:
        yield opened


def test_the_job_moved_and_lost_nothing(told: tuple[Settings, Figures]) -> None:
    figures = told[1]
    assert figures.plans_applied >= 1
    assert figures.digests_equal
    assert figures.bytes_moved > 0
    assert figures.samples_consumed
    assert figures.loss_first is not None
    assert figures.loss_last is not None
    assert figures.loss_last < figures.loss_first


def test_the_story_can_be_read_back_from_sql(told: tuple[Settings, Figures], store: Store) -> None:
    run = runs.get(store, told[1].run)
    assert run.status == "stopped"
    inject = next(command for command in commands.recent(store, run.id, 10) if command.kind == "inject")
    assert (inject.status, inject.arguments["devices"]) == ("applied", [STRAGGLER])
    assert inject.applied_step is not None
    episode = next(item for item in episodes.all_episodes(store, run.id) if item.device == STRAGGLER)
    assert episode.cause == "device"
    assert episode.start_step >= inject.applied_step
    first, *later = reversed(plans.all_plans(store, run.id))
    assert first.status == "superseded"
    active = next(plan for plan in later if plan.status == "active")
    assert active.rates[STRAGGLER] == pytest.approx(2.57, rel=0.1)
    assert active.requested_by == "controller"
    assert active.document is not None
    cluster = ClusterSpec(nodes=run.config.nodes, memory_bytes=dict.fromkeys(range(4), 1e9))
    assert violations(Plan.from_json(active.document), cluster=cluster, num_layers=8, global_batch=8) == []
    switch = next(item for item in history.switches(store, run.id) if item.plan_version == active.version)
    assert (switch.outcome, switch.digests_equal) == ("applied", True)
    steps = history.steps(store, run.id)
    assert [step.step for step in steps] == list(range(len(steps)))
    assert {step.plan_version for step in steps} >= {first.version, active.version}
    actions = {entry.action for entry in audit.entries(store, run.id, limit=1000)}
    assert "plan.switch" in actions


def test_nothing_is_left_behind(told: tuple[Settings, Figures]) -> None:
    home = str(told[0].home)
    assert not (told[0].home / "broker.json").exists()
    deadline = time.monotonic() + 20
    while processes_of(home) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_of(home) == []


def processes_of(home: str) -> list[str]:
    """Command lines of the processes that were started for this data folder."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = f"MALLEUS_HOME={home}\0".encode() in (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if is_ours and command:
            found.append(command)
    return found
