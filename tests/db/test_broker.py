"""The embedded broker: announced, private, alone in its folder, and gone with its parent."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from db.broker import EmbeddedBroker, is_running
from db.bus import Bus
from db.errors import BusError
from db.settings import BROKER_FILE, Settings

DEADLINE_S = 30.0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def processes_of(folder: Path) -> list[int]:
    """Processes that name the folder on their command line or work in it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder) in (entry / "cmdline").read_text() or os.readlink(entry / "cwd").startswith(str(folder)):
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid() and is_alive(pid)]


def test_it_announces_itself_and_leaves_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert not is_running(home)
    broker = EmbeddedBroker(home)
    with pytest.raises(BusError, match="was not started"):
        _ = broker.url
    url = broker.start()
    assert is_running(home)
    assert url == broker.url == Settings.from_env({"MALLEUS_HOME": str(home)}).broker_url()
    assert stat.S_IMODE((home / BROKER_FILE).stat().st_mode) == 0o600
    with Bus(url) as bus:
        assert bus.ping() < DEADLINE_S
    pid = broker.pid
    assert pid is not None
    assert processes_of(home)
    broker.stop()
    broker.stop()
    assert not is_running(home)
    assert not is_alive(pid)
    assert list(home.iterdir()) == []
    assert processes_of(home) == []


def test_the_password_is_on_no_command_line_and_is_needed(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        password = broker.url.split(":")[2].split("@")[0]
        assert len(password) >= 24
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                assert password not in entry.read_text()
            except OSError:
                continue
        assert password not in repr(broker)
        with Bus(broker.url.replace(password, "guess")) as bus, pytest.raises(BusError, match="password"):
            bus.ping()


def test_a_second_one_for_the_same_folder_is_refused(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path):
        with pytest.raises(BusError, match=f"a broker runs for {tmp_path} already"):
            EmbeddedBroker(tmp_path).start()
        assert is_running(tmp_path)
    with EmbeddedBroker(tmp_path):
        assert is_running(tmp_path)


def test_two_folders_have_two_brokers(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "a") as one, EmbeddedBroker(tmp_path / "b") as two:
        assert one.url != two.url


def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from db.broker import EmbeddedBroker\n"
        "broker = EmbeddedBroker(sys.argv[1])\n"
        "broker.start()\n"
        "print(broker.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        server = int(parent.stdout.readline())
        assert is_running(tmp_path)
        assert is_alive(server)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    wait_until(lambda: not is_alive(server))
    wait_until(lambda: not processes_of(tmp_path))
    wait_until(lambda: not list(tmp_path.iterdir()))
    with EmbeddedBroker(tmp_path):  # and the folder is free for the next
        assert is_running(tmp_path)


def test_a_forked_child_neither_stops_nor_holds_it(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path)
    broker.start()
    context = multiprocessing.get_context("fork")
    may_end = context.Event()
    child = context.Process(target=_stop_and_wait, args=(broker, may_end))
    child.start()
    try:
        assert is_running(tmp_path)
        broker.stop()
        with EmbeddedBroker(tmp_path):  # the lock is free though the child lives
            assert is_running(tmp_path)
    finally:
        may_end.set()
        child.join()
    assert child.exitcode == 0


def test_an_announcement_without_a_server_is_not_a_broker(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", '{"url": "redis://127.0.0.1:1"}', json.dumps({"url": 5})):
        (tmp_path / BROKER_FILE).write_text(text)
        assert not is_running(tmp_path)
    with EmbeddedBroker(tmp_path):
        assert is_running(tmp_path)


@pytest.mark.parametrize(("program", "message"), [("/bin/false", "did not come up"), ("/nowhere", "cannot start")])
def test_a_server_that_does_not_come_up(tmp_path: Path, program: str, message: str) -> None:
    broker = EmbeddedBroker(tmp_path, program=program)
    with pytest.raises(BusError, match=message) as caught:
        broker.start()
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []


def test_the_servers_own_words_are_in_the_message(tmp_path: Path) -> None:
    program = tmp_path / "server"
    program.write_text("#!/bin/sh\necho first\necho 'no memory left'\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(BusError, match="no memory left"):
        EmbeddedBroker(tmp_path / "home", program=program).start()


def test_programs_on_the_path_are_the_fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("db.broker._carried_program", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BusError, match=r"no broker program: expected .* MALLEUS_REDIS_URL"):
        EmbeddedBroker(tmp_path / "home").start()
    assert not (tmp_path / "home").exists()
    (tmp_path / "redis-server").write_text("#!/bin/sh\necho it was me\n")
    (tmp_path / "redis-server").chmod(0o755)
    with pytest.raises(BusError, match=r"redis-server did not come up"):
        EmbeddedBroker(tmp_path / "home").start()


def _stop_and_wait(broker: EmbeddedBroker, may_end: multiprocessing.synchronize.Event) -> None:
    broker.stop()
    may_end.wait(DEADLINE_S)
