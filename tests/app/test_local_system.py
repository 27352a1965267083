"""A local system heals a bounded number of times: broker, worker and controller."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from app.errors import LocalError
from app.local import system as module
from app.local.system import LocalSystem
from db.bus import Bus
from db.heartbeats import all_beats
from db.messages import utc_now
from db.settings import Settings
from tests.app.local_world import processes_of, wait_for


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in [name for name in os.environ if name.startswith("MALLEUS_")]:
        monkeypatch.delenv(name)
    return Settings.from_env({"MALLEUS_HOME": str(tmp_path)})


def test_it_heals_and_gives_up(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with LocalSystem(settings, has_dashboard=False, say=said.append, wait=_wait) as system:
        system.watch()
        assert said == []

        _kill(settings, "valkey-server")
        wait_for(lambda: _watched(system, said) == 1, "the broker's end is noticed")
        assert said == ["the broker ended; starting it again (1 of 5)"]
        with Bus(settings.broker_url()) as bus:  # at its new address
            assert bus.ping() >= 0
        healed_at = utc_now()
        wait_for(
            lambda: all(all_beats(system.store)[name].at > healed_at for name in ("worker", "controller")),
            "worker and controller hear the new broker",
        )

        _kill(settings, "celery")
        wait_for(lambda: _watched(system, said) == 2, "the worker's end is noticed")
        assert said[1].startswith(f"the worker ended with status 137, see {settings.home}/logs/worker.log; starting")

        monkeypatch.setattr(module, "MAX_RESTARTS", 1)
        _kill(settings, "celery")
        with pytest.raises(LocalError, match=r"the worker ended with status 137, .* after 1 restarts: stopping"):
            wait_for(lambda: _watched(system, said) == 3, "never")
    assert not processes_of(settings.home)
    assert not (settings.home / "broker.json").exists()


def test_a_request_to_stop_while_parts_are_starting(settings: Settings) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        LocalSystem(settings, has_dashboard=False, say=print, wait=lambda _: True),
    ):
        pass
    assert not processes_of(settings.home)


def test_a_part_that_ends_at_once_is_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.commands.controller

    def broken(of: Settings) -> module.Command:
        command = real(of)
        return module.Command(
            name=command.name,
            argv=["/bin/sh", "-c", "echo no luck; exit 4"],
            environment=command.environment,
            folder=command.folder,
            log=command.log,
        )

    monkeypatch.setattr(module.commands, "controller", broken)
    with (
        pytest.raises(LocalError, match="the controller ended at once with status 4: no luck"),
        LocalSystem(settings, has_dashboard=False, say=print, wait=_wait),
    ):
        pass
    assert not processes_of(settings.home)


def _watched(system: LocalSystem, said: list[str]) -> int:
    system.watch()
    return len(said)


def _kill(settings: Settings, what: str) -> None:
    """Kills a part. The broker names its process id itself."""
    if what == "valkey-server":
        pid = json.loads((settings.home / "broker.json").read_text())["pid"]
    else:
        wait_for(lambda: _pid(settings, what), f"{what} runs")
        pid = _pid(settings, what)
    os.kill(pid, signal.SIGKILL)


def _pid(settings: Settings, what: str) -> int | None:
    found = [pid for pid, line in processes_of(settings.home).items() if what in line and "keeper.py" not in line]
    return found[0] if found else None


def _wait(timeout_s: float) -> bool:
    time.sleep(timeout_s)
    return False
