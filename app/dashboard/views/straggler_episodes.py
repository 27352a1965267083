"""The list of episodes on the Stragglers page: filters, order, pages, downloads. Layout only."""

from __future__ import annotations

import streamlit as st

from app.dashboard import frame, reads
from app.dashboard import quantities as q
from app.dashboard.download_buttons import download_buttons
from app.dashboard.episode_table import CAUSES, EpisodeEntry, chosen, entries_of, episode_table, records, sorting
from app.dashboard.picture import picture
from app.dashboard.snapshot import Snapshot
from app.dashboard.straggler_address import STATES, View

PER_PAGE = 15
KEPT = ("x", "data", "state", "cause", "only", "text", "sort", "page")
"""Parts of the address that a row's link keeps."""

_BOX = "episodes_"
_ANY = "any"


def episode_list(snapshot: Snapshot, view: View) -> None:
    """The list with its controls."""
    found = reads.episodes_of(snapshot.run.id)
    node_of = {device: node for node, ids in enumerate(snapshot.run.config.nodes) for device in ids}
    entries = entries_of(found, snapshot.plans, node_of, now=snapshot.run.ended_at or snapshot.now)
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        picture(_head(entries), key="stragglers_episodes_head")
        _filters(entries, view)
    kept = chosen(entries, view)
    last = max(1, -(-len(kept) // PER_PAGE))
    page = min(view.page, last)
    shown = kept[(page - 1) * PER_PAGE : page * PER_PAGE]
    params = {name: st.query_params[name] for name in KEPT if name in st.query_params}
    empty = (
        "No episode matches the filters."
        if entries
        else "No device has straggled in this run. Slow one down on the Inject page, or by malleus inject, to see one."
    )
    target = picture(episode_table(shown, view, empty=empty, params=params), key="stragglers_episodes")
    if target is not None and target[0] == "sort":
        wanted = sorting(view).toggled(target[1]["column"])
        _put("sort", f"{'-' if wanted.is_descending else ''}{wanted.column}", "-since")
        st.rerun(scope="fragment")
    frame.follow(target)
    _foot(snapshot, kept, page, last)


def _head(entries: list[EpisodeEntry]) -> str:
    number = sum(entry.episode.is_open for entry in entries)
    more = f", the newest {q.count(reads.MAX_EPISODES)}" if len(entries) >= reads.MAX_EPISODES else ""
    note = f"{number} open of {q.count(len(entries))}{more}"
    return f'<div class="head"><h3>Episodes</h3><span class="muted">{note}</span></div>'


def _filters(entries: list[EpisodeEntry], view: View) -> None:
    with st.container(horizontal=True, gap="small", width="content", key="stragglers_filters"):
        st.session_state[f"{_BOX}state"] = view.state
        st.segmented_control(
            "State", STATES, key=f"{_BOX}state", label_visibility="collapsed", on_change=_changed, args=("state", "all")
        )
        causes = sorted({*CAUSES, *(entry.episode.cause for entry in entries)})
        st.session_state[f"{_BOX}cause"] = view.cause if view.cause in causes else _ANY
        st.selectbox(
            "Cause", [_ANY, *causes], key=f"{_BOX}cause", on_change=_changed, args=("cause", _ANY), width=125,
            format_func=lambda name: "any cause" if name == _ANY else name, label_visibility="collapsed",
        )  # fmt: skip
        devices = sorted(
            {entry.episode.device for entry in entries} | ({view.only} if view.only is not None else set())
        )
        st.session_state[f"{_BOX}only"] = _ANY if view.only is None else str(view.only)
        st.selectbox(
            "Device", [_ANY, *map(str, devices)], key=f"{_BOX}only", on_change=_changed, args=("only", _ANY), width=125,
            format_func=lambda name: "any device" if name == _ANY else f"device {name}", label_visibility="collapsed",
        )  # fmt: skip
        st.session_state[f"{_BOX}text"] = view.text
        st.text_input(
            "Filter", placeholder="Filter by any word", key=f"{_BOX}text", label_visibility="collapsed",
            on_change=_changed, args=("text", ""), width=165,
        )  # fmt: skip


def _foot(snapshot: Snapshot, kept: list[EpisodeEntry], page: int, last: int) -> None:
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            download_buttons(
                f"run-{snapshot.run.id}-episodes",
                lambda: records(kept),
                key="episodes",
                help="All episodes that the filters leave, not only this page.",
            )
            picture(f'<p class="muted">{q.count(len(kept))} listed</p>', key="stragglers_listed")
        if last > 1:
            st.session_state[f"{_BOX}page"] = page
            st.number_input(
                "Page", 1, last, key=f"{_BOX}page", width=140, help=f"{last} pages", on_change=_changed,
                args=("page", "1"),
            )  # fmt: skip


def _changed(name: str, default: str) -> None:
    if f"{_BOX}{name}" not in st.session_state:
        return  # the widget is gone, the browser sent its last value late
    value = st.session_state[f"{_BOX}{name}"]
    _put(name, default if value is None else str(value), default)
    if name != "page":
        st.query_params.pop("page", None)


def _put(name: str, value: str, default: str) -> None:
    if value == default:
        st.query_params.pop(name, None)
    else:
        st.query_params[name] = value
