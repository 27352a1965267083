"""Brings a database to the newest schema, from inside the program (`Store.open(migrate=True)`).

The whole upgrade is one transaction that holds a lock from before the version is read, so two
processes may start it at once: the second waits and finds nothing to do.
"""

from __future__ import annotations

import logging
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, text

_ADVISORY_LOCK = 0x6D616C6C657573  # "malleus"


def alembic_config() -> Config:
    """Alembic's configuration, without a file and without touching the program's logging."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config


def upgrade(engine: Engine) -> None:
    """Runs every migration that is missing."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = alembic_config()
    with engine.execution_options(malleus_write=True).begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
