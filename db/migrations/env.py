"""Alembic's entry point: runs migrations on the connection it is handed, or on that of the settings.

`Store.open(migrate=True)` hands over a connection inside a locked transaction. From a shell
(`alembic -c db/alembic.ini revision --autogenerate -m ...`) the settings' database is opened.
"""

from __future__ import annotations

from typing import Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy import Connection, create_engine

from db import columns
from db.models import Base
from db.settings import Settings
from db.store import VERSION_TABLE


def rendered(kind: str, item: object, _context: AutogenContext) -> str | Literal[False]:
    """How a column type of ours is written in a new migration."""
    if kind == "type" and type(item).__module__ == columns.__name__:
        return f"columns.{type(item).__name__}()"
    return False


def run(connection: Connection) -> None:
    """Configures Alembic for our metadata and version table, then migrates."""
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        version_table=VERSION_TABLE,
        transactional_ddl=True,
        compare_type=True,
        render_item=rendered,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    engine = create_engine(Settings.from_env().database_url.replace("postgresql://", "postgresql+psycopg://", 1))
    with engine.begin() as own:
        run(own)
    engine.dispose()
