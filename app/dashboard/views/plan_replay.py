"""Replay of a bundle: pick a plan of the run or upload a file, and see whether the answer is the same. Layout only."""

from __future__ import annotations

from html import escape

import streamlit as st

from app.dashboard import reads, writes
from app.dashboard.picture import picture
from app.dashboard.replay_result import replay_result
from app.dashboard.replays import Replays, replays
from app.dashboard.snapshot import Snapshot
from app.plan_bundle import bundle_of
from db.errors import InputError

_ERROR = "plans_replay_error"
_STARTED = "plans_replay_id"

INTRO = (
    "The search is deterministic: the same input gives the same plan. A replay hands a bundle to the planner again, in "
    "a process of its own, and compares plan, predicted step, bound and runners-up with what the bundle says."
)


def show(snapshot: Snapshot, *, version: int | None, replay: int | None) -> int | None:
    """The part of the page.

    Args:
        version: the plan to offer first.
        replay: the one whose result is asked for.

    Returns:
        The replay that is shown.
    """
    known = replays()
    started = st.session_state.pop(_STARTED, None)
    replay = replay if started is None else started
    picture(f'<p class="muted">{INTRO}</p>', key="plans_replay_intro")
    why_not = "" if writes.is_unlocked() else writes.READ_ONLY
    if not why_not and known.is_busy:
        why_not = "A replay is running: one at a time."
    left, right = st.columns(2, gap="large")
    with left:
        _pick(snapshot, version, known, why_not)
    with right:
        _upload(known, why_not)
    error = st.session_state.get(_ERROR, "")
    if error:
        picture(
            f'<div class="acks"><div class="ack failed" role="alert"><span class="mark" aria-hidden="true">✕</span>'
            f"<span>{escape(error)}</span></div></div>",
            key="plans_replay_error_line",
        )
    if replay is not None:
        picture(replay_result(known.get(replay), now=snapshot.now), key="plans_replay_result")
    return replay


def _pick(snapshot: Snapshot, version: int | None, known: Replays, why_not: str) -> None:
    solved = [plan.version for plan in snapshot.plans if plan.solve_s is not None]
    if version is not None and version not in solved:
        solved = [version, *solved]
    if not solved:
        picture(
            '<p class="empty">No plan of this run was searched for yet. <code>malleus replan</code> asks for one.</p>',
            key="plans_replay_none",
        )
        return
    key = f"plans_replay_version_{snapshot.run.id}"
    if key not in st.session_state:
        st.session_state[key] = version or solved[0]
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        chosen = st.selectbox("Plan of this run", solved, key=key, format_func="v{}".format, width=160)
        st.button(
            "Replay this plan",
            key="plans_replay_start",
            icon=":material/replay:",
            disabled=bool(why_not),
            help=why_not or None,
            on_click=_start_plan,
            args=(known, snapshot.run.id, chosen),
        )


def _upload(known: Replays, why_not: str) -> None:
    file = st.file_uploader("Or a bundle from a file (`malleus export`)", type=["json"], key="plans_replay_file")
    if file is not None:
        st.button(
            f"Replay {file.name}",
            key="plans_replay_upload",
            icon=":material/replay:",
            disabled=bool(why_not),
            help=why_not or None,
            on_click=_start_file,
            args=(known, file.name, file.getvalue()),
        )


def _start_plan(known: Replays, run: int, version: int) -> None:
    try:
        text = bundle_of(reads.plan(run, version), reads.plan_job(run, version)).to_text()
    except InputError as error:
        st.session_state[_ERROR] = str(error)
        return
    _start(known, f"plan v{version} of run {run}", text)


def _start_file(known: Replays, name: str, content: bytes) -> None:
    _start(known, name, content.decode("utf-8", errors="replace"))


def _start(known: Replays, name: str, text: str) -> None:
    st.session_state[_ERROR] = ""
    if not writes.is_unlocked():
        st.session_state[_ERROR] = writes.READ_ONLY
        return
    try:
        st.session_state[_STARTED] = known.start(name, text)
    except InputError as error:
        st.session_state[_ERROR] = str(error)
