"""Command rows: the only module of the dashboard that writes.

Every write is a command (`db.commands.submit`) or a what-if (`db.what_ifs.submit`) that the controller picks up;
the page then waits for what comes of it. Writing needs the installation's token, which a person enters once a browser
session; it is kept in that session only. Each form instance has an idempotency key, so a double click
or a rerun acts once.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

from app.dashboard import quantities as q
from app.dashboard import reads
from app.dashboard.snapshot import SERVICE_SILENT_S, Snapshot
from db import commands, what_ifs
from db.errors import InputError, StoreError, TransitionError
from db.messages import utc_now
from db.what_if_request import MAX_LIMIT_S

_TOKEN, _ACTOR, _FORMS = "malleus_token", "malleus_actor", "malleus_forms"

MAX_REASON = 200

READ_ONLY = "Read-only: unlock with the write token (top right) first."


@dataclass
class Form:
    """One instance of a form in one browser session: its key, and what came of the last submit."""

    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    command: int | None = None
    error: str = ""


def is_unlocked() -> bool:
    """Whether this browser session has entered the token (checked anew at every write)."""
    given = st.session_state.get(_TOKEN)
    if not isinstance(given, str) or not given:
        return False
    return hmac.compare_digest(given.encode(), reads.write_token().encode())


def unlock(token: str, actor: str) -> bool:
    """Keeps a token in this session if it is the right one.

    Args:
        actor: the person's name for the audit; may be empty.
    """
    if not token or not hmac.compare_digest(token.strip().encode(), reads.write_token().encode()):
        return False
    st.session_state[_TOKEN] = token.strip()
    st.session_state[_ACTOR] = actor.strip()[:60]
    return True


def lock() -> None:
    """Forgets the token."""
    st.session_state.pop(_TOKEN, None)


def actor() -> str:
    """Who writes, for the audit."""
    return st.session_state.get(_ACTOR) or "dashboard"


def refusal(snapshot: Snapshot) -> str:
    """Why a command to this run cannot work now; empty if it can."""
    run = snapshot.run
    if not run.is_open:
        return f"Run {run.id} has ended ({run.status})."
    silent_s = snapshot.silent_s("controller")
    if silent_s is not None:
        since = "has never been heard" if silent_s == float("inf") else f"has been silent for {q.age(silent_s)}"
        return f"The controller {since}; nobody would take the command up."
    return "" if is_unlocked() else READ_ONLY


def submit(run: int, kind: str, arguments: Mapping[str, Any], *, form: str, by: str = "") -> None:
    """Submits a command; the form then knows its id, or why it was refused.

    The same arguments from the same form instance give the same command row.

    Args:
        form: stable name of the form in the page.
        by: who submits it; this session's person by default.
    """
    state = form_state(form)
    state.error = ""
    if not is_unlocked():
        state.error = READ_ONLY
        return
    digest = hashlib.sha256(json.dumps([kind, arguments], sort_keys=True).encode()).hexdigest()[:12]
    try:
        command = commands.submit(
            reads.store(), run, kind, arguments, actor=by or actor(), source="dashboard", key=f"{state.key}:{digest}"
        )
    except (InputError, StoreError) as error:
        state.error = str(error)
    else:
        state.command = command.id


def decide(run: int, kind: str, version: int, reason: str) -> None:
    """Submits what a person decided about a plan (approve, reject, rollback).

    Args:
        reason: why, for the audit: it stands beside the person's name, who is recorded as the decider.
    """
    why = " ".join(reason.split())[:MAX_REASON]
    submit(run, kind, {"version": version}, form="decide", by=f"{actor()} ({why})" if why else "")


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
    return "" if is_unlocked() else READ_ONLY


def ask(request: Mapping[str, Any], run: int | None) -> int | None:
    """Asks a what-if; returns its id, or None if it was refused (the form `ask` knows why).

    The same question from the same form instance is the same what-if.
    """
    state = form_state("ask")
    state.error = ""
    if not is_unlocked():
        state.error = READ_ONLY
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
        state.error = READ_ONLY
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
