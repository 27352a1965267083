"""Controller and worker as processes, on the embedded broker: the loop end to end with a scripted engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from db import commands, episodes, heartbeats, history, plans, runs
from db.broker import EmbeddedBroker
from db.bus import Bus
from db.messages import Desired, State, Telemetry, utc_now
from db.run_config import RunConfig
from db.store import Store
from tests.planner.control_rig import FakeEngine, create_run

WORKER = ["-m", "celery", "-A", "planner.worker", "worker", "--concurrency", "1", "--loglevel", "INFO"]
CONTROLLER = ["-m", "planner.controller"]
LIMIT_S = 60.0


class _Documents(dict[int, Desired]):
    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def __missing__(self, run: int) -> Desired:
        document = self._bus.read_desired(run)
        assert document is not None
        return document


class LiveBus:
    """The bus as `FakeEngine` knows it, on a real broker."""

    def __init__(self, url: str) -> None:
        self.bus = Bus(url)

    @property
    def documents(self) -> dict[int, Desired]:
        return _Documents(self.bus)

    def send(self, message: Telemetry) -> None:
        self.bus.send(message)


class Now:
    """The clock as `FakeEngine` knows it."""

    now = staticmethod(utc_now)


class System:
    """Broker, worker and controller of one data folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.store = Store.open(f"sqlite:///{home / 'malleus.db'}", migrate=True)
        self.broker = EmbeddedBroker(home)
        self.url = self.broker.start()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MALLEUS_")}
        with (self.home / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *arguments],
                env={**kept, "MALLEUS_HOME": str(self.home)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self.processes[name]

    def log(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text()

    def stop(self) -> dict[str, int]:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        codes = {name: process.wait(30) for name, process in self.processes.items()}
        self.broker.stop()
        self.store.close()
        return codes


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path)
    try:
        yield system
    finally:
        for process in system.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()
        system.broker.stop()
        system.store.close()


def until(condition: Callable[[], Any], act: Callable[[], None]) -> None:
    """Acts until the condition holds; fails after a deadline."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        act()


def test_the_whole_loop(system: System) -> None:
    store = system.store
    system.start("worker", WORKER)
    system.start("controller", CONTROLLER)
    run = create_run(store, RunConfig()).id
    live = LiveBus(system.url)
    engine = FakeEngine(live, run, Now())  # type: ignore[arg-type]

    def pause() -> None:
        live.bus.wait_desired_change(run, 0.05)

    def step() -> None:
        engine.take_step()
        pause()

    def status(version: int) -> str:
        return next((plan.status for plan in plans.all_plans(store, run) if plan.version == version), "")

    until(lambda: live.bus.read_desired(run) and "worker" in heartbeats.all_beats(store), pause)
    engine.start()
    until(lambda: engine.step >= 8, step)
    command = commands.submit(store, run, "inject", {"devices": [3], "rate": 2.57}, actor="ann", source="cli")
    until(lambda: status(2) == "active", step)
    plan = plans.get(store, run, 2)
    assert plan.worker.startswith("worker@")
    assert plan.rates[3] == 2.57
    assert commands.get(store, command.id).status == "applied"
    assert [episode.device for episode in episodes.all_episodes(store, run)] == [3]
    assert [switch.outcome for switch in history.switches(store, run)] == ["applied"]

    # a second controller waits for the first and then steps aside
    second = system.start("second", CONTROLLER)
    until(lambda: second.poll() is not None, step)
    assert second.returncode == 2
    assert len(system.log("second").strip().splitlines()) == 1
    assert "another controller acts" in system.log("second")
    del system.processes["second"]

    # a killed controller is replaced at once and goes on
    system.processes["controller"].kill()
    system.processes["controller"].wait()
    system.start("controller", CONTROLLER)
    commands.submit(store, run, "clear", {}, actor="ann", source="cli")
    until(lambda: status(3) == "active", step)

    commands.submit(store, run, "stop", {}, actor="ann", source="cli")
    until(lambda: live.documents[run].stop, pause)
    engine.obey()
    engine.send(State, state="stopped", step=engine.step)
    until(lambda: runs.get(store, run).status == "stopped", pause)
    until(lambda: not any(episode.is_open for episode in episodes.all_episodes(store, run)), pause)
    assert history.steps(store, run)[-1].step == engine.step - 1
    live.bus.close()
    assert system.stop() == {"worker": 0, "controller": 0}
    assert "Traceback" not in system.log("controller") + system.log("worker")


def test_a_broker_that_moves_is_followed(system: System) -> None:
    system.start("controller", CONTROLLER)
    run = create_run(system.store, RunConfig()).id
    pause = threading.Event()

    def wait() -> None:
        pause.wait(0.02)

    with Bus(system.url) as bus:
        until(lambda: bus.read_desired(run), wait)
    system.broker.stop()
    until(lambda: "the broker is away" in system.log("controller"), wait)
    with Bus(system.broker.start()) as bus:  # another port, another password, nothing in it
        until(lambda: bus.read_desired(run), wait)
    assert system.stop() == {"controller": 0}
    said = [line.split("loop: ")[1] for line in system.log("controller").splitlines() if "loop: the broker" in line]
    assert [line.split(",")[0] for line in said] == ["the broker is away", "the broker is back"]
    assert "Traceback" not in system.log("controller")
