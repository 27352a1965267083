"""Brings who signs in back to the address that they had asked for, which their tab remembers meanwhile."""

from __future__ import annotations

import streamlit as st

from app.dashboard import assets

_KEY = "malleus_sign_in_return"
_mount = st.components.v2.component(_KEY, js=assets.loader("sign_in_return.js"), isolate_styles=False)


def sign_in_return(*, is_let_in: bool) -> None:
    """Before sign-in remembers the address, after it leads there, once."""
    with st.container(key="sign_in_return"):
        _mount(data={"is_let_in": is_let_in}, key=_KEY)
