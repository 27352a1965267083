"""Who may look and who may write: roles, tokens, guessing, and that one browser knows nothing of another."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.dashboard import access, login_settings, reads, sign_in, writes
from app.dashboard.attempts import Attempts
from app.dashboard.launch import command
from db import audit, commands
from db.errors import InputError
from db.settings import Settings
from db.store import Store
from tests.app import seeded_store
from tests.app.seeded_store import alive, tell_until_now
from tests.app.seeded_world import TOKEN, close_world, open_world, texts

MAIN = Path(__file__).parents[2] / "app" / "dashboard" / "main.py"
AUTH: dict[str, Any] = {
    "auth": {
        "client_id": "id",
        "client_secret": "the-client-secret",
        "cookie_secret": "the-cookie-secret",
        "redirect_uri": "http://localhost:8501/oauth2callback",
        "server_metadata_url": "https://accounts.example.org/.well-known/openid-configuration",
    }
}
ADA = {"is_logged_in": True, "email": "Ada@Example.org", "email_verified": True, "sub": "1"}
BOB = ADA | {"email": "bob@example.org"}
EVE = ADA | {"email": "eve@elsewhere.net"}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    opened = open_world(tmp_path, monkeypatch)
    monkeypatch.setattr(writes, "ATTEMPTS", Attempts())
    yield opened
    close_world(opened)


@pytest.fixture
def lists(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ada operates, everyone of her domain looks."""
    monkeypatch.setenv("MALLEUS_OPERATORS", "ada@example.org, groups=ml-ops")
    monkeypatch.setenv("MALLEUS_VIEWERS", "@example.org")
    reads.settings.clear()


def browser(user: Mapping[str, Any] | None = None, secrets: Mapping[str, Any] = AUTH) -> AppTest:
    """The whole dashboard as one browser session sees it."""
    at = AppTest.from_file(str(MAIN), default_timeout=60)
    for name, value in secrets.items():
        at.secrets[name] = value
    at.user = dict(user or {})
    return at.run()


def unlock(at: AppTest, token: str, name: str = "") -> AppTest:
    at.text_input(key="frame_token").set_value(token)
    at.text_input(key="frame_actor").set_value(name)
    return next(button for button in at.button if button.label == "Unlock").click().run()


def everything(at: AppTest) -> str:
    """All that the page was told, as it goes over the wire."""
    return "\n".join(str(node.proto) for node in at.main if hasattr(node, "proto")) + texts(at)


@pytest.mark.parametrize(
    ("entry", "claims", "does_match"),
    [
        ("ada@example.org", ADA, True),
        ("ADA@example.org", ADA, True),
        ("ada@example.org", BOB, False),
        ("@example.org", BOB, True),
        ("@example.org", EVE, False),
        ("@example.org", ADA | {"email": "ada@evil-example.org"}, False),
        ("@example.org", ADA | {"email_verified": False}, False),
        ("@example.org", ADA | {"email_verified": "false"}, False),
        ("groups=ml-ops", EVE | {"groups": ["x", "ml-ops"]}, True),
        ("groups=ml-ops", EVE | {"groups": "ml-ops"}, True),
        ("groups=ml-ops", EVE | {"groups": "ml-ops-not"}, False),
        ("groups=ml-ops", EVE, False),
        ("*", EVE, True),
        ("ada@example.org", {"is_logged_in": True}, False),
    ],
)
def test_an_entry_of_a_list(entry: str, claims: Mapping[str, Any], does_match: bool) -> None:
    expected = "operator" if does_match else "nobody"
    assert access.role_of(claims, operators=[entry], viewers=[]) == expected


def test_operator_before_viewer_and_nobody_by_default() -> None:
    assert access.role_of(ADA, operators=["ada@example.org"], viewers=["*"]) == "operator"
    assert access.role_of(EVE, operators=["ada@example.org"], viewers=["*"]) == "viewer"
    assert access.role_of(EVE, operators=[], viewers=[]) == "nobody"


@pytest.mark.parametrize("bad", ["ada", "groups=", "=x", "a@b@c d", "@"])
def test_a_list_that_nobody_can_match_is_refused(bad: str) -> None:
    with pytest.raises(InputError, match="MALLEUS_VIEWERS must list"):
        Settings.from_env({"MALLEUS_VIEWERS": f"ada@example.org,{bad}"})


def test_before_sign_in_nothing_is_shown(store: Store, lists: None, monkeypatch: pytest.MonkeyPatch) -> None:
    story = tell_until_now(store, seeded_store.straggling_run)
    at = browser({"is_logged_in": False})
    assert not at.exception
    seen = everything(at)
    assert "Malleus" in seen
    for word in (story.config.name, "run 1", "Device", "healthy", "Plans"):
        assert word not in seen
    assert not at.text_input, "and no token can be tried"
    assert audit.find(store, audit.Filter(source="dashboard", action="access.login")) == []


def test_the_sign_in_button_is_there_where_it_can_work(
    store: Store, lists: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign_in.importlib.util, "find_spec", lambda name: None)
    at = browser({"is_logged_in": False})
    assert "Authlib" in at.warning[0].value
    assert not at.button
    monkeypatch.setattr(sign_in.importlib.util, "find_spec", lambda name: object())
    assert [button.label for button in browser({"is_logged_in": False}).button] == ["Sign in"]
    provider = {name: AUTH["auth"][name] for name in ("client_id", "client_secret", "server_metadata_url")}
    many = {"auth": AUTH["auth"] | {"okta": provider, "google": provider}}
    labels = [button.label for button in browser({"is_logged_in": False}, many).button]
    assert labels == ["Sign in with google", "Sign in with okta"]


def test_an_operator_writes_under_the_own_address(store: Store, lists: None) -> None:
    story = tell_until_now(store, seeded_store.healthy_run)
    alive(store)
    at = browser(ADA)
    assert not at.exception
    assert story.config.name in texts(at)
    assert not at.text_input(key="runs_text").disabled
    at = page_of(show_live, ADA, run=str(story.id))
    at.button(key="live_pause").click().run()
    (asked,) = commands.recent(store, story.id)
    assert (asked.actor, asked.source, asked.kind) == ("ada@example.org", "dashboard", "pause")
    (entry,) = audit.find(store, audit.Filter(action="access.login"))
    assert (entry.actor, entry.result, entry.source) == ("ada@example.org", "operator", "dashboard")


def test_a_viewer_looks_and_cannot_write(store: Store, lists: None) -> None:
    story = tell_until_now(store, seeded_store.healthy_run)
    alive(store)
    at = page_of(show_live, BOB, run=str(story.id))
    assert at.button(key="live_pause").disabled
    assert "viewer" in at.button(key="live_pause").help
    forged = page_of(forge, BOB)
    assert "viewer" in forged.markdown[0].value
    with_token = page_of(forge, BOB, malleus_token=TOKEN)
    assert "viewer" in with_token.markdown[0].value, "where people sign in, the lists decide and not the token"
    assert commands.recent(store, story.id) == []


def test_a_stranger_sees_the_own_address_and_nothing_else(store: Store, lists: None) -> None:
    story = tell_until_now(store, seeded_store.healthy_run)
    at = browser(EVE)
    assert "eve@elsewhere.net may not see this installation" in at.warning[0].value
    assert story.config.name not in everything(at)
    assert [button.label for button in at.button] == ["Sign out"]


def test_an_old_sign_in_does_not_count(store: Store, lists: None) -> None:
    assert texts(browser(ADA | {"iat": time.time() - 60}))
    at = browser(ADA | {"iat": time.time() - access.LOGIN_VALID_S - 60})
    assert "more than 12 hours ago" in at.warning[0].value
    assert texts(at) == ""


def test_lists_without_sign_in_close_the_door(store: Store, lists: None) -> None:
    tell_until_now(store, seeded_store.healthy_run)
    at = browser(ADA, secrets={})
    assert "no sign-in is configured" in at.warning[0].value
    assert texts(at) == ""


def test_a_secrets_file_that_cannot_be_read_closes_the_door(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import streamlit as st
    from streamlit.runtime.secrets import Secrets

    file = tmp_path / "secrets.toml"
    file.write_text("[auth\nclient_secret = 'the-client-secret'")
    monkeypatch.setattr(st, "secrets", Secrets())
    monkeypatch.setattr("streamlit.config.get_option", _with_files(str(file)))
    monkeypatch.setattr(st, "get_option", _with_files(str(file)))
    at = browser(secrets={})
    assert "cannot be read" in at.warning[0].value
    assert "the-client-secret" not in everything(at)
    file.unlink()
    assert not browser(secrets={}).warning


def test_one_browser_knows_nothing_of_another(store: Store) -> None:
    story = tell_until_now(store, seeded_store.healthy_run)
    alive(store)
    first, second = browser(secrets={}), browser(secrets={})
    unlock(first, TOKEN, "grace")
    assert first.session_state["malleus_actor"] == "grace"
    for name in ("malleus_token", "malleus_actor", "malleus_unlocked"):
        assert name not in second.run().session_state
    assert not any(button.key == "frame_lock" for button in second.button)
    assert "grace" not in everything(second)
    page = page_of(show_live, {}, run=str(story.id), secrets={})
    assert page.button(key="live_pause").disabled


def test_guessing_is_slowed_down_for_all(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(writes, "ATTEMPTS", Attempts(clock=lambda: now[0]))
    first, second = browser(secrets={}), browser(secrets={})
    for number in range(5):
        unlock(first if number % 2 else second, f"guess {number}", "mallory")
        now[0] += 1.0
    assert "Too many wrong tokens: try again in 55" in unlock(second, TOKEN).error[0].value
    assert "malleus_token" not in second.session_state, "not even the right one"
    now[0] += 56.0
    assert not unlock(second, TOKEN, "ada").error
    told = audit.find(store, audit.Filter(action="access.unlock"))
    assert [entry.result for entry in told] == ["ok", *["refused"] * 5], "what was not even tried is not written down"
    assert {entry.actor for entry in told} == {"ada", "unknown"}
    assert "guess" not in str(told)


def test_a_token_that_was_changed_or_entered_long_ago_does_not_count(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_until_now(store, seeded_store.healthy_run)
    at = unlock(browser(secrets={}), TOKEN)
    assert any(button.key == "frame_lock" for button in at.button)
    monkeypatch.setenv("MALLEUS_TOKEN", "another")
    assert not any(button.key == "frame_lock" for button in at.run().button)
    monkeypatch.setenv("MALLEUS_TOKEN", TOKEN)
    assert any(button.key == "frame_lock" for button in at.run().button)
    at.session_state["malleus_unlocked"] = time.monotonic() - writes.UNLOCKED_S - 1
    assert not any(button.key == "frame_lock" for button in at.run().button)


def test_secrets_are_neither_on_the_page_nor_in_logs(
    store: Store, lists: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    tell_until_now(store, seeded_store.healthy_run)
    pages = [browser(user) for user in ({"is_logged_in": False}, ADA, BOB, EVE)]
    seen = "\n".join(everything(at) for at in pages) + caplog.text
    assert "eve@elsewhere.net" in seen
    assert "healthy" in seen
    for secret in ("the-client-secret", "the-cookie-secret", TOKEN):
        assert secret not in seen


def test_sign_in_by_environment_becomes_a_file_that_only_we_read(tmp_path: Path) -> None:
    environ = {
        "MALLEUS_HOME": str(tmp_path),
        "MALLEUS_OIDC_CLIENT_ID": "id",
        "MALLEUS_OIDC_CLIENT_SECRET": 'se"cret\\',
        "MALLEUS_OIDC_SERVER_METADATA_URL": "https://accounts.example.org/x",
        "MALLEUS_OIDC_REDIRECT_URI": "https://malleus.example.org/oauth2callback",
    }
    settings = Settings.from_env(environ)
    argv, environment = command(settings, environ)
    written = tmp_path / ".streamlit" / "login.toml"
    assert f"--secrets.files={written}" in argv
    assert f"--secrets.files={tmp_path / '.streamlit' / 'secrets.toml'}" in argv
    assert "se" + '"' + "cret" not in " ".join(argv) + str(environment)
    assert written.stat().st_mode & 0o777 == 0o600
    found = login_settings_of(written)
    assert found["client_secret"] == 'se"cret\\'
    assert len(found["cookie_secret"]) > 30
    command(settings, environ)
    assert login_settings_of(written)["cookie_secret"] == found["cookie_secret"], "a restart signs nobody out"
    with pytest.raises(InputError, match="MALLEUS_OIDC_CLIENT_SECRET"):
        login_settings.secrets_files(settings, environ | {"MALLEUS_OIDC_CLIENT_SECRET": ""})
    command(settings, {"MALLEUS_HOME": str(tmp_path)})
    assert not written.exists(), "what is no longer configured does not linger"


def login_settings_of(path: Path) -> dict[str, Any]:
    import tomllib

    return dict(tomllib.loads(path.read_text(encoding="utf-8"))["auth"])


def _with_files(path: str) -> Any:
    from streamlit import config

    original = config.get_option
    return lambda name: [path] if name == "secrets.files" else original(name)


def page_of(
    show: Any, user: Mapping[str, Any], *, secrets: Mapping[str, Any] = AUTH, malleus_token: str = "", **params: str
) -> AppTest:
    at = AppTest.from_function(show, default_timeout=60)
    for name, value in secrets.items():
        at.secrets[name] = value
    for name, value in params.items():
        at.query_params[name] = value
    if malleus_token:
        at.session_state["malleus_token"] = malleus_token
    at.user = dict(user)
    return at.run()


def show_live() -> None:
    from app.dashboard.views import live

    live.show()


def forge() -> None:
    import streamlit as st

    from app.dashboard import writes

    writes.submit(1, "pause", {}, form="pause")
    st.write(writes.form_state("pause").error)
