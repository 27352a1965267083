"""One system per data folder: a lock that the operating system drops with its holder, however it dies."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from db.errors import InputError

LOCK_FILE = "up.lock"


class HomeLock:
    """Held by the process that runs the parts of a data folder.

    Raises:
        InputError: another process holds it (says which), or the folder cannot be written.
    """

    def __init__(self, home: Path) -> None:
        try:
            home.mkdir(parents=True, exist_ok=True)
            self._file = (home / LOCK_FILE).open("a+")
        except OSError as error:
            raise InputError(
                f"the data folder must be writable (MALLEUS_HOME), given {home}: {error.strerror}"
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note = _note(home)
            self._file.close()
            raise InputError(
                f"Malleus already runs in {home} (process {note.get('pid', '?')}): expected one system a data folder, "
                "stop that one, or set MALLEUS_HOME to another folder"
            ) from None
        self._file.truncate(0)
        self._file.write(json.dumps({"pid": os.getpid()}))
        self._file.flush()

    def release(self) -> None:
        """Lets the next one in; the file stays, empty, since removing it could split the lock."""
        if not self._file.closed:
            self._file.truncate(0)
            self._file.close()


def holder(home: Path) -> int | None:
    """Process id of the system that runs in this data folder, `None` if none does."""
    try:
        with (home / LOCK_FILE).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(_note(home).get("pid", 0))
    except OSError:
        return None
    return None


def _note(home: Path) -> dict[str, Any]:
    try:
        note = json.loads((home / LOCK_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}
