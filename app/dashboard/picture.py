"""Mounts HTML drawings in the page and reports what is clicked in them.

The drawing modules are pure; this is the one place where their HTML meets Streamlit. The browser
side (`static/picture.js`, dressed by `static/picture.css`) patches the old drawing instead of
replacing it, so nothing flickers, and lets ages grow on its own. Text in a drawing must be escaped
by who draws it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import streamlit as st

from app.dashboard import assets
from app.dashboard.links import followed

_mount = st.components.v2.component("malleus_picture", js=assets.loader("picture.js"), isolate_styles=False)


def picture(
    html: str,
    *,
    key: str,
    mode: Literal["", "one", "many"] = "",
    selected: Sequence[str] = (),
    on_pick: Callable[[list[str]], None] | None = None,
) -> tuple[str, Mapping[str, str]] | None:
    """Shows a drawing.

    Args:
        html: the drawing; links are made with `links.link`.
        key: stable name of this place in the page.
        mode: whether `[data-pick]` elements can be selected, one or many at a time.
        selected: what is selected now.
        on_pick: called (before the page runs again) with the whole new selection.

    Returns:
        `(page, params)` of a link that was just followed, else None.
    """

    def picked() -> None:
        values = _state(key).get("pick")
        if on_pick is not None and values is not None:
            on_pick([str(value) for value in values])

    result = _mount(
        key=key,
        data={"html": html, "mode": mode, "selected": list(selected), "stamp": time.time_ns() // 1_000_000},
        on_pick_change=picked,
        on_go_change=lambda: None,
    )
    return followed(getattr(result, "go", None))


def _state(key: str) -> Mapping[str, Any]:
    state = st.session_state.get(key)
    return state if isinstance(state, Mapping) else {}
