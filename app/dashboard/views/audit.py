"""Audit: who did what, when, from where, on what, with which result. Layout only.

The address says all: the filters by their own names (`audit_actor`, ...), `sort=actor-` the order, `audit_page`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import streamlit as st

from app.dashboard import audit_table, frame, reads
from app.dashboard.download_buttons import download_buttons
from app.dashboard.live_part import live_part
from app.dashboard.picture import picture
from app.dashboard.table import Sorting
from db.audit import SORTS, Filter
from db.errors import StoreError
from db.messages import utc_now

REFRESH_S = 3.0
PER_PAGE = 25
MAX_DOWNLOAD = 10_000
ANY = "any"
FILTERS = {
    "audit_text": "",
    "audit_run": ANY,
    "audit_actor": ANY,
    "audit_source": ANY,
    "audit_action": ANY,
    "audit_result": ANY,
    "audit_last": "all",
    "audit_after": None,
    "audit_before": None,
}
"""What is filtered by, and what each filter is when it is not set."""
_FOLLOWED = "malleus_audit_followed"
LAST = {
    "all": None,
    "15 m": timedelta(minutes=15),
    "1 h": timedelta(hours=1),
    "24 h": timedelta(days=1),
    "7 d": timedelta(days=7),
}


def show() -> None:
    """The page."""
    live_part(_audit, every_s=REFRESH_S)()


def _audit() -> None:
    try:
        _list()
    except StoreError as error:
        frame.broken(error)


def _list() -> None:
    _narrow()
    now = utc_now()
    head = st.container()
    wanted = _filters(now)
    sorting = _sorting()
    number = reads.audit_count(wanted)
    last = max(1, -(-number // PER_PAGE))
    asked = st.query_params.get("audit_page", "1")
    page = min(int(asked) if asked.isdigit() and int(asked) > 0 else 1, last)
    entries = reads.audit_page(wanted, sorting, limit=PER_PAGE, offset=(page - 1) * PER_PAGE)
    with head:
        count = f'<span class="fact"><b>{number:,}</b> {"entry" if number == 1 else "entries"}</span>'
        picture(f'<div class="run-line"><span class="run-name">Audit</span>{count}</div>', key="audit_head")
    drawing = audit_table.audit_table(entries, sorting, now=now, is_filtered=wanted != Filter())
    target = picture(drawing, key="audit_table")
    if target is not None and target[0] == "sort":
        toggled = sorting.toggled(target[1]["column"])
        st.query_params["sort"] = toggled.column + ("-" if toggled.is_descending else "")
        st.rerun(scope="fragment")
    if target is not None and target[0] == "audit":
        st.session_state[_FOLLOWED] = dict(target[1])
        st.rerun()
    frame.follow(target)
    _foot(wanted, sorting, page, last)


def _filters(now: datetime) -> Filter:
    known = reads.audit_choices()
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="audit_filters"):
        # Together they fit one line of a window of 1280.
        text = st.text_input("Text", placeholder="in any part", key="audit_text", width=130, bind="query-params")
        run = _choice("Run", "audit_run", [str(run) for run in reversed(known.runs)], 75)
        actor = _choice("Who", "audit_actor", known.actors, 115)
        source = _choice("Through", "audit_source", known.sources, 110)
        action = _choice("Action", "audit_action", known.actions, 140)
        result = _choice("Result", "audit_result", known.results, 115)
        span = st.selectbox("Last", list(LAST), key="audit_last", width=85, bind="query-params")
        since, until = (
            st.datetime_input(f"{name} (UTC)", value=None, key=f"audit_{name.lower()}", width=172, bind="query-params")
            for name in ("After", "Before")
        )
    length = LAST.get(span or "all")
    starts = [at for at in (_utc(since), now.replace(microsecond=0) - length if length else None) if at is not None]
    return Filter(
        run=int(run) if run.isdigit() else None,
        actor=actor,
        source=source,
        action=action,
        result=result,
        text=text.strip(),
        since=max(starts, default=None),
        until=_utc(until),
    )


def _choice(label: str, key: str, values: Sequence[str], width: int) -> str:
    """One of the values that occur, or that the address asks for; empty for any."""
    asked = st.query_params.get(key)
    options = [ANY, *values, *([asked] if asked and asked not in (ANY, *values) else [])]
    chosen = st.selectbox(label, options, key=key, width=width, bind="query-params")
    return "" if chosen in (None, ANY) else str(chosen)


def _sorting() -> Sorting:
    asked = st.query_params.get("sort", "at-")
    column = asked.rstrip("-")
    return Sorting(column=column if column in SORTS else "at", is_descending=asked.endswith("-"))


def _narrow() -> None:
    """A link to this very page was followed: its filters become the ones in the link, before they are drawn.

    They are set, not forgotten: a filter that is forgotten would take its value from the address again.
    """
    params = st.session_state.pop(_FOLLOWED, None)
    if params is None:
        return
    st.session_state.update(FILTERS | params)
    st.query_params.pop("audit_page", None)


def _foot(wanted: Filter, sorting: Sorting, page: int, last: int) -> None:
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            download_buttons(
                "audit",
                lambda: audit_table.records(reads.audit_page(wanted, sorting, limit=MAX_DOWNLOAD, offset=0)),
                key="audit",
                help=f"All entries that match, the first {MAX_DOWNLOAD:,} at most.",
            )
            picture('<p class="muted">The same by <code>malleus audit</code>.</p>', key="audit_hint")
        if last > 1:
            st.session_state["audit_page_box"] = page
            st.number_input(
                "Page", 1, last, key="audit_page_box", width=140, help=f"{last} pages", on_change=_turn_page
            )


def _turn_page() -> None:
    st.query_params["audit_page"] = str(st.session_state["audit_page_box"])


def _utc(at: datetime | None) -> datetime | None:
    return None if at is None else at.replace(tzinfo=UTC)
