"""Where reads come from: the settings, the open store, and how long all browsers share what was read."""

from __future__ import annotations

import streamlit as st

from db.settings import Settings
from db.store import Store

FRESH_S = 0.6
"""Browsers that ask again within this time share one read."""

ENDED_FRESH_S = 20.0
"""The same for runs that have ended."""


@st.cache_resource(show_spinner=False)
def settings() -> Settings:
    """Where this installation keeps its data."""
    return Settings.from_env()


@st.cache_resource(show_spinner=False)
def store() -> Store:
    """The open store.

    Raises:
        StoreError: unreachable or without schema (not cached: the next refresh tries again).
    """
    return Store.open(settings().database_url)


def write_token() -> str:
    """The token that writes need."""
    return settings().write_token()
