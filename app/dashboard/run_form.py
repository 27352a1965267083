"""The form that starts a run: widgets, no drawing of its own.

A preset or a pasted or uploaded TOML text, the usual fields on top of it, a summary of what will start, [Start run].
Everything is checked as one types; a problem stands at its field. An open form is in the address (`new`).
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.dashboard import quantities as q
from app.dashboard import reads, writes
from app.dashboard.acknowledgements import refusals
from app.dashboard.picture import picture
from app.dashboard.run_summary import run_summary
from app.run_draft import USUAL, Draft, Problem, draft, origin_problem, preset_names, preset_text, usual_values
from app.situations import DESCRIPTIONS, stragglers
from db.errors import InputError

FORM = "start"
OWN = "own"
"""In the address: a text of one's own, which the address does not carry."""

_TEXT, _NUMBER, _SHOWN = "start_text", "start_number", "start_shown"


def opened() -> str:
    """What the address says of the form: a preset's name, `own`, or empty while it is closed."""
    return st.query_params.get("new", "")


def open_with(preset: str) -> None:
    """Opens the form."""
    st.query_params["new"] = preset


def close() -> None:
    """Closes the form; what was typed is forgotten."""
    st.query_params.pop("new", None)
    for name in (_TEXT, _NUMBER, _SHOWN):
        st.session_state.pop(name, None)
    writes.new_form(FORM)


def show() -> None:
    """Draws the form."""
    preset = opened()
    if st.session_state.get(_SHOWN) is None:
        _take(preset_text(preset) if preset in preset_names() else preset_text(preset_names()[0]))
    left, right = st.columns([1, 1.15], gap="large")
    with left:
        _source()
        text = st.session_state[_TEXT]
        values = usual_values(text)
        usual = {} if isinstance(values, Problem) else _usual(values)
        found = draft(text, usual, folder=reads.settings().home)
        _field_problems(found)
        situation, origin = _choices(found)
    with right:
        origin_words, problem = _origin(found, origin)
        picture(run_summary(found, situation=situation, origin=origin_words), key="start_summary")
        _foot(found, origin, situation, problem)


def _source() -> None:
    names = preset_names()
    st.segmented_control(
        "Preset",
        [*names, OWN],
        default=opened() if opened() in names else OWN,
        key=f"start_preset_{st.session_state[_NUMBER]}",
        format_func=lambda name: "your own TOML" if name == OWN else name,
        on_change=_preset_chosen,
    )
    with st.expander("Configuration (TOML)", expanded=opened() == OWN):
        st.file_uploader("Upload a file", type=["toml"], key="start_file", on_change=_uploaded)
        st.text_area(
            "The text",
            value=st.session_state[_TEXT],
            height=320,
            key=f"start_text_{st.session_state[_NUMBER]}",
            on_change=_typed,
            help="What is not named has its default; the fields below are laid over it.",
        )


def _usual(values: dict[str, Any]) -> dict[str, Any]:
    """The usual fields; another text makes other widgets, so that its values show."""
    number = st.session_state[_NUMBER]
    usual: dict[str, Any] = {"name": st.text_input("Name", values["name"], max_chars=100, key=f"start_name_{number}")}
    with st.container(horizontal=True):
        for name, label, low in (
            ("num_steps", "Steps", 1),
            ("num_nodes", "Nodes", 1),
            ("devices_per_node", "Devices a node", 1),
            ("every_steps", "Checkpoint every n steps", 0),
        ):
            usual[name] = st.number_input(
                label,
                min_value=min(low, values[name]),
                value=values[name],
                step=1,
                key=f"start_{name}_{number}",
                help="0: on request only." if name == "every_steps" else None,
                width=150,
            )
    return usual


def _field_problems(found: Draft) -> None:
    labels = {"name": "Name", "num_steps": "Steps", "num_nodes": "Nodes", "devices_per_node": "Devices a node"}
    labels["every_steps"] = "Checkpoint every n steps"
    told = [f"{labels[name]}: {text}" for name, field in USUAL.items() for text in found.at(field)]
    if told:
        picture(refusals(told), key="start_field_problems")


def _choices(found: Draft) -> tuple[str, int | None]:
    with st.container(horizontal=True):
        situation = st.selectbox(
            "Situation",
            ["", *_situations(found)],
            format_func=lambda name: f"{name}: {DESCRIPTIONS[name]}" if name else "none",
            key="start_situation",
            help=f"Played once the run has trained for {q.duration(writes.SITUATION_AT_S)}.",
            width=330,
        )
        origins = reads.origins()
        origin = st.selectbox(
            "Start from a checkpoint",
            [None, *origins],
            format_func=lambda run: (
                "no, random weights" if run is None else f"run {run}, step {q.count(origins.get(run))}"
            ),
            key="start_origin",
            help="The newest checkpoint of another run." if origins else "No run has a checkpoint yet.",
            width=240,
        )
    return situation or "", origin


def _situations(found: Draft) -> list[str]:
    """Those that this cluster is large enough for."""
    possible = []
    for name in DESCRIPTIONS if found.config is not None else ():
        try:
            if found.config is not None and stragglers(name, found.config.nodes):
                possible.append(name)
        except InputError:
            continue
    return possible


def _origin(found: Draft, origin: int | None) -> tuple[str, str]:
    """The origin in words, and why it cannot be one."""
    if origin is None:
        return "", ""
    other = reads.run(origin)
    problem = origin_problem(found.config, other.config) if found.config is not None else ""
    return f"run {origin} ({other.name}), step {q.count(reads.origins().get(origin))}", problem


def _foot(found: Draft, origin: int | None, situation: str, problem: str) -> None:
    told = [f"Start from a checkpoint: run {origin}: {problem}"] if problem else []
    error = refusals([*told, writes.form_state(FORM).error])
    if error:
        picture(error, key="start_error")
    blocked = writes.start_refusal()
    if found.start is None:
        blocked = blocked or "Put right what is named above first."
    blocked = blocked or problem
    with st.container(horizontal=True):
        st.button(
            "Start run",
            key="start_submit",
            type="primary",
            icon=":material/play_arrow:",
            disabled=bool(blocked),
            help=blocked or "Registers the run and starts its engine on this machine, in the background.",
            on_click=_start,
            args=(found, origin, situation),
        )
        st.button("Close", key="start_close", on_click=close)


def _start(found: Draft, origin: int | None, situation: str) -> None:
    if found.config is None:
        return
    writes.start_run(found.config, origin_run=origin, situation=situation, form=FORM)
    run = writes.form_state(FORM).run
    if run is not None:
        close()
        st.query_params["started"] = str(run)


def _preset_chosen() -> None:
    if _NUMBER not in st.session_state:
        return  # the form was closed, the browser sent its last value late
    chosen = st.session_state.get(f"start_preset_{st.session_state[_NUMBER]}") or OWN
    if chosen != OWN:
        _take(preset_text(chosen))
    st.query_params["new"] = chosen


def _uploaded() -> None:
    file = st.session_state.get("start_file")
    if file is not None:
        _take(file.getvalue().decode("utf-8", errors="replace"))
        st.query_params["new"] = OWN


def _typed() -> None:
    text = st.session_state.get(f"start_text_{st.session_state.get(_NUMBER)}")
    if text is not None:
        _take(text)
        st.query_params["new"] = OWN


def _take(text: str) -> None:
    st.session_state[_TEXT] = text
    st.session_state[_SHOWN] = True
    st.session_state[_NUMBER] = st.session_state.get(_NUMBER, 0) + 1
