"""Stores on SQLite and PostgreSQL, buses on Valkey and Redis: every test of the API runs on both."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from db import runs
from db.broker import EmbeddedBroker
from db.bus import Bus
from db.run_config import RunConfig
from db.runs import RunView
from db.store import Store
from tests.db.postgres import PostgresServer, installed_programs

DATABASE = "malleus"
PLAN = {"schema": 1, "num_layers": 16, "pipelines": []}
_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server with a migrated database `malleus`."""
    programs = installed_programs()
    if programs is None:
        pytest.skip("no PostgreSQL programs in /usr/lib/postgresql/*/bin")
    server = PostgresServer(programs)
    try:
        Store.open(server.create(DATABASE), migrate=True).close()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "malleus.db"
    Store.open(f"sqlite:///{path}", migrate=True).close()
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database with our tables, and no rows."""
    if request.param == "sqlite":
        path = tmp_path / "malleus.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    server.empty(DATABASE)
    yield server.url(DATABASE)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database without tables; on SQLite not even the folder is there."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'new' / 'folder' / 'malleus.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    name = f"malleus_{next(_numbers)}"
    yield server.create(name)
    server.drop(name)


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    store = Store.open(database_url)
    yield store
    store.close()


@pytest.fixture
def run(store: Store) -> RunView:
    """A pending run of 8 devices on 2 nodes."""
    return runs.create(store, RunConfig(name="tiny"), plan=PLAN, actor="ann")


@pytest.fixture(scope="session", params=["valkey", "redis-server"])
def broker_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = None
    if request.param == "redis-server":
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("no redis-server on the PATH")
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), program=program) as broker:
        yield broker.url


@pytest.fixture
def bus(broker_url: str) -> Iterator[Bus]:
    bus = Bus(broker_url)
    bus._redis.flushall()
    yield bus
    bus.close()
