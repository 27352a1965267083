"""The demo with its real broker, worker and controller, and a scripted engine that knows the cost model."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from app import demo
from app.cli import main
from app.demo import DemoOptions, configuration, run_headless, run_viewed
from app.local.lock import HomeLock
from app.situations import DESCRIPTIONS, stragglers
from db import commands, history, plans, runs
from db.errors import InputError
from db.run_config import RunConfig
from db.settings import Settings
from db.store import Store
from tests.app.local_world import free_port, processes_of, scripted, wait_for

NODES = ((0, 1, 2, 3), (4, 5, 6, 7))
FIELDS = [
    "run",
    "plans_applied",
    "healthy_step_s",
    "straggling_step_s",
    "recovered_step_s",
    "bound_step_s",
    "efficiency",
    "detect_s",
    "plan_s",
    "switch_s",
    "bytes_moved",
    "digests_equal",
    "samples_consumed",
    "loss_first",
    "loss_last",
]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in [name for name in os.environ if name.startswith("MALLEUS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MALLEUS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MALLEUS_PORT", str(free_port()))
    return Settings.from_env()


def test_twice_in_a_row_with_and_without_a_new_plan(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same straggler: absorbed by a plan, then costing what it costs."""
    monkeypatch.setattr(demo, "run_headless", _with_scripted_engine)
    assert main(["demo", "--headless", "--json"]) == 0
    captured = capsys.readouterr()
    figures = json.loads(captured.out)
    assert list(figures) == FIELDS
    assert figures["run"] == 1
    assert figures["plans_applied"] >= 1
    assert figures["healthy_step_s"] < figures["recovered_step_s"] < figures["straggling_step_s"]
    assert figures["recovered_step_s"] <= 1.25 * figures["bound_step_s"]
    assert figures["efficiency"] == pytest.approx(figures["bound_step_s"] / figures["recovered_step_s"])
    assert figures["digests_equal"] is True
    assert figures["bytes_moved"] == 1000 * figures["plans_applied"]
    assert all(figures[name] >= 0 for name in ("detect_s", "plan_s", "switch_s"))
    assert figures["loss_last"] < figures["loss_first"]
    assert "device 3 turns 2.57x slow" in captured.err

    assert main(["demo", "--headless", "--json", "--no-replan"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["run"], figures["plans_applied"]) == (2, 0)
    assert figures["straggling_step_s"] >= 1.8 * figures["healthy_step_s"]
    assert figures["recovered_step_s"] is None
    assert figures["efficiency"] is None
    assert figures["digests_equal"] is None

    assert not processes_of(settings.home)
    assert not (settings.home / "broker.json").exists()
    with Store.open(settings.database_url) as store:
        assert [run.status for run in runs.all_runs(store)] == ["stopped", "stopped"]
        assert history.steps(store, 1)[-1].samples[1] > 0
        kinds = [command.kind for command in commands.recent(store, 1, 10)]
        assert kinds == ["stop", "inject"]  # newest first; the same path as a person's
        assert {plan.status for plan in plans.all_plans(store, 1)} >= {"active", "superseded"}


def test_figures_for_people(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a straggler nothing moves; 4 devices, told as a table."""
    monkeypatch.setattr(demo, "run_headless", _with_scripted_engine)
    assert main(["demo", "--headless", "--situation", "s0", "--devices", "4"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert list(lines) == FIELDS
    assert lines["plans_applied"] == "0"
    assert lines["straggling_step_s"] == "-"
    assert lines["recovered_step_s"].endswith("ms")


def test_a_run_that_ends_too_soon_has_not_recovered(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "run_headless", _with_scripted_engine)
    assert main(["demo", "--headless", "--json", "--steps", "5"]) == 1
    figures = json.loads(capsys.readouterr().out)
    assert figures["recovered_step_s"] is None
    assert figures["samples_consumed"] == 80


def test_an_engine_that_dies_is_one_line_and_status_1(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*arguments: object, **named: object) -> object:
        return run_headless(*arguments, **(named | {"engine": scripted("exit=9")}))  # type: ignore[arg-type]

    monkeypatch.setattr(demo, "run_headless", failing)
    assert main(["demo", "--headless", "--json"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    error = captured.err.splitlines()[-1]
    assert error.startswith("malleus: run 1 failed: the engine exited with status 9; see ")
    assert not processes_of(settings.home)


def test_interrupted_it_stops_everything(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "run_headless", _with_scripted_engine)

    def interrupt() -> None:
        wait_for(lambda: _last_step(settings) >= 2, "it trains")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    assert main(["demo", "--headless", "--json"]) == 130
    assert not processes_of(settings.home)
    with Store.open(settings.database_url) as store:
        assert runs.get(store, 1).status == "stopped"


def test_for_a_viewer_the_straggler_comes_and_goes(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dashboard answers before the run starts; after recovery the injection is cleared by a command."""
    monkeypatch.setattr(demo, "VIEWING_STEPS", 10)
    said: list[str] = []

    def leave() -> None:
        wait_for(lambda: "the stragglers are gone" in said, "the story is told", 120.0)
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: any("stopped" in line for line in said), "the run stops")
        os.kill(os.getpid(), signal.SIGTERM)

    leaving = threading.Thread(target=leave)
    leaving.start()
    run_viewed(
        settings, DemoOptions(), say=said.append, greet=lambda: said.append("greeted"), actor="test", engine=scripted()
    )
    leaving.join()
    assert said[0] == "greeted"
    assert any(line.startswith("recovered: ") for line in said)
    with Store.open(settings.database_url) as store:
        kinds = [command.kind for command in commands.recent(store, 1, 10)]
    assert kinds == ["stop", "clear", "inject"]
    assert not processes_of(settings.home)


def test_a_home_in_use_is_refused(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    lock = HomeLock(settings.home)
    try:
        assert main(["demo", "--headless"]) == 2
    finally:
        lock.release()
    assert capsys.readouterr().err.startswith("malleus: Malleus already runs in ")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--json"], "--json needs --headless"),
        (["--headless", "--devices", "5"], "--devices must be one of 4, 8, 16, given 5"),
        (["--headless", "--situation", "S9"], "situation must be one of S0, S1, S2, S3, S4, S5, S6, given S9"),
        (["--headless", "--steps", "0"], "--steps"),
        (["--port", "70000"], "--port"),
    ],
)
def test_bad_options_start_nothing(
    settings: Settings, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert main(["demo", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("malleus: ")
    assert error.count("\n") == 1
    assert expected in error
    assert not settings.home.exists()


def test_the_preset_is_the_default_run() -> None:
    config, _ = configuration(DemoOptions())
    assert config == RunConfig(name="demo")


@pytest.mark.parametrize("num_devices", [4, 8, 16])
def test_every_size_has_a_first_plan(num_devices: int) -> None:
    from app.local.trainer import first_plan

    config, _ = configuration(DemoOptions(num_devices=num_devices, num_steps=7, is_replanning=False))
    assert (config.num_devices, config.train.num_steps, config.control.mode) == (num_devices, 7, "off")
    pipelines = first_plan(config)["pipelines"]
    assert sum(len(stage["devices"]) for pipeline in pipelines for stage in pipeline["stages"]) == num_devices


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("S0", {}),
        ("S1", {3: 2.57}),
        ("S2", {3: 5.42}),
        ("S3", {3: 2.57, 7: 5.42}),
        ("S4", {3: 2.57, 7: 3.75, 2: 5.42}),  # as many nodes as there are
        ("S5", {0: 2.57, 1: 2.57, 2: 2.57, 3: 2.57}),
        ("S6", {3: 3.75, 2: 12.53, 7: 2.57}),
    ],
)
def test_situations(name: str, expected: dict[int, float]) -> None:
    assert {straggler.device: straggler.rate for straggler in stragglers(name, NODES)} == expected


def test_situations_on_three_nodes_and_on_too_few() -> None:
    nodes = ((0, 1), (2, 3), (4, 5))
    assert {straggler.device for straggler in stragglers("S4", nodes)} == {1, 3, 5}
    with pytest.raises(InputError, match="S3 needs at least 2 nodes, given 1"):
        stragglers("S3", ((0, 1),))
    with pytest.raises(InputError, match="S6 needs at least 2 devices on a node, given 1"):
        stragglers("S6", ((0,), (1,)))
    assert all(stragglers(name, NODES) for name in DESCRIPTIONS if name != "S0")


def _with_scripted_engine(*arguments: object, **named: object) -> object:
    return run_headless(*arguments, **(named | {"engine": scripted()}))  # type: ignore[arg-type]


def _last_step(settings: Settings) -> int:
    try:
        with Store.open(settings.database_url) as store:
            newest = runs.all_runs(store)
            return (newest[0].step or 0) if newest else 0
    except RuntimeError:
        time.sleep(0.2)
        return 0
