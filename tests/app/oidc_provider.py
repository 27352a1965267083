"""An OpenID Connect provider on this machine: authorization code flow with PKCE, signed identity tokens, logout.

It checks what a real one checks, and asks who one is with a link a person instead of a password. `PERSONS` are the
claims that it makes.

Source: OpenID Connect Core 1.0 (section 3.1), Discovery 1.0, RP-Initiated Logout 1.0; RFC 6749, RFC 7636.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from joserfc import jwk, jwt

PERSONS: dict[str, dict[str, Any]] = {
    "ada": {"sub": "1", "email": "Ada@example.org", "email_verified": True},
    "bob": {"sub": "2", "email": "bob@example.org", "email_verified": True},
    "eve": {"sub": "3", "email": "eve@elsewhere.net", "email_verified": True},
    "liar": {"sub": "4", "email": "ada@example.org", "email_verified": False},
}


@dataclass(kw_only=True)
class Provider:
    """One client is registered.

    Args:
        redirect_uri: where people may be sent back to.
        refused: what was not right about requests that were refused.
    """

    issuer: str
    client_id: str
    client_secret: str
    redirect_uri: str
    refused: list[str] = field(default_factory=list)
    key: Any = field(default_factory=lambda: jwk.RSAKey.generate_key(2048, {"kid": "1", "use": "sig", "alg": "RS256"}))
    codes: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def metadata_url(self) -> str:
        return f"{self.issuer}/.well-known/openid-configuration"

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/jwks",
            "end_session_endpoint": f"{self.issuer}/logout",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "code_challenge_methods_supported": ["S256"],
        }

    def authorize(self, asked: Mapping[str, str]) -> str:
        """Where to send the browser, once somebody has said who they are.

        Raises:
            ValueError: what is not right about the request.
        """
        _expect(asked, client_id=self.client_id, redirect_uri=self.redirect_uri, response_type="code")
        _expect(asked, code_challenge_method="S256")
        if "openid" not in asked.get("scope", "").split() or not asked.get("nonce") or not asked.get("state"):
            raise ValueError("scope openid, nonce and state are needed")
        code = secrets.token_urlsafe(16)
        self.codes[code] = dict(asked)
        return f"{self.redirect_uri}?{urlencode({'code': code, 'state': asked['state']})}"

    def token(self, form: Mapping[str, str], authorization: str) -> dict[str, Any]:
        """The tokens for a code, which counts once.

        Raises:
            ValueError: what is not right about the request.
        """
        kind, _, credentials = authorization.partition(" ")
        given = base64.b64decode(credentials).decode() if kind == "Basic" else ""
        if unquote(given) != f"{self.client_id}:{self.client_secret}":
            raise ValueError("unknown client")
        _expect(form, grant_type="authorization_code", redirect_uri=self.redirect_uri)
        asked = self.codes.pop(form.get("code", ""), None)
        if asked is None:
            raise ValueError("unknown code")
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        _expect(asked, code_challenge=base64.urlsafe_b64encode(digest).rstrip(b"=").decode())
        now = int(time.time())
        claims = PERSONS[asked["as"]] | {
            "iss": self.issuer,
            "aud": self.client_id,
            "iat": now,
            "exp": now + 300,
            "nonce": asked["nonce"],
        }
        return {
            "access_token": secrets.token_urlsafe(16),
            "token_type": "Bearer",
            "expires_in": 300,
            "id_token": jwt.encode({"alg": "RS256", "kid": "1"}, claims, self.key),
        }


@contextmanager
def provider(*, redirect_uri: str) -> Iterator[Provider]:
    """A provider that answers while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    made = Provider(
        issuer=f"http://127.0.0.1:{server.server_port}",
        client_id="malleus",
        client_secret=secrets.token_urlsafe(16),
        redirect_uri=redirect_uri,
    )
    server.RequestHandlerClass = type("Handler", (_Handler,), {"provider": made})
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    provider: Provider

    def do_GET(self) -> None:
        path, asked = urlsplit(self.path).path, _one_each(urlsplit(self.path).query)
        if path == "/.well-known/openid-configuration":
            self._json(200, self.provider.metadata())
        elif path == "/jwks":
            self._json(200, {"keys": [self.provider.key.as_dict(private=False)]})
        elif path == "/authorize" and "as" not in asked:
            links = (f'<a href="/authorize?{urlencode(asked | {"as": name})}">{name}</a>' for name in PERSONS)
            self._answer(200, "text/html", f"<title>Provider</title>Who are you? {' '.join(links)}")
        elif path == "/authorize":
            try:
                self._redirect(self.provider.authorize(asked))
            except ValueError as error:
                self._refuse(error)
        elif path == "/logout":
            self._redirect(asked.get("post_logout_redirect_uri", "/"))
        else:
            self._answer(404, "text/plain", "not found")

    def do_POST(self) -> None:
        form = _one_each(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode())
        try:
            self._json(200, self.provider.token(form, self.headers.get("Authorization", "")))
        except ValueError as error:
            self._refuse(error)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _refuse(self, error: ValueError) -> None:
        self.provider.refused.append(str(error))
        self._json(400, {"error": "invalid_request", "error_description": str(error)})

    def _redirect(self, url: str) -> None:
        self.send_response(302)
        self.send_header("Location", url)
        self.end_headers()

    def _json(self, status: int, document: Mapping[str, Any]) -> None:
        self._answer(status, "application/json", json.dumps(document))

    def _answer(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _one_each(query: str) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}


def _expect(given: Mapping[str, str], **wanted: str) -> None:
    for name, value in wanted.items():
        if given.get(name) != value:
            raise ValueError(f"{name} must be {value}, given {given.get(name)}")
