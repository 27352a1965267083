"""Health: whether every part of the system works, since when, and what to do. Layout only.

The address says what is shown: `?health_show=not ok` leaves out what is fine.
"""

from __future__ import annotations

import streamlit as st

from app.dashboard import frame, health_table, reads
from app.dashboard.download_buttons import download_buttons
from app.dashboard.live_part import live_part
from app.dashboard.picture import picture
from app.health import overall
from db.errors import StoreError
from db.messages import utc_now

REFRESH_S = 2.0
SHOWN = ("all", "not ok")


def show() -> None:
    """The page."""
    live_part(_health, every_s=REFRESH_S)()


def _health() -> None:
    try:
        items = reads.health()
    except StoreError as error:
        frame.broken(error)
        return
    now = utc_now()
    found = overall(items)
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        state = health_table.mark(found.state, found.word)
        picture(f'<div class="run-line"><span class="run-name">Health</span>{state}</div>', key="health_head")
        shown = st.segmented_control(
            "Show", SHOWN, default="all", key="health_show", label_visibility="collapsed", bind="query-params"
        )
    kept = [item for item in items if item.state != "ok"] if shown == "not ok" else items
    frame.follow(picture(health_table.health_tables(kept, now=now), key="health_tables"))
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        download_buttons(
            "health", lambda: health_table.records(items), key="health", help="All of it, also what is not shown."
        )
        picture('<p class="muted">The same by <code>malleus health</code>.</p>', key="health_hint")
