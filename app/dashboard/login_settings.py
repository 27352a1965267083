"""The sign-in's settings from the environment, in the only form the framework takes: a secrets file.

`MALLEUS_OIDC_*` becomes `MALLEUS_HOME/.streamlit/login.toml` (mode 600, written anew at every start); a
`secrets.toml` beside it, written by hand, is read too and comes second, so it wins. Secrets never travel on a
command line.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from db.errors import InputError
from db.settings import Settings

FOLDER = ".streamlit"
NEEDED = ("client_id", "client_secret", "server_metadata_url", "redirect_uri")
PREFIX = "MALLEUS_OIDC_"
COOKIE_FILE = "cookie_secret"


def secrets_files(settings: Settings, environ: Mapping[str, str]) -> list[Path]:
    """Where the framework shall look for secrets; writes what the environment says into the first one.

    Raises:
        InputError: some of the variables are set and others are not.
    """
    folder = settings.home / FOLDER
    written = folder / "login.toml"
    given = {name: environ.get(PREFIX + name.upper(), "") for name in NEEDED}
    if any(given.values()):
        missing = [PREFIX + name.upper() for name, value in given.items() if not value]
        if missing:
            raise InputError(f"sign-in needs {', '.join(missing)} as well")
        cookie_secret = environ.get(f"{PREFIX}COOKIE_SECRET") or _kept_secret(folder / COOKIE_FILE)
        values = given | {"cookie_secret": cookie_secret}
        lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]  # TOML's strings are JSON's
        _write(written, "\n".join(["[auth]", *lines]) + "\n")
    else:
        written.unlink(missing_ok=True)
    return [written, folder / "secrets.toml"]


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what was written down."""
    return {name: value for name, value in environ.items() if not name.startswith(PREFIX)}


def _kept_secret(path: Path) -> str:
    """Signs the cookies; kept, so that a restart signs nobody out."""
    if not path.exists():
        _write(path, secrets.token_urlsafe(32))
    return path.read_text(encoding="utf-8").strip()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)  # so that the mode is ours
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
