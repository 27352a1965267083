"""The picture frame around every page: chrome, health, run picker, access.

Says which run the page is about (query parameter, else this session's last, else the newest) and
keeps it in the address, so that every view can be linked and reloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import streamlit as st

from app.dashboard import access, assets, health_table, reads, writes
from app.dashboard.live_part import live_part, watch_visibility
from app.dashboard.picture import picture
from app.health import overall
from db.errors import InputError, StoreError
from db.runs import RunView

_STYLES = ("frame.css", "picture.css", "health.css")
_CSS = "\n".join((assets.STATIC / name).read_text(encoding="utf-8") for name in _STYLES)
_ICON = str(assets.STATIC / "favicon.svg")
_RUN = "malleus_run"
HEALTH_REFRESH_S = 5.0


def dress(run: RunView | None, title: str = "") -> None:
    """Title, icon, style: before anything else on the page.

    Args:
        run: the run that the page is about; the title names it and its state.
        title: of a page that is about no single run.
    """
    name = " · ".join(part for part in (f"run {run.id} {run.status}" if run is not None else title, "Malleus") if part)
    st.set_page_config(page_title=name, page_icon=_ICON, layout="wide")
    st.logo(_ICON, size="small")
    st.html(f"<style>{_CSS}</style>")
    assets.serve()
    watch_visibility()


def current_run() -> RunView | None:
    """The run that this page is about; None if there is none, or if the address names an unknown one.

    Raises:
        StoreError: the store cannot be read.
    """
    asked = st.query_params.get("run") or st.session_state.get(_RUN)
    run = int(asked) if asked is not None and str(asked).isdigit() else reads.newest_run()
    if run is None:
        return None
    try:
        found = reads.run(run)
    except InputError:
        return None
    st.session_state[_RUN] = found.id
    return found


def problem_with_address() -> str:
    """Why the address names no run; empty if it does or names none."""
    asked = st.query_params.get("run")
    if asked is None:
        return ""
    if not asked.isdigit():
        return f"run must be a number, given {asked!r}"
    try:
        reads.run(int(asked))
    except InputError as error:
        return str(error)
    return ""


def keep_address(run: int, **others: str | None) -> None:
    """Writes the view into the address: what is None is left out."""
    wanted = {"run": str(run)} | {name: value for name, value in others.items() if value}
    if dict(st.query_params) != wanted:
        st.query_params.from_dict(wanted)


def follow(target: tuple[str, Mapping[str, str]] | None) -> None:
    """Goes where a link of a drawing points."""
    if target is None:
        return
    page, params = target
    if "run" in params:
        st.session_state[_RUN] = int(params["run"])
    st.switch_page(PAGES[page], query_params=dict(params))


PAGES: dict[str, st.Page] = {}
"""The pages by name; filled by the router."""


def corner(*, has_picker: bool, run: RunView | None) -> None:
    """Top right: how the system is, which run, and whether this session may write."""
    with st.container(key="frame_right", horizontal=True, vertical_alignment="center", gap="small"):
        with st.container(key="frame_health_box", width="content"):
            live_part(_health, every_s=HEALTH_REFRESH_S)()
        if has_picker and run is not None:
            _picker(run)
        _access()


def _health() -> None:
    try:
        found = overall(reads.health())
    except StoreError:
        return  # the page says so
    follow(picture(health_table.corner_mark(found), key="frame_health"))


def _picker(run: RunView) -> None:
    names = {found.id: _name(found) for found in [*reads.all_runs(), run]}
    ids = sorted(names, reverse=True)
    chosen = st.selectbox(
        "Run",
        ids,
        index=ids.index(run.id),
        format_func=lambda entry: names.get(entry, f"run {entry}"),
        label_visibility="collapsed",
        key=f"frame_picker_{run.id}",
    )
    if chosen != run.id:
        st.session_state[_RUN] = chosen
        st.query_params.from_dict({"run": str(chosen)})
        st.rerun()


def _name(run: RunView) -> str:
    return f"run {run.id} · {run.name}" + ("" if run.is_open else f" · {run.status}")


def _access() -> None:
    person = access.person()
    if person.by_login:
        icon = ":material/lock_open:" if person.role == "operator" else ":material/lock:"
        with st.popover(person.name, icon=icon, help=f"Signed in as {person.role}.", key="frame_person"):
            st.caption(f"Signed in as {person.role}." + ("" if person.role == "operator" else " Viewers cannot write."))
            st.button("Sign out", on_click=st.logout, key="frame_sign_out")
        return
    if writes.is_unlocked():
        with st.popover(
            f"{writes.actor()}", icon=":material/lock_open:", help="This session may write.", key="frame_open"
        ):
            st.caption("This browser session may write. The token is forgotten when the tab is closed.")
            st.button("Lock", on_click=writes.lock, key="frame_lock")
        return
    with (
        st.popover("Read-only", icon=":material/lock:", help="Writes need the write token.", key="frame_locked"),
        st.form("frame_unlock", border=False),
    ):
        token = st.text_input("Write token", type="password", help="`malleus up` prints it.", key="frame_token")
        name = st.text_input("Your name", placeholder="for the audit", max_chars=60, key="frame_actor")
        if st.form_submit_button("Unlock", type="primary", width="stretch"):
            problem = writes.unlock(token, name)
            if not problem:
                st.rerun()
            st.error(problem)


def broken(error: StoreError) -> None:
    """The page when the store cannot be read: what, and what to do."""
    st.error(
        f"The store cannot be read: {error}. Nothing on this page is live; it tries again by itself. "
        "`malleus doctor` says more.",
        icon=":material/database_off:",
    )


def nothing_to_show(problem: str) -> None:
    """The page when there is no run."""
    lead = problem[:1].upper() + problem[1:] if problem else "No run yet"
    follow(
        picture(
            f'<div class="start"><h3>{escape(lead)}.</h3><p>Start one with <code>malleus demo</code>, or with your own '
            "settings by <code>malleus train CONFIG.toml</code>. It appears here by itself.</p></div>",
            key="frame_nothing",
        )
    )
