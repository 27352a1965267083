"""Opening, migrating, and what the columns keep."""

from __future__ import annotations

import math
import multiprocessing
import os
import socket
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import select

from db import audit, checkpoints, heartbeats, history, recorder, runs
from db.errors import StoreError
from db.migrations.upgrade import alembic_config
from db.models import AuditRow, Base, EpisodeRow
from db.run_config import RunConfig
from db.runs import RunView
from db.store import SCHEMA_REVISION, VERSION_TABLE, Store
from tests.db.conftest import PLAN
from tests.db.postgres import PostgresServer
from tests.db.telemetry import START, batch, hello, step


def test_migration_gives_the_tables_of_the_models(store: Store) -> None:
    with store.reading() as session:
        context = MigrationContext.configure(
            session.connection(), opts={"version_table": VERSION_TABLE, "compare_type": True}
        )
        assert compare_metadata(context, Base.metadata) == []


def test_newest_migration_is_the_one_that_the_store_expects() -> None:
    assert ScriptDirectory.from_config(alembic_config()).get_heads() == [SCHEMA_REVISION]


def test_opening_an_empty_database_needs_migrate(empty_database_url: str) -> None:
    with pytest.raises(StoreError, match=r"(no database at|no Malleus tables).*malleus up") as caught:
        Store.open(empty_database_url)
    assert "\n" not in str(caught.value)
    if empty_database_url.startswith("sqlite"):
        assert not Path(empty_database_url.removeprefix("sqlite:///")).parent.exists()
    Store.open(empty_database_url, migrate=True).close()
    Store.open(empty_database_url, migrate=True).close()
    Store.open(empty_database_url).close()


def test_rows_of_the_schema_before_survive_the_migration(empty_database_url: str) -> None:
    """A run that an earlier version recorded, read by this one."""
    store = Store.open(empty_database_url, migrate=True)
    runs.create(store, RunConfig(), plan=PLAN, actor="ann")
    recorder.record(store, 1, batch(hello(0), step(1, grad_norm=1.0)))
    config = alembic_config()
    for move in (command.downgrade, command.upgrade):
        with store._engine.execution_options(malleus_write=True).begin() as connection:
            config.attributes["connection"] = connection
            move(config, "0001" if move is command.downgrade else "head")
    view = runs.get(store, 1)
    assert (view.step, view.checkpoint_request, view.max_restarts, view.num_restarts) == (1, 0, 0, 0)
    assert math.isnan(history.steps(store, 1)[0].grad_norm)
    assert checkpoints.all_checkpoints(store, 1) == history.evaluations(store, 1) == []
    store.close()


def test_processes_may_migrate_at_once(empty_database_url: str) -> None:
    script = "import sys; from db.store import Store; Store.open(sys.argv[1], migrate=True).close()"
    processes = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", script, empty_database_url], stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=60)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    Store.open(empty_database_url).close()


def test_schema_of_another_version_is_refused(empty_database_url: str) -> None:
    store = Store.open(empty_database_url, migrate=True)
    with store.session() as session:
        session.connection().exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    store.close()
    with pytest.raises(StoreError, match=f"has schema 9999, expected {SCHEMA_REVISION}"):
        Store.open(empty_database_url)


def test_sqlite_has_wal_foreign_keys_and_a_busy_timeout(run: RunView, store: Store) -> None:
    if not store.is_sqlite:
        pytest.skip("SQLite only")
    with store.reading() as session:
        values = [
            session.connection().exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "foreign_keys", "busy_timeout")
        ]
    assert values == ["wal", 1, 30_000]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "must be sqlite:///path or postgresql://"),
        ("not a url", "must be sqlite:///path or postgresql://"),
        ("mysql://u:secret@h/db", "given mysql://"),
        ("postgresql://u:secret@127.0.0.1:{closed}/db", "refused"),
        ("postgresql://127.0.0.1:{closed}/db?user=u&password=secret", "refused"),
        ("postgres://u:secret@127.0.0.1:{closed}/db", "refused"),
        ("sqlite:////proc/nowhere/malleus.db", "cannot open sqlite:////proc/nowhere/malleus.db"),
        ("sqlite:///{file}", "not a database"),
        ("sqlite:///{folder}", "unable to open"),
    ],
)
def test_unreachable_is_one_line_without_password(url: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is not a database " * 100)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = url.format(closed=probe.getsockname()[1], file=tmp_path / "text", folder=tmp_path)
        with pytest.raises(StoreError, match=message) as caught:
            Store.open(url, migrate=True)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_password_is_one_line_without_it(postgres: PostgresServer) -> None:
    port = postgres.port
    with pytest.raises(StoreError, match="password authentication failed") as caught:
        Store.open(f"postgresql://malleus:wrong-secret@127.0.0.1:{port}/postgres")
    assert "wrong-secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_database_that_goes_away_is_a_store_error(tmp_path: Path, postgres: PostgresServer) -> None:
    url = postgres.create("malleus_gone", template="malleus")
    with Store.open(url) as store:
        postgres.drop("malleus_gone")
        with pytest.raises(StoreError) as caught:
            runs.all_runs(store)
    assert "\n" not in str(caught.value)


def test_repr_hides_everything_secret(store: Store) -> None:
    assert "not-in-any-message" not in repr(store)
    assert "not-in-any-message" not in repr(vars(store))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, 1e-300, 2.57])
def test_real_numbers_survive(store: Store, run: RunView, value: float) -> None:
    evidence = {"rates": [value, 1.0], "nested": {"x": value}, "$float": "NaN", "$$": {"$float": value}}
    with store.session() as session:
        session.add(
            EpisodeRow(
                run=run.id,
                device=0,
                start_step=0,
                start_at=START,
                rate=value,
                peak=value,
                cause="device",
                evidence=evidence,
            )
        )
    with store.reading() as session:
        row = session.scalars(select(EpisodeRow)).one()
        assert _same([row.rate, row.peak], [value, value])
        assert _same(row.evidence, evidence)


def test_nan_sorts_above_everything_as_in_postgresql(store: Store, run: RunView) -> None:
    values = [math.inf, 1.0, math.nan, -math.inf, 3.0]
    with store.session() as session:
        session.add_all(
            EpisodeRow(run=run.id, device=i, start_step=0, start_at=START, rate=x, peak=x, cause="device", evidence={})
            for i, x in enumerate(values)
        )
    with store.reading() as session:
        found = list(session.scalars(select(EpisodeRow.rate).order_by(EpisodeRow.rate)))
        finite = list(session.scalars(select(EpisodeRow.rate).where(EpisodeRow.rate < math.inf)))
    assert _same(found, [-math.inf, 1.0, 3.0, math.inf, math.nan])
    assert sorted(finite) == [-math.inf, 1.0, 3.0]


def test_stored_documents_are_valid_json(store: Store, run: RunView) -> None:
    audit.record(store, actor="a", action="x", detail={"rate": math.nan})
    with store.reading() as session:
        cast = "detail" if store.is_sqlite else "detail::text"
        text = session.connection().exec_driver_sql(f"SELECT {cast} FROM audit ORDER BY id DESC LIMIT 1").scalar()
    assert text == '{"rate": {"$float": "NaN"}}'


def test_instants_come_back_in_utc(store: Store) -> None:
    at = datetime(2025, 3, 1, 14, 30, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
    with store.session() as session:
        session.add(AuditRow(at=at, actor="a", source="", action="", target="", result="", detail={}))
    entry = audit.entries(store)[0]
    assert entry.at == at
    assert entry.at.tzinfo is UTC


def test_nul_characters_do_not_break_a_write(store: Store) -> None:
    audit.record(store, actor="a\x00b", action="x", detail={"text": "c\x00d", "k\x00": 1})
    entry = audit.entries(store)[0]
    assert (entry.actor, entry.detail) == ("a\ufffdb", {"text": "c\ufffdd", "k\ufffd": 1})


def test_a_failed_transaction_leaves_nothing(store: Store) -> None:
    with pytest.raises(ZeroDivisionError):
        _fail_after_a_write(store)
    assert audit.entries(store) == []


def test_a_forked_child_gets_its_own_connections(store: Store, run: RunView) -> None:
    process = multiprocessing.get_context("fork").Process(target=_read_and_exit, args=(store,))
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert runs.get(store, run.id).id == run.id


def test_writers_in_several_processes_never_find_it_locked(tmp_path: Path) -> None:
    path = tmp_path / "malleus.db"
    with Store.open(f"sqlite:///{path}", migrate=True) as store:
        run = runs.create(store, RunConfig(), plan=PLAN, actor="ann").id
        script = (
            "import sys\n"
            "from db import runs, audit\n"
            "from db.store import Store\n"
            "with Store.open(sys.argv[1]) as store:\n"
            "    for _ in range(50):\n"
            "        runs.change(store, int(sys.argv[2]))\n"
            "        audit.record(store, actor='w', action='x', run=int(sys.argv[2]))\n"
            "        runs.get(store, int(sys.argv[2]))\n"
        )
        writers = [
            subprocess.Popen(
                [sys.executable, "-W", "error", "-c", script, f"sqlite:///{path}", str(run)], stderr=subprocess.PIPE
            )
            for _ in range(4)
        ]
        outputs = [process.communicate(timeout=60)[1].decode() for process in writers]
        assert [process.returncode for process in writers] == [0] * 4, outputs
        assert runs.get(store, run).desired_version == 1 + 4 * 50
        assert len(audit.entries(store, run, limit=1000)) == 1 + 4 * 50


def test_a_reader_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "malleus.db"
    with Store.open(f"sqlite:///{path}", migrate=True) as store:
        heartbeats.beat(store, "worker", {})
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        holder.execute("DELETE FROM heartbeats")
        assert list(heartbeats.all_beats(store)) == ["worker"]
        holder.execute("ROLLBACK")
        holder.close()


def _fail_after_a_write(store: Store) -> None:
    with store.session() as session:
        audit.add(session, actor="a", action="x")
        session.flush()
        raise ZeroDivisionError


def _read_and_exit(store: Store) -> None:
    found = runs.all_runs(store)
    store.close()
    os._exit(0 if len(found) == 1 else 1)


def _same(found: object, expected: object) -> bool:
    """Equality in which NaN equals NaN."""
    if isinstance(expected, float) and isinstance(found, float):
        return found == expected or (math.isnan(found) and math.isnan(expected))
    if isinstance(expected, dict) and isinstance(found, dict):
        return found.keys() == expected.keys() and all(_same(found[key], expected[key]) for key in expected)
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(_same, found, expected))
    return found == expected
