"""What is chosen on the Inject page, in one browser session: devices and rate.

Two widgets show the same value (grid and list, presets and number box). The value is kept here, and
the key of each widget holds a counter that grows when the other one has changed the value: it is then
a new widget, so that what the browser sends late of the old one changes nothing.

The same holds for a widget that is not drawn any more: the browser may still send its last value, and its callback
is called though its key is gone. So callbacks take a value that may be missing, which changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import streamlit as st

from app.situations import DESCRIPTIONS

PRESETS = (2.57, 3.75, 5.42, 12.53)
"""Rates of 1, 2, 3 and 8 co-running jobs."""

SLIDER = tuple(sorted({round(1.05 * (20 / 1.05) ** (index / 80), 2) for index in range(81)} | set(PRESETS)))
"""Rates of the slider, evenly spaced on a log scale."""

WAYS = ("by hand", "situation", "schedule", "failure")
"""How to choose what is injected."""

DURATION = "inject_duration"
"""Key of the box for the seconds."""

_FORM, _RUN = "inject_form", "inject_run"


@dataclass
class InjectionForm:
    """The choice, and the counters of its widgets.

    Args:
        situation: the one that is previewed.
        text: of the schedule.
    """

    devices: list[int] = field(default_factory=list)
    rate: float = PRESETS[0]
    way: str = WAYS[0]
    situation: str = ""
    text: str = ""
    list_number: int = 0
    slider_number: int = 0
    box_number: int = 0
    presets_number: int = 0


def begin(run: int, num_devices: int) -> None:
    """Starts a new choice when the page comes to another run; devices may stand in the address."""
    if st.session_state.get(_RUN) == run:
        return
    asked = st.query_params.get("devices", "").split(",")
    devices = sorted({int(entry) for entry in asked if entry.isdigit() and int(entry) < num_devices})
    way, situation = st.query_params.get("way", ""), st.query_params.get("situation", "")
    st.session_state[_RUN] = run
    st.session_state[_FORM] = InjectionForm(
        devices=devices, way=way if way in WAYS else WAYS[0], situation=situation if situation in DESCRIPTIONS else ""
    )


def state() -> InjectionForm:
    """This session's choice."""
    form: InjectionForm = st.session_state.setdefault(_FORM, InjectionForm())
    return form


def picked(values: list[str]) -> None:
    """The selection of the grid has changed."""
    form = state()
    form.devices = sorted(int(value) for value in values)
    form.list_number += 1


def listed() -> None:
    """The list has changed."""
    form = state()
    form.devices = sorted(st.session_state.get(f"inject_devices_{form.list_number}", form.devices))


def victim() -> int | None:
    """The device that would fail: one at a time, since the first ends the engine."""
    devices = state().devices
    return devices[0] if len(devices) == 1 else None


def victim_chosen() -> None:
    """The list of the failure has changed."""
    form = state()
    key = f"inject_victim_{form.list_number}"
    if key in st.session_state:
        device = st.session_state[key]
        form.devices = [] if device is None else [device]


def duration() -> float | None:
    """Seconds that stand in the box; None: until cleared."""
    seconds: float | None = st.session_state.get(DURATION)
    return seconds


def preset_chosen() -> None:
    """A preset was pressed."""
    form = state()
    preset = st.session_state.get(f"inject_preset_{form.presets_number}")
    if preset is not None:
        form.rate = preset
        form.box_number += 1
        form.slider_number += 1


def rate_typed() -> None:
    """The number box has changed."""
    form = state()
    rate = st.session_state.get(f"inject_rate_{form.box_number}")
    if rate is not None:
        form.rate = rate
        form.presets_number += 1
        form.slider_number += 1


def slid() -> None:
    """The slider has moved."""
    form = state()
    rate = st.session_state.get(f"inject_slider_{form.slider_number}")
    if rate is not None:
        form.rate = rate
        form.presets_number += 1
        form.box_number += 1


def way_chosen() -> None:
    """Another way to choose was pressed."""
    state().way = st.session_state.get("inject_way") or WAYS[0]


def situation_picked(values: list[str]) -> None:
    """A card was clicked; a second click on it takes the preview away."""
    state().situation = values[-1] if values else ""


def uploaded() -> None:
    """A file was chosen: its text takes the place of what was typed."""
    file = st.session_state.get("inject_file")
    if file is not None:
        state().text = file.getvalue().decode("utf-8", errors="replace")
        st.session_state["inject_text"] = state().text


def typed() -> None:
    """The text of the schedule has changed."""
    state().text = st.session_state.get("inject_text", state().text)
