"""What commands find around them: this installation's settings, its store, and who is asking."""

from __future__ import annotations

import getpass
import os
from typing import TYPE_CHECKING

from db.settings import Settings

if TYPE_CHECKING:
    from db.store import Store


def open_store(settings: Settings | None = None) -> Store:
    """The store, as it is: a command that reads or submits never creates or migrates one.

    Raises:
        StoreError: unreachable, or of another schema.
    """
    from db.store import Store

    settings = settings or Settings.from_env()
    return Store.open(settings.database_url)


def person() -> str:
    """Who runs this command, for the audit log."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        return f"uid {os.getuid()}"
