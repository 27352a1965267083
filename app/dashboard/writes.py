"""Command rows, and the start of runs: the only module of the dashboard that writes.

Every write is a command (`db.commands.submit`) or a what-if (`db.what_ifs.submit`) that the controller picks
up; the page then waits for what comes of it. A run is registered and handed to a trainer in the background, as
`malleus train --detach` does. Writing needs an operator who signed in or, where nobody signs in (`access`), the
installation's token, which a person enters once a browser session; it is kept in that session only. Each form
instance has an idempotency key, so a double click or a rerun acts once. Who unlocked or signed in, and who
tried, goes into the audit.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

from app.dashboard import access, reads
from app.dashboard import quantities as q
from app.dashboard.attempts import Attempts
from app.dashboard.snapshot import SERVICE_SILENT_S, Snapshot
from app.errors import LocalError
from app.local import detached
from app.local.origin import origin
from app.local.run_start import prepared, register
from app.local.trainer import MAX_RESTARTS, check_controller
from app.schedule_file import situation_schedule
from db import audit, commands, schedule, what_ifs
from db.errors import InputError, StoreError, TransitionError
from db.messages import utc_now
from db.run_config import RunConfig
from db.what_if_request import MAX_LIMIT_S
from planner.errors import PlannerError

_TOKEN, _ACTOR, _FORMS = "malleus_token", "malleus_actor", "malleus_forms"
_UNLOCKED, _NOTED = "malleus_unlocked", "malleus_noted"

BY_CONTROLLER = frozenset({"set_mode", "replan", "reject", "propose", "stop"})
"""Commands that the controller alone carries out (of a stop it takes note), so that a silent engine does not stand in
their way. The others change what the engine runs."""

UNLOCKED_S = 12 * 3600.0
"""So long does an entered token count."""

log = logging.getLogger(__name__)

MAX_REASON = commands.MAX_REASON_LENGTH

SITUATION_AT_S = 20.0
"""Seconds of healthy training before the situation that a run is started with."""

READ_ONLY = "Read-only: unlock with the write token (top right) first."
VIEWER_ONLY = "Read-only: you are signed in as a viewer."

ATTEMPTS = Attempts()
"""Of all browsers together."""


@dataclass
class Form:
    """One instance of a form in one browser session: its key, and what came of the last submit."""

    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    command: int | None = None
    run: int | None = None
    error: str = ""


def is_unlocked() -> bool:
    """Whether this browser session may write (checked anew at every write): an operator, or who entered the token."""
    person = access.person()
    if person.by_login:
        return person.role == "operator"
    given = st.session_state.get(_TOKEN)
    if not isinstance(given, str) or not given:
        return False
    return not _has_expired() and _is_token(given)


def unlock(token: str, actor: str) -> str:
    """Keeps a token in this session if it is the right one.

    Args:
        actor: the person's name for the audit; may be empty.

    Returns:
        Why it was refused; empty if it was not.
    """
    if access.person().by_login:
        return "Here people sign in; the token does not count."
    is_right, wait_s = ATTEMPTS.attempt(lambda: _is_token(token.strip()))
    if wait_s:
        return f"Too many wrong tokens: try again in {q.duration(max(wait_s, 1.0))}."
    _note("access.unlock", actor=actor.strip()[:60] if is_right else "unknown", result="ok" if is_right else "refused")
    if not is_right:
        return "This is not the write token of this installation."
    st.session_state[_TOKEN] = token.strip()
    st.session_state[_ACTOR] = actor.strip()[:60]
    st.session_state[_UNLOCKED] = time.monotonic()
    return ""


def lock() -> None:
    """Forgets the token."""
    st.session_state.pop(_TOKEN, None)


def actor() -> str:
    """Who writes, for the audit."""
    person = access.person()
    return person.name if person.by_login else st.session_state.get(_ACTOR) or "dashboard"


def read_only() -> str:
    """Why this session may not write; empty if it may."""
    if is_unlocked():
        return ""
    if access.person().by_login:
        return VIEWER_ONLY
    return "Read-only: the token was entered long ago; enter it again." if _has_expired() else READ_ONLY


def note_login(person: access.Person) -> None:
    """Writes down who signed in, once a browser session."""
    if person.by_login and person.name and st.session_state.get(_NOTED) != person.name:
        st.session_state[_NOTED] = person.name
        _note("access.login", actor=person.name, result=person.role)


def refusal(snapshot: Snapshot, kind: str = "") -> str:
    """Why a command to this run cannot work now; empty if it can.

    Args:
        kind: of the command; the engine must be heard unless it is one `BY_CONTROLLER`.
    """
    run = snapshot.run
    if not run.is_open:
        return f"Run {run.id} has ended ({run.status})."
    silent_s = snapshot.silent_s("controller")
    if silent_s is not None:
        since = "has never been heard" if silent_s == float("inf") else f"has been silent for {q.age(silent_s)}"
        return f"The controller {since}; nobody would take the command up."
    if kind not in BY_CONTROLLER and snapshot.is_stale:
        return f"The engine has been silent for {q.age(snapshot.data_age_s)}; nobody would carry the command out."
    return read_only()


def submit(run: int, kind: str, arguments: Mapping[str, Any], *, form: str) -> None:
    """Submits a command; the form then knows its id, or why it was refused.

    The same arguments from the same form instance give the same command row.

    Args:
        form: stable name of the form in the page.
    """
    state = form_state(form)
    state.error = ""
    state.error = read_only()
    if state.error:
        return
    digest = hashlib.sha256(json.dumps([kind, arguments], sort_keys=True).encode()).hexdigest()[:12]
    try:
        command = commands.submit(
            reads.store(), run, kind, arguments, actor=actor(), source="dashboard", key=f"{state.key}:{digest}"
        )
    except (InputError, StoreError) as error:
        state.error = str(error)
    else:
        state.command = command.id


def typed(key: str) -> str:
    """What stands in a text field, for the callback of a button: no drawn page has what was typed just before."""
    return st.session_state.get(key) or ""


def start_refusal() -> str:
    """Why no run can be started now; empty if one can."""
    try:
        check_controller(reads.store())
    except InputError as error:
        return str(error)
    return "" if is_unlocked() else READ_ONLY


def start_run(config: RunConfig, *, origin_run: int | None, situation: str, form: str) -> None:
    """Registers a run and hands it to a trainer; the form then knows its id, or why it was refused.

    One form instance starts one run, however often it is submitted.

    Args:
        origin_run: start from the newest checkpoint of this run; None: as the configuration says.
        situation: played once the run has trained for `SITUATION_AT_S`; empty: none.
    """
    state = form_state(form)
    if state.run is not None:
        return
    state.error = start_refusal()
    if state.error:
        return
    store, settings = reads.store(), reads.settings()
    try:
        start = prepared(config, settings.home)
        if origin_run is not None:
            start = start.starting_from(origin(store, str(origin_run), settings.home))
        entries = situation_schedule(situation, config.nodes, at_s=SITUATION_AT_S) if situation else ()
        run = register(store, start, actor=actor(), source="dashboard", key=f"form:{state.key}")
        if entries:
            arguments = schedule.arguments(situation, entries)
            commands.submit(store, run.id, "play", arguments, actor=actor(), source="dashboard", key="start")
        pid = detached.start(store, settings, run.id, max_restarts=MAX_RESTARTS)
        detached.attend(store, run.id, pid)
    except (InputError, PlannerError, StoreError) as error:
        state.error = str(error)
    except LocalError as error:  # the run is there, and failed: another try is another run
        st.session_state[_FORMS][form] = Form(error=str(error))
    else:
        state.run = run.id


def new_form(form: str) -> None:
    """The next submit is of another instance."""
    st.session_state.get(_FORMS, {}).pop(form, None)


def ask_refusal() -> str:
    """Why a what-if cannot be answered now; empty if it can."""
    beats = reads.beats()
    for service in ("controller", "worker"):
        beat = beats.get(service)
        age_s = None if beat is None else (utc_now() - beat.at).total_seconds()
        is_solving = beat is not None and beat.detail.get("state") == "solving"  # it does not beat meanwhile
        if age_s is None or age_s > SERVICE_SILENT_S + (MAX_LIMIT_S if is_solving else 0.0):
            since = "has never been heard" if age_s is None else f"has been silent for {q.age(age_s)}"
            return f"The {service} {since}; nobody would answer. `malleus up` starts it."
    return read_only()


def ask(request: Mapping[str, Any], run: int | None) -> int | None:
    """Asks a what-if; returns its id, or None if it was refused (the form `ask` knows why).

    The same question from the same form instance is the same what-if.
    """
    state = form_state("ask")
    state.error = ""
    if not is_unlocked():
        state.error = read_only()
        return None
    digest = hashlib.sha256(json.dumps([run, request], sort_keys=True).encode()).hexdigest()[:12]
    try:
        asked = what_ifs.submit(
            reads.store(), request, run=run, actor=actor(), source="dashboard", key=f"{state.key}:{digest}"
        )
    except (InputError, StoreError) as error:
        state.error = str(error)
        return None
    state.command = asked.id
    return asked.id


def withdraw(id: int) -> None:
    """Cancels a what-if; one that has ended meanwhile stays as it is."""
    state = form_state("ask")
    state.error = ""
    if not is_unlocked():
        state.error = read_only()
        return
    try:
        what_ifs.cancel(reads.store(), id, actor=actor())
    except TransitionError:
        return
    except (InputError, StoreError) as error:
        state.error = str(error)


def settle_ask() -> Form:
    """Called when the page draws the form: a what-if that has ended makes room for a new instance."""
    state = form_state("ask")
    if state.command is not None and not reads.what_if(state.command).is_open:
        fresh = Form(error=state.error)
        st.session_state[_FORMS]["ask"] = fresh
        return fresh
    return state


def form_state(form: str) -> Form:
    """The form's instance in this session."""
    forms: dict[str, Form] = st.session_state.setdefault(_FORMS, {})
    return forms.setdefault(form, Form())


def settle(form: str) -> Form:
    """Called when a page draws the form: a command that has ended makes room for a new instance."""
    state = form_state(form)
    if state.command is not None and reads.command(state.command).status in ("applied", "failed"):
        fresh = Form(error=state.error)
        st.session_state[_FORMS][form] = fresh
        return fresh
    return state


def _is_token(given: str) -> bool:
    """Compared by digest: the time tells neither how much of it is right nor how long it should be."""
    wanted = hashlib.sha256(reads.write_token().encode()).digest()
    return hmac.compare_digest(hashlib.sha256(given.encode()).digest(), wanted)


def _has_expired() -> bool:
    at_s = st.session_state.get(_UNLOCKED)
    return isinstance(at_s, float) and _TOKEN in st.session_state and time.monotonic() - at_s > UNLOCKED_S


def _note(action: str, *, actor: str, result: str) -> None:
    try:
        audit.record(reads.store(), actor=actor or "dashboard", action=action, result=result, source="dashboard")
    except StoreError as error:
        log.warning("not in the audit: %s by %s: %s", action, actor, error)
