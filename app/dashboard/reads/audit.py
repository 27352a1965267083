"""The audit: a page of what matches, how much does, and what can be chosen from."""

from __future__ import annotations

import streamlit as st

from app.dashboard.reads.source import FRESH_S, store
from app.dashboard.table import Sorting
from db import audit
from db.audit import AuditView, Choices, Filter

CHOICES_FRESH_S = 10.0
"""How long what the audit can be filtered by is kept."""


def audit_page(wanted: Filter, sorting: Sorting, *, limit: int, offset: int) -> list[AuditView]:
    """Audit entries that match, sorted."""
    return _audit_page(repr((wanted, sorting)), wanted, sorting, limit, offset)


def audit_count(wanted: Filter) -> int:
    """How many audit entries match."""
    return _audit_count(repr(wanted), wanted)


@st.cache_resource(show_spinner=False, ttl=CHOICES_FRESH_S)
def audit_choices() -> Choices:
    """What the audit can be filtered by."""
    return audit.choices(store())


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=50)
def _audit_page(key: str, _wanted: Filter, _sorting: Sorting, limit: int, offset: int) -> list[AuditView]:
    return audit.find(
        store(), _wanted, sort=_sorting.column, is_descending=_sorting.is_descending, limit=limit, offset=offset
    )


@st.cache_resource(show_spinner=False, ttl=FRESH_S, max_entries=50)
def _audit_count(key: str, _wanted: Filter) -> int:
    return audit.count(store(), _wanted)
