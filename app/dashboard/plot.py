"""Mounts a Plotly figure that the browser updates in place.

The framework's own Plotly element starts anew with every new figure, which flickers and forgets the
zoom; this one keeps the plot and hands it new data (`Plotly.react`), so zoom and hover survive a
refresh (`uirevision`). Figures are plain dicts; Plotly itself is not imported by the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from app.dashboard import assets
from app.dashboard.links import followed

_mount = st.components.v2.component("malleus_plot", js=assets.loader("plot.js"), isolate_styles=False)


def plot(
    figure: dict[str, Any], *, key: str, alt: str, on_pick: Callable[[str], None] | None = None
) -> tuple[str, Mapping[str, str]] | None:
    """Shows a figure. A click on a trace whose `meta` is `go` follows the link in the point's `customdata`
    (JSON, as in `links`), one whose `meta` is `pick` picks the point's y value.

    Args:
        figure: `data`, `layout` (with a height) and `config` as Plotly's JSON; no NaN (use None).
        key: stable name of this place in the page.
        alt: the figure in words, for a screen reader.
        on_pick: called (before the page runs again) with the y value of a picked point.

    Returns:
        `(page, params)` of a link that was just followed, else None.
    """

    def picked() -> None:
        state = st.session_state.get(key)
        value = state.get("pick") if isinstance(state, Mapping) else None
        if on_pick is not None and value is not None:
            on_pick(str(value))

    result = _mount(
        key=key,
        data={"figure": figure, "alt": alt, "script": assets.plotly_url()},
        on_pick_change=picked,
        on_go_change=lambda: None,
    )
    return followed(getattr(result, "go", None))
