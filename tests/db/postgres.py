"""A throw-away PostgreSQL server from the system's own programs, for one test session.

PostgreSQL refuses to run as root; as root it is started as the system's user `postgres`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from db.models import Base

PASSWORD = "not-in-any-message"
START_TIMEOUT_S = 30.0


class PostgresServer:
    """Started by the constructor; `stop()` leaves nothing behind."""

    def __init__(self, programs: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="malleus-postgres-"))
        self._identity: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self._folder, user.pw_uid, user.pw_gid)
            self._identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._process: subprocess.Popen[bytes] | None = None
        self._admin: psycopg.Connection | None = None
        self.port = _free_port()
        try:
            self._start(programs)
        except BaseException:
            self.stop()
            raise

    def url(self, database: str) -> str:
        return f"postgresql://malleus:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def create(self, database: str, *, template: str = "template0") -> str:
        """Creates a database and returns its URL."""
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")
        self._execute(statement.format(sql.Identifier(database), sql.Identifier(template)))
        return self.url(database)

    def empty(self, database: str) -> None:
        """Removes every row and starts the ids again: as good as a new database, and 30 times faster."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for table in reversed(Base.metadata.sorted_tables):
                connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table.name)))
            for name in connection.execute("SELECT sequencename FROM pg_sequences").fetchall():
                connection.execute(sql.SQL("ALTER SEQUENCE {} RESTART").format(sql.Identifier(name[0])))

    def drop(self, database: str) -> None:
        self._execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(database)))

    def stop(self) -> None:
        if self._admin is not None:
            self._admin.close()
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # fast shutdown
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGQUIT)
                self._process.wait()
        shutil.rmtree(self._folder)

    def _start(self, programs: Path) -> None:
        data = self._folder / "data"
        password_file = self._folder / "password"
        password_file.write_text(PASSWORD)
        password_file.chmod(0o644)
        subprocess.run(
            [
                programs / "initdb",
                f"--pgdata={data}",
                "--username=malleus",
                "--auth=scram-sha-256",
                f"--pwfile={password_file}",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ],
            check=True,
            capture_output=True,
            cwd=self._folder,
            **self._identity,
        )
        options = {"fsync": "off", "full_page_writes": "off", "unix_socket_directories": "", "max_connections": "50"}
        with (self._folder / "log").open("wb") as log:
            self._process = process = subprocess.Popen(
                [str(programs / "postgres"), "-D", str(data), "-h", "127.0.0.1", "-p", str(self.port)]
                + [part for name, value in options.items() for part in ("-c", f"{name}={value}")],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                **self._identity,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self._admin = psycopg.connect(self.url("postgres"), connect_timeout=2, autocommit=True)
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise
                time.sleep(0.05)

    def _execute(self, statement: sql.Composed) -> None:
        assert self._admin is not None
        self._admin.execute(statement)


def installed_programs() -> Path | None:
    """The newest PostgreSQL's program folder, if the system has one."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(found, key=lambda path: int(path.parent.name), default=None)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
