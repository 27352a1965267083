"""Local processes: nothing outlives its owner, one system a data folder, ports are checked first."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from app.local.environment import absolute_url, child_environment
from app.local.lock import HomeLock, holder
from app.local.part import Command, Part, stop_all
from app.local.port import answers, check_free
from app.local.run_file import to_toml
from app.local.stop_signals import StopSignals
from db.errors import InputError
from db.run_config import RunConfig
from db.settings import Settings

# A command that starts a grandchild in a session of its own (as torchrun does) and writes both ids.
FAMILY = """
import os, signal, subprocess, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = subprocess.Popen(["sleep", "600"], start_new_session=True)
with open("pids.new", "w") as file:
    file.write(f"{os.getpid()} {grandchild.pid}")
os.rename("pids.new", "pids")
time.sleep(600)
"""


def test_a_part_ends_with_its_exit_status_and_its_log(tmp_path: Path) -> None:
    part = Part(_command(tmp_path, "import sys; print('last words'); sys.exit(3)"))
    _wait_for(lambda: part.exit_code is not None)
    assert part.exit_code == 3
    assert part.last_lines() == "last words"


def test_a_command_that_cannot_start_says_so(tmp_path: Path) -> None:
    part = Part(_command(tmp_path, "", program="/nowhere/program"))
    _wait_for(lambda: part.exit_code is not None)
    assert part.exit_code == 127
    assert "/nowhere/program" in part.last_lines()


def test_stopping_ends_the_command_and_what_left_its_group(tmp_path: Path) -> None:
    part = Part(_command(tmp_path, FAMILY))
    pids = _family(tmp_path)
    assert part.stop() == 128 + signal.SIGTERM
    _wait_for(lambda: not any(map(_is_alive, pids)))


def test_a_run_in_the_background_outlives_who_started_it(tmp_path: Path) -> None:
    """The page Runs starts trainers under the dashboard's keeper; what such a trainer started itself lives on too."""
    trainer = "import subprocess, sys; subprocess.run(['sleep', '600'])"
    background = f"[sys.executable, '-c', {trainer!r}, 'app.local.trainer']"
    family = FAMILY.replace('["sleep", "600"]', background)
    part = Part(_command(tmp_path, family))
    command, kept = _family(tmp_path)
    try:
        _wait_for(lambda: _children(kept))
        (sleeper,) = _children(kept)
        assert part.stop() == 128 + signal.SIGTERM
        _wait_for(lambda: not _is_alive(command))
        assert _is_alive(kept)
        assert _is_alive(sleeper)
    finally:
        os.killpg(kept, signal.SIGKILL)


def test_a_command_that_ignores_sigterm_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    part = Part(_command(tmp_path, FAMILY, "deaf", grace_s=0.2))
    pids = _family(tmp_path)
    assert part.stop() == 128 + signal.SIGKILL
    _wait_for(lambda: not any(map(_is_alive, pids)))


def test_kill_does_not_wait_for_the_grace_time(tmp_path: Path) -> None:
    part = Part(_command(tmp_path, FAMILY, "deaf", grace_s=600.0))
    pids = _family(tmp_path)
    assert part.kill() == 128 + signal.SIGKILL
    _wait_for(lambda: not any(map(_is_alive, pids)))


def test_what_a_command_leaves_behind_when_it_ends_is_ended(tmp_path: Path) -> None:
    part = Part(_command(tmp_path, FAMILY.replace("time.sleep(600)", "")))
    pids = _family(tmp_path)
    _wait_for(lambda: part.exit_code is not None)
    assert part.exit_code == 0
    _wait_for(lambda: not any(map(_is_alive, pids)))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and a subreaper")
def test_all_die_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", _owner(tmp_path)], start_new_session=True, stdin=subprocess.DEVNULL)
    try:
        pids = _family(tmp_path)
    finally:
        owner.kill()
        owner.wait()
    _wait_for(lambda: not any(map(_is_alive, pids)))


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_the_command_dies_even_if_its_keeper_is_killed(tmp_path: Path) -> None:
    part = Part(_command(tmp_path, FAMILY, "deaf"))
    child, grandchild = _family(tmp_path)
    try:
        os.kill(part._keeper.pid, signal.SIGKILL)
        _wait_for(lambda: not _is_alive(child))
        assert part.stop() == 128 + signal.SIGKILL
    finally:
        os.kill(grandchild, signal.SIGKILL)


def test_parts_stop_side_by_side(tmp_path: Path) -> None:
    parts = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        parts.append(Part(_command(tmp_path / name, FAMILY)))
    pids = [pid for name in ("a", "b") for pid in _family(tmp_path / name)]
    stop_all(parts)
    assert all(part.exit_code is not None for part in parts)
    _wait_for(lambda: not any(map(_is_alive, pids)))


def test_a_home_has_one_system(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    lock = HomeLock(tmp_path)
    assert holder(tmp_path) == os.getpid()
    with pytest.raises(InputError, match=f"already runs in .* \\(process {os.getpid()}\\)"):
        HomeLock(tmp_path)
    lock.release()
    assert holder(tmp_path) is None
    HomeLock(tmp_path).release()


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="must be writable"):
        HomeLock(tmp_path / "file")


def test_a_taken_port_is_refused() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} on 127.0.0.1 is taken"):
            check_free("127.0.0.1", port)
    check_free("127.0.0.1", port)
    assert not answers("127.0.0.1", port, "/")


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(InputError):
        check_free(host, 8501)


def test_a_request_to_stop_is_counted_and_handlers_come_back() -> None:
    former = signal.getsignal(signal.SIGTERM)
    with StopSignals() as signals:
        assert not signals.wait(0.0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.wait(10.0)
        assert signals.count == 1
        assert not signals.wait(0.0)
    assert signal.getsignal(signal.SIGTERM) is former


def test_children_get_addresses_by_environment_only(tmp_path: Path) -> None:
    settings = Settings.from_env({"MALLEUS_HOME": str(tmp_path), "MALLEUS_REDIS_URL": "redis://:secret@host"})
    environment = child_environment(settings)
    assert environment["MALLEUS_HOME"] == str(tmp_path)
    assert environment["MALLEUS_REDIS_URL"] == "redis://:secret@host"
    assert environment["PYTHONSAFEPATH"] == "1"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("sqlite:///relative.db", f"sqlite:///{Path('relative.db').absolute()}"),  # children work elsewhere
        ("sqlite:////absolute.db", "sqlite:////absolute.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("postgresql://user:word@host/name", "postgresql://user:word@host/name"),
    ],
)
def test_a_relative_database_is_made_absolute(given: str, expected: str) -> None:
    assert absolute_url(given) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        'name = "demo: 1.0+x"\n[train]\nlearning_rate = 1e-9\nmicro_batch_sizes = [1, 2, 4]\n',
        '[data]\nsource = "/a \\"quoted\\" back\\\\slash \\u007f ümlaut \U0001f600"\n',
    ],
)
def test_a_configuration_survives_its_toml(text: str) -> None:
    config = RunConfig.from_toml(text)
    assert RunConfig.from_toml(to_toml(config)) == config


def _command(
    folder: Path, script: str, *arguments: str, program: str = sys.executable, grace_s: float = 10.0
) -> Command:
    return Command(
        name="part",
        argv=[program, "-c", script, *arguments],
        environment=dict(os.environ),
        folder=folder,
        log=folder / "logs" / "part.log",
        grace_s=grace_s,
    )


def _owner(folder: Path) -> str:
    return textwrap.dedent(f"""
        import os, pathlib, sys, time
        from app.local.part import Command, Part
        folder = pathlib.Path({str(folder)!r})
        Part(Command(name="part", argv=[sys.executable, "-c", {FAMILY!r}, "deaf"], environment=dict(os.environ),
                     folder=folder, log=folder / "log", grace_s=0.2))
        time.sleep(600)
        """)


def _family(folder: Path) -> list[int]:
    _wait_for((folder / "pids").exists)
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return not Path("/proc").exists()


def _wait_for(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]
