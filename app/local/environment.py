"""What local processes are given: the environment."""

from __future__ import annotations

import os
from pathlib import Path

from db.settings import Settings

SQLITE = "sqlite:///"


def child_environment(settings: Settings) -> dict[str, str]:
    """The environment of a local process; addresses and secrets travel only here.

    The embedded broker is not named: a process finds it in the data folder, and finds the new one
    there if it had to be started again. Python must not import from the working directory: a
    person's own `app` or `db` would be found first.
    """
    environment = os.environ | {
        "MALLEUS_HOME": str(settings.home),
        "MALLEUS_DATABASE_URL": absolute_url(settings.database_url),
        "MALLEUS_HOST": settings.host,
        "MALLEUS_PORT": str(settings.port),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if settings.redis_url:
        environment["MALLEUS_REDIS_URL"] = settings.redis_url
    return environment


def absolute_url(database_url: str) -> str:
    """The URL with a relative SQLite path made absolute: children work in another folder."""
    if not database_url.startswith(SQLITE):
        return database_url
    path = database_url.removeprefix(SQLITE)
    is_file = path and not path.startswith((":", "file:"))
    return f"{SQLITE}{Path(path).absolute()}" if is_file else database_url
