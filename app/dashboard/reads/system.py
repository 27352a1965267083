"""The system: the last beat of its services, and how its parts are."""

from __future__ import annotations

import streamlit as st

from app.dashboard.reads.source import FRESH_S, store
from app.health import examine, read_inputs
from app.health_facts import Item
from db import heartbeats
from db.heartbeats import BeatView
from db.store_facts import StoreFacts, store_facts

HEALTH_FRESH_S = 1.5
"""Browsers that ask for health within this time share one examination."""

STORE_FRESH_S = 30.0
"""The same for size and rows of the store, whose count takes longest."""


@st.cache_resource(show_spinner=False, ttl=FRESH_S)
def beats() -> dict[str, BeatView]:
    """The last beat of every service."""
    return heartbeats.all_beats(store())


@st.cache_resource(show_spinner=False, ttl=HEALTH_FRESH_S)
def health() -> list[Item]:
    """How the parts of the system are."""
    return examine(read_inputs(store(), facts=_store_facts()))


@st.cache_resource(show_spinner=False, ttl=STORE_FRESH_S)
def _store_facts() -> StoreFacts:
    return store_facts(store())
