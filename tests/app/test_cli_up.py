"""`malleus up` with its real parts: it comes up, heals, refuses a second one, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.local_world import free_port, processes_of, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


class _Up:
    """One `malleus up` and what it printed."""

    def __init__(self, home: Path, port: int, **environment: str) -> None:
        self.home, self.port = home, port
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MALLEUS_")},
            "MALLEUS_HOME": str(home),
            "MALLEUS_PORT": str(port),
            **environment,
        }
        self._out = home.parent / f"{home.name}.out"
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "app.cli", "up"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    def wait_until_up(self) -> None:
        wait_for(lambda: "Ctrl-C" in self.out or self.process.poll() is not None, "malleus up comes up", 120.0)
        assert self.process.poll() is None, self.out

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "app.cli", *arguments]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )

    def pid_of(self, what: str) -> int:
        return next(pid for pid, line in processes_of(self.home).items() if what in line and "keeper.py" not in line)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[_Up]:
    (tmp_path / "home").mkdir()
    running = _Up(tmp_path / "home", free_port())
    yield running
    running.process.kill()
    running.process.wait()
    wait_for(lambda: not processes_of(running.home), "all parts end")


def test_up_and_down(up: _Up) -> None:
    up.wait_until_up()
    assert f"dashboard    http://127.0.0.1:{up.port}" in up.out
    token = re.search(r"write token  (\S+)", up.out)
    assert token is not None
    assert (up.home / "token").read_text() == token[1]
    with urllib.request.urlopen(f"http://127.0.0.1:{up.port}/_stcore/health") as answer:
        assert answer.status == 200

    second = up.call("up")
    assert second.returncode == 2
    assert second.stderr.startswith(f"malleus: Malleus already runs in {up.home} (process {up.process.pid})")
    assert second.stderr.count("\n") == 1
    assert second.stdout == ""

    checks = {check["name"]: check["state"] for check in json.loads(up.call("doctor", "--json").stdout)}
    assert {state for name, state in checks.items() if name != "gpus"} == {"ok"}, checks

    os.kill(up.pid_of("planner.controller"), signal.SIGKILL)
    wait_for(lambda: "the controller ended with status 137" in up.out, "the restart is told")
    assert "starting it again (1 of 5)" in up.out
    wait_for(lambda: any("planner.controller" in line for line in processes_of(up.home).values()), "it runs again")

    up.process.send_signal(signal.SIGTERM)
    assert up.process.wait(60.0) == 0
    assert not processes_of(up.home)
    assert not (up.home / "broker.json").exists()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", up.port))
    secrets = [token[1]]
    for log in (up.home / "logs").iterdir():
        assert not any(secret in log.read_text(errors="replace") for secret in secrets)


def test_all_parts_die_with_up_and_the_home_can_be_used_again(up: _Up) -> None:
    up.wait_until_up()
    up.process.kill()
    up.process.wait()
    wait_for(lambda: not processes_of(up.home), "all parts end")
    again = _Up(up.home, up.port)
    try:
        again.wait_until_up()
        again.process.send_signal(signal.SIGINT)
        assert again.process.wait(60.0) == 0
    finally:
        again.process.kill()
        again.process.wait()


def test_a_taken_port_is_one_line_and_nothing_started(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        (tmp_path / "home").mkdir()
        refused = _Up(tmp_path / "home", port)
        assert refused.process.wait(60.0) == 2
    assert refused.out == (
        f"malleus: port {port} on 127.0.0.1 is taken: expected a free one, choose it with --port or MALLEUS_PORT\n"
    )
    assert not processes_of(refused.home)
    assert not list(refused.home.glob("malleus.db*"))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"MALLEUS_REDIS_URL": "redis://:secret@127.0.0.1:1/0"}, "malleus: broker redis://127.0.0.1:1/0: "),
        ({"MALLEUS_REDIS_URL": "http://127.0.0.1"}, "malleus: the broker URL must be redis://"),
        ({"MALLEUS_DATABASE_URL": "postgresql://me:secret@127.0.0.1:1/none"}, "malleus: cannot open postgresql"),
        ({"MALLEUS_DATABASE_URL": "nonsense"}, "malleus: the database URL must be sqlite:///path or postgresql://"),
        ({"MALLEUS_PORT": "high"}, "malleus: MALLEUS_PORT must be a port from 1 to 65535, given 'high'"),
        ({"MALLEUS_HOME": "/dev/null"}, "malleus: the data folder must be writable (MALLEUS_HOME), given /dev/null"),
        ({"MALLEUS_HOST": "192.0.2.1"}, "malleus: cannot listen on 192.0.2.1"),
    ],
)
def test_bad_surroundings_are_one_line_and_status_2(tmp_path: Path, environment: dict[str, str], expected: str) -> None:
    (tmp_path / "home").mkdir()
    refused = _Up(tmp_path / "home", free_port(), **environment)
    assert refused.process.wait(60.0) == 2
    assert refused.out.startswith(expected)
    assert refused.out.count("\n") == 1
    assert "secret" not in refused.out
    assert not processes_of(refused.home)
