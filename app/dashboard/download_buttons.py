"""Buttons whose file is made when they are pressed, for parts of a page that refresh by themselves.

The framework's own download button is no good there. Given the text, that has to be written anew at every refresh.
Given a function, it is gone with the next refresh while its button may still be on the screen, and the file that it
makes is removed by the second refresh after, fetched or not (see `streamlit.runtime.media_file_manager`). Here a press
is like any other: its callback makes the text, the next drawing carries it to the browser, and once
`static/download.js` has saved it, it is forgotten.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from app.dashboard import assets
from app.dashboard.downloads import csv_text, json_text
from db.errors import StoreError

Rows = Callable[[], Sequence[Mapping[str, Any]]]

KINDS = {"csv": ("text/csv", csv_text), "json": ("application/json", json_text)}

_mount = st.components.v2.component("malleus_download", js=assets.loader("download.js"), isolate_styles=False)


def download_buttons(name: str, rows: Rows, *, key: str, help: str) -> None:
    """CSV and JSON of some rows.

    Args:
        name: of the file, without its ending.
        rows: called when a button is pressed.
        key: stable name of this place in the page.
    """
    for kind in KINDS:
        st.button(
            kind.upper(),
            icon=":material/download:",
            key=f"{key}_{kind}",
            help=help,
            on_click=_make,
            args=(name, rows, kind, key),
        )
    made = st.session_state.get(_made(key))
    if made is not None:
        with st.container(key=f"download_{key}"):
            _mount(key=f"{key}_file", data=made, on_saved_change=lambda: st.session_state.pop(_made(key), None))


def _made(key: str) -> str:
    return f"{key}_made"


def _make(name: str, rows: Rows, kind: str, key: str) -> None:
    mime, text = KINDS[kind]
    try:
        made = text(rows())
    except StoreError:  # the page says so
        return
    st.session_state[_made(key)] = {"id": uuid.uuid4().hex, "name": f"{name}.{kind}", "mime": mime, "text": made}
