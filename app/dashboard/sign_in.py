"""What is shown before sign-in: who this is for, a button, and why not, where not. Nothing of the installation."""

from __future__ import annotations

import importlib.util

import streamlit as st
from streamlit.errors import StreamlitSecretNotFoundError

from app.dashboard import access
from app.dashboard.access import Person


def show(person: Person) -> None:
    """The page, instead of any other."""
    with st.container(key="sign_in", width=420):
        st.subheader("Malleus", anchor=False)
        if person.problem:
            st.warning(person.problem)
        if person.name:
            st.button("Sign out", on_click=st.logout, key="sign_out")
            return
        try:
            providers = access.login_providers()
        except StreamlitSecretNotFoundError:
            return
        if providers is None:
            return
        if importlib.util.find_spec("authlib") is None:
            st.warning("Sign-in needs the package Authlib: install `malleus[login]` where the dashboard runs.")
            return
        st.caption("Sign in to see this installation.")
        for provider in providers or [""]:
            label = f"Sign in with {provider}" if provider else "Sign in"
            args = (provider,) if provider else ()
            st.button(label, type="primary", on_click=st.login, args=args, key=f"sign_in_{provider or 'default'}")
