"""Where this installation keeps its data and reaches its servers: from the environment only.

Secrets (the write token, passwords inside URLs) never appear in `repr`, logs or command lines.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from db.errors import BusError, InputError

BROKER_FILE = "broker.json"
TOKEN_FILE = "token"
_ADDRESS = re.compile(r"[^@\s]*@[^@\s]+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Paths and addresses.

    Args:
        home: data folder (`MALLEUS_HOME`, default `~/.malleus`); everything that outlives a process.
        database_url: SQLAlchemy URL (`MALLEUS_DATABASE_URL`, default SQLite under `home`).
        redis_url: broker (`MALLEUS_REDIS_URL`); `None` means the embedded one of `home`.
        host, port: where the dashboard listens (`MALLEUS_HOST`, `MALLEUS_PORT`).
        operators, viewers: who may write and who may look, where people sign in (`MALLEUS_OPERATORS`,
            `MALLEUS_VIEWERS`; separated by commas: `ada@example.org`, `@example.org`, `claim=value`, `*`).
    """

    home: Path
    database_url: str = field(repr=False)
    redis_url: str | None = field(repr=False)
    host: str
    port: int
    operators: tuple[str, ...] = ()
    viewers: tuple[str, ...] = ()

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Reads the environment.

        Raises:
            InputError: `MALLEUS_PORT` is no port number, or a list holds what nobody can match.
        """
        environ = os.environ if environ is None else environ
        home = Path(environ.get("MALLEUS_HOME") or Path.home() / ".malleus").expanduser().absolute()
        port = environ.get("MALLEUS_PORT") or "8501"
        if not port.isdigit() or not 0 < int(port) < 65536:
            raise InputError(f"MALLEUS_PORT must be a port from 1 to 65535, given {port!r}")
        return cls(
            home=home,
            database_url=environ.get("MALLEUS_DATABASE_URL") or f"sqlite:///{home / 'malleus.db'}",
            redis_url=environ.get("MALLEUS_REDIS_URL") or None,
            host=environ.get("MALLEUS_HOST") or "127.0.0.1",
            port=int(port),
            operators=_people(environ, "MALLEUS_OPERATORS"),
            viewers=_people(environ, "MALLEUS_VIEWERS"),
        )

    def broker_url(self) -> str:
        """URL of the broker: the configured one, else that of the embedded server now running.

        Raises:
            BusError: no URL is configured and no embedded server has announced itself in `home`.
        """
        if self.redis_url:
            return self.redis_url
        path = self.home / BROKER_FILE
        try:
            return str(json.loads(path.read_text())["url"])
        except (OSError, ValueError, KeyError) as error:
            raise BusError(f"no broker: expected MALLEUS_REDIS_URL or a running `malleus up` in {self.home}") from error

    def write_token(self) -> str:
        """The token that writes from the dashboard need: `MALLEUS_TOKEN`, else one kept in `home` (mode 600)."""
        given = os.environ.get("MALLEUS_TOKEN")
        if given:
            return given
        path = self.home / TOKEN_FILE
        if not path.exists():
            self.home.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(24))
        return path.read_text().strip()


def _people(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    entries = tuple(entry.strip() for entry in environ.get(name, "").split(",") if entry.strip())
    for entry in entries:
        claim, is_claim, value = entry.partition("=")
        is_known = bool(claim.strip() and value.strip()) if is_claim else entry == "*" or bool(_ADDRESS.match(entry))
        if not is_known:
            raise InputError(f"{name} must list ada@example.org, @example.org, claim=value or *, given {entry!r}")
    return entries
