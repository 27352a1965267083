"""Mounts a Plotly figure that the browser updates in place.

The framework's own Plotly element starts anew with every new figure, which flickers and forgets the
zoom; this one keeps the plot and hands it new data (`Plotly.react`), so zoom and hover survive a
refresh (`uirevision`). Figures are plain dicts; Plotly itself is not imported by the server.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.dashboard import assets

_mount = st.components.v2.component("malleus_plot", js=assets.loader("plot.js"), isolate_styles=False)


def plot(figure: dict[str, Any], *, key: str, alt: str) -> None:
    """Shows a figure.

    Args:
        figure: `data`, `layout` (with a height) and `config` as Plotly's JSON; no NaN (use None).
        key: stable name of this place in the page.
        alt: the figure in words, for a screen reader.
    """
    _mount(key=key, data={"figure": figure, "alt": alt, "script": assets.plotly_url()})
