"""Parts of a page that refresh by themselves, and rest while the browser tab is hidden."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from app.dashboard import assets
from app.dashboard.refresh_log import logged

_KEY = "malleus_visibility"
_mount = st.components.v2.component("malleus_visibility", js=assets.loader("visibility.js"), isolate_styles=False)


def watch_visibility() -> None:
    """Mounts the watcher; once a page, outside of live parts."""
    with st.container(key="visibility"):
        _mount(key=_KEY, on_hidden_change=lambda: None)


def live_part(draw: Callable[..., None], *, every_s: float) -> Callable[..., Any]:
    """A function that draws a part of the page, again every `every_s` seconds while the tab is visible."""
    state = st.session_state.get(_KEY)
    is_hidden = bool(state.get("hidden")) if isinstance(state, Mapping) else False
    return st.fragment(logged(draw), run_every=None if is_hidden else every_s)
