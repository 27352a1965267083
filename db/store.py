"""The connection to the database: SQLite (WAL) by default, PostgreSQL through psycopg 3.

Every module of `db/` takes a `Store` first and opens its own short transaction: `session()` to
write, `reading()` to read. On SQLite a writing transaction takes the write lock when it begins
(BEGIN IMMEDIATE), waits up to 30 s for it, and so never fails half-way with "database is locked".

Does not know the tables' meaning. Sessions and rows stay inside `db/`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, select, table, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker
from sqlalchemy.sql import column

from db.errors import StoreError

SCHEMA_REVISION = "0005"
VERSION_TABLE = "malleus_version"
BUSY_TIMEOUT_S = 30
CONNECT_TIMEOUT_S = 5


class Store:
    """An open database. Safe to share between threads; a forked child gets its own connections."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pid = os.getpid()
        self._write = sessionmaker(engine.execution_options(malleus_write=True), expire_on_commit=False)
        self._read = sessionmaker(engine, expire_on_commit=False)

    @classmethod
    def open(cls, database_url: str, *, migrate: bool = False) -> Store:
        """Connects and checks the schema.

        Args:
            database_url: `sqlite:///path`, `postgresql://...` (psycopg 3).
            migrate: bring the schema up to date first, and create what is missing (SQLite: the
                file and its folder). Several processes may do so at once.

        Raises:
            StoreError: one line without the password: not a URL we know, unreachable, no schema,
                or the schema of another version.
        """
        url = _parsed(database_url)
        try:
            if url.get_backend_name() == "sqlite":
                _prepare_file(url, create=migrate)
            engine = _engine(url)
        except (SQLAlchemyError, OSError) as error:
            raise StoreError(f"cannot open {_shown(url)}: {_first_line(error, url)}") from None
        try:
            if migrate:
                from db.migrations.upgrade import upgrade  # only here: Alembic takes long to import

                upgrade(engine)
            with engine.connect() as connection:
                _check_revision(connection, url)
        except SQLAlchemyError as error:
            engine.dispose()
            raise StoreError(f"cannot open {_shown(url)}: {_first_line(error, url)}") from None
        except BaseException:
            engine.dispose()
            raise
        return cls(engine)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A writing transaction: commits at the end, rolls back on an exception. For `db/` only.

        Raises:
            StoreError: the database went away.
        """
        with self._transaction(self._write) as session:
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A reading transaction (a consistent snapshot on SQLite). For `db/` only."""
        with self._transaction(self._read) as session:
            yield session

    @property
    def is_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

    def close(self) -> None:
        """Closes every connection. A store may be closed twice."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({_shown(self._engine.url)})"

    @contextmanager
    def _transaction(self, make: sessionmaker[Session]) -> Iterator[Session]:
        if os.getpid() != self._pid:  # forked: the parent's connections are not ours to use or close
            self._engine.dispose(close=False)
            self._pid = os.getpid()
        try:
            with make.begin() as session:
                yield session
        except DBAPIError as error:
            if isinstance(error, IntegrityError | DataError | ProgrammingError):
                raise  # our own mistake, not the database's
            url = self._engine.url
            raise StoreError(f"database {_shown(url)}: {_first_line(error, url)}") from None


def insert(session: Session, model: type[DeclarativeBase]) -> sqlite.Insert | postgresql.Insert:
    """An INSERT that knows `on_conflict_do_nothing` and `on_conflict_do_update`, for this database."""
    if session.get_bind().dialect.name == "sqlite":
        return sqlite.insert(model)
    return postgresql.insert(model)


def _parsed(database_url: str) -> URL:
    try:
        url = make_url(database_url)
    except ArgumentError:
        raise StoreError("the database URL must be sqlite:///path or postgresql://..., given no URL") from None
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise StoreError(f"the database URL must be sqlite:///path or postgresql://..., given {url.drivername}://...")
    return url


def _prepare_file(url: URL, *, create: bool) -> None:
    if not url.database or url.database == ":memory:":
        return
    path = Path(url.database)
    if create:
        path.parent.mkdir(parents=True, exist_ok=True)
    elif not path.exists():
        raise StoreError(f"no database at {path}: run `malleus up` first")


def _engine(url: URL) -> Engine:
    try:
        if url.get_backend_name() == "sqlite":
            engine = create_engine(url, hide_parameters=True, connect_args={"timeout": BUSY_TIMEOUT_S})
            event.listen(engine, "connect", _on_sqlite_connect)
            event.listen(engine, "begin", _on_sqlite_begin)
            return engine
        options = {} if "connect_timeout" in url.query else {"connect_timeout": CONNECT_TIMEOUT_S}
        return create_engine(url, hide_parameters=True, pool_pre_ping=True, connect_args=options)
    except (NoSuchModuleError, ImportError) as error:
        raise StoreError(f"no driver for {url.drivername}: {error}") from None


def _on_sqlite_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions are begun by _on_sqlite_begin, not by the driver
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_S * 1000}")
    if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _on_sqlite_begin(connection: Connection) -> None:
    is_write = connection.get_execution_options().get("malleus_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")


def _check_revision(connection: Connection, url: URL) -> None:
    if not inspect(connection).has_table(VERSION_TABLE):
        raise StoreError(f"{_shown(url)} holds no Malleus tables: run `malleus up` first")
    found = connection.scalars(select(column("version_num")).select_from(table(VERSION_TABLE))).first()
    if found != SCHEMA_REVISION:
        raise StoreError(
            f"{_shown(url)} has schema {found}, expected {SCHEMA_REVISION}: run `malleus up` of this version"
        )
    connection.execute(text("SELECT 1"))


def _shown(url: URL) -> str:
    if url.get_backend_name() == "sqlite":
        return f"sqlite:///{url.database}"
    place = url.host or "localhost"
    return f"{url.get_backend_name()}://{place}{f':{url.port}' if url.port else ''}/{url.database or ''}"


def _first_line(error: BaseException, url: URL) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    line = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
    secrets = [str(url.password or ""), str(url.query.get("password", ""))]
    for secret in filter(None, secrets):
        line = line.replace(secret, "***")
    return line
