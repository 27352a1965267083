"""Who is looking, and what they may do: by sign-in where one is configured, else by the write token.

- No sign-in: everyone who reaches the address may look; who has entered the token may write.
- Sign-in (OpenID Connect, Streamlit's own, `[auth]` in secrets.toml): nothing is shown before it, and the lists
  of operators and viewers decide. The token does not count then.
- Lists without a sign-in, or a secrets file that cannot be read: closed, never open by mistake.

See docs/access.md. Writes nothing; `writes` asks here before every write.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import streamlit as st
from streamlit.errors import StreamlitSecretNotFoundError

from app.dashboard import reads

Role = Literal["operator", "viewer", "nobody"]
LOGIN_VALID_S = 12 * 3600.0
ANYONE = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Who this browser session belongs to.

    Args:
        by_login: signed in, or has to; otherwise the token decides about writing.
        name: verified e-mail address of who signed in, or else the provider's own name for them.
        problem: why nothing is shown, where nothing is.
    """

    role: Role
    by_login: bool
    name: str = ""
    problem: str = ""


def person() -> Person:
    """Who is looking now; asked anew at every run of a page and at every write."""
    operators, viewers = reads.settings().operators, reads.settings().viewers
    try:
        providers = login_providers()
    except StreamlitSecretNotFoundError:
        return _closed("The secrets file cannot be read, so nobody can sign in. The server's log says where.")
    if providers is None:
        if operators or viewers:
            return _closed(
                "MALLEUS_OPERATORS or MALLEUS_VIEWERS is set, but no sign-in is configured: "
                "expected [auth] in secrets.toml (see docs/access.md)."
            )
        return Person(role="viewer", by_login=False)
    claims: Mapping[str, Any] = st.user.to_dict()
    if not claims.get("is_logged_in"):
        return _closed("")
    if _is_expired(claims):
        return _closed(f"You signed in more than {LOGIN_VALID_S / 3600:.0f} hours ago.")
    address = email(claims)
    name = address or str(claims.get("sub") or "signed in")
    found = role_of(claims, operators=operators, viewers=viewers)
    problem = f"{address or 'This account'} may not see this installation." if found == "nobody" else ""
    return Person(role=found, by_login=True, name=name, problem=problem)


def login_providers() -> list[str] | None:
    """Names of the configured providers (empty: the default one); None if no sign-in is configured.

    Raises:
        StreamlitSecretNotFoundError: there is a secrets file, and it cannot be read.
    """
    try:
        auth = st.secrets.get("auth")
    except StreamlitSecretNotFoundError:
        if any(Path(path).exists() for path in st.get_option("secrets.files")):
            raise
        return None
    if not isinstance(auth, Mapping):
        return None if auth is None else []
    return sorted(str(name) for name, value in auth.items() if isinstance(value, Mapping) and "client_id" in value)


def role_of(claims: Mapping[str, Any], *, operators: Sequence[str], viewers: Sequence[str]) -> Role:
    """The role that the lists give to who has these claims; in neither list: nobody."""
    if any(_matches(entry, claims) for entry in operators):
        return "operator"
    return "viewer" if any(_matches(entry, claims) for entry in viewers) else "nobody"


def email(claims: Mapping[str, Any]) -> str:
    """The e-mail address; empty if the provider says that it was not verified."""
    if str(claims.get("email_verified", True)).lower() == "false":
        return ""
    return str(claims.get("email") or "").strip().lower()


def _matches(entry: str, claims: Mapping[str, Any]) -> bool:
    """`*`, `ada@example.org`, `@example.org` (a whole domain), or `claim=value` (a text, or one of a list)."""
    if entry == ANYONE:
        return True
    claim, is_claim, wanted = entry.partition("=")
    if is_claim:
        value = claims.get(claim.strip())
        values = value if isinstance(value, list | tuple) else [value]
        return bool(wanted.strip()) and wanted.strip() in values
    address = email(claims)
    if entry.startswith("@"):
        return bool(entry[1:]) and address.endswith(entry.lower())
    return bool(address) and address == entry.lower()


def _closed(problem: str) -> Person:
    return Person(role="nobody", by_login=True, problem=problem)


def _is_expired(claims: Mapping[str, Any]) -> bool:
    """The framework keeps its cookie for a month; what the provider said is believed for a working day."""
    issued_s = claims.get("iat")
    return isinstance(issued_s, int | float) and time.time() - issued_s > LOGIN_VALID_S
