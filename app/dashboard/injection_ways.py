"""The ways to choose what is injected, as the right half of the Inject page: widgets, no drawing of their own.

By hand (devices, rate, duration), a situation (cards), a schedule (CSV); `injection_failure` lets a device fail. What
is chosen is kept by `injection_form`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

import streamlit as st

from app.dashboard import injection_failure, injection_form, reads, writes
from app.dashboard import quantities as q
from app.dashboard.injection_preview import injection_preview
from app.dashboard.picture import picture
from app.dashboard.schedule_lanes import next_entry, schedule_lanes
from app.dashboard.situation_cards import rates_in_words, situation_cards
from app.dashboard.snapshot import Snapshot
from app.schedule_file import COLUMNS, ScheduleFile, read_schedule, situation_schedule
from app.situations import rates
from db.commands import CommandView
from db.errors import InputError
from db.run_config import RunConfig
from db.schedule import HEALTHY, Entry, arguments, entries_of

MOST_PROBLEMS = 8
EXAMPLE = "second,device,rate,for_s\n0,3,2.57,60\n20,5,5.42,\n45,5,1,"


def show(snapshot: Snapshot) -> None:
    """Draws the way that is chosen, and what is being played."""
    form = injection_form.state()
    st.segmented_control(
        "Choose",
        injection_form.WAYS,
        default=form.way,
        key="inject_way",
        format_func=str.capitalize,
        label_visibility="collapsed",
        on_change=injection_form.way_chosen,
    )
    if form.way == "situation":
        _situation(snapshot)
    elif form.way == "schedule":
        _schedule(snapshot)
    elif form.way == "failure":
        injection_failure.show(snapshot)
    else:
        _by_hand(snapshot)
    playing = reads.playing(snapshot.run.id)
    if playing is not None:
        picture(_progress(playing, snapshot), key="inject_playing")


def preview(snapshot: Snapshot) -> dict[int, float]:
    """The rates that the chosen situation or schedule would bring; of a schedule the highest of each device."""
    form, config = injection_form.state(), snapshot.run.config
    if form.way == "situation" and form.situation:
        try:
            return rates(form.situation, config.nodes)
        except InputError:
            return {}
    if form.way == "schedule":
        found: dict[int, float] = {}
        for entry in read_schedule(form.text, num_devices=config.num_devices).entries if form.text.strip() else ():
            if entry.rate != HEALTHY:
                found[entry.device] = max(entry.rate, found.get(entry.device, 0.0))
        return found
    return {}


def _by_hand(snapshot: Snapshot) -> None:
    run, why_not, form = snapshot.run, writes.refusal(snapshot), injection_form.state()
    st.multiselect(
        "Devices",
        range(run.config.num_devices),
        default=form.devices,
        key=f"inject_devices_{form.list_number}",
        placeholder="none, click the grid or choose here",
        on_change=injection_form.listed,
    )
    with st.container(horizontal=True, vertical_alignment="top"):
        st.segmented_control(
            "Rate",
            injection_form.PRESETS,
            default=form.rate if form.rate in injection_form.PRESETS else None,
            key=f"inject_preset_{form.presets_number}",
            format_func=q.rate,
            on_change=injection_form.preset_chosen,
        )
        st.number_input(
            "Other rate",
            0.01,
            1000.0,
            value=form.rate,
            step=0.1,
            format="%.2f",
            key=f"inject_rate_{form.box_number}",
            on_change=injection_form.rate_typed,
            width=112,
        )
        duration = _duration_box()
    st.select_slider(
        "Rate on a log scale",
        injection_form.SLIDER,
        value=min(injection_form.SLIDER, key=lambda rate: abs(rate - form.rate)),
        key=f"inject_slider_{form.slider_number}",
        format_func=q.rate,
        on_change=injection_form.slid,
        label_visibility="collapsed",
    )
    picture(injection_preview(snapshot, form.devices, form.rate, duration), key="inject_preview")
    writes.settle("inject")
    blocked = why_not or ("" if form.devices else "Select at least one device.")
    st.button(
        f"Inject {q.rate(form.rate)} on {q.devices(form.devices)}" if form.devices else "Inject",
        key="inject_submit",
        type="primary",
        disabled=bool(blocked),
        help=blocked or None,
        on_click=_inject,
        args=(run.id,),
    )


def _inject(run: int) -> None:
    """Takes what the form says when the button is pressed: no drawn page has what was typed just before."""
    form = injection_form.state()
    asked = {"devices": form.devices, "rate": form.rate, "for_s": injection_form.duration()}
    writes.submit(run, "inject", asked, form="inject")


def _situation(snapshot: Snapshot) -> None:
    form, nodes = injection_form.state(), snapshot.run.config.nodes
    picture(
        situation_cards(nodes, chosen=form.situation),
        key="inject_situations",
        mode="one",
        selected=[form.situation] if form.situation else [],
        on_pick=injection_form.situation_picked,
    )
    duration = _duration_box()
    slow = preview(snapshot)
    if slow:
        until = f"for {q.duration(duration)}" if duration else "until cleared"
        picture(f"<p>{escape(rates_in_words(slow)).capitalize()}, {until}.</p>", key="inject_situation_words")
    label = f"Play {form.situation}" if slow else "Play"
    _play_button(snapshot, label, "" if slow else "Choose a situation: click a card.")


def _schedule(snapshot: Snapshot) -> None:
    form, num_devices = injection_form.state(), snapshot.run.config.num_devices
    st.session_state.setdefault("inject_text", form.text)
    st.file_uploader("Schedule (CSV)", type=["csv", "txt"], key="inject_file", on_change=injection_form.uploaded)
    st.text_area(
        f"Lines of {', '.join(COLUMNS)} (the last may be left out; rate 1 heals)",
        key="inject_text",
        placeholder=EXAMPLE,
        height=140,
        on_change=injection_form.typed,
    )
    if not form.text.strip():
        _play_button(snapshot, "Play", "Upload or type a schedule.")
        return
    found = read_schedule(form.text, num_devices=num_devices)
    if found.problems:
        picture(_problems(found), key="inject_line_problems")
    picture(schedule_lanes(found.entries), key="inject_lanes")
    number = len(found.entries)
    blocked = "Put the lines right that are named above." if found.problems else ""
    _play_button(snapshot, f"Play {number} injection{'s' if number != 1 else ''}", blocked)


def _asked(config: RunConfig) -> tuple[str, Sequence[Entry]]:
    """Name and entries of the situation or schedule that the form says; none if it says no playable one."""
    form = injection_form.state()
    if form.way == "situation":
        entries = situation_schedule(form.situation, config.nodes) if form.situation else ()
        return form.situation, [replace(entry, for_s=injection_form.duration()) for entry in entries]
    found, file = read_schedule(form.text, num_devices=config.num_devices), st.session_state.get("inject_file")
    return str(file.name)[:100] if file is not None else "schedule", () if found.problems else found.entries


def _play(run: int, config: RunConfig) -> None:
    """As `_inject`."""
    name, entries = _asked(config)
    if entries:
        writes.submit(run, "play", arguments(name, entries), form="play")


def _play_button(snapshot: Snapshot, label: str, missing: str) -> None:
    writes.settle("play")
    playing = reads.playing(snapshot.run.id)
    is_on = f"{playing.arguments['name']} is being played: clear all to end it first." if playing is not None else ""
    blocked = writes.refusal(snapshot) or missing or is_on
    st.button(
        label,
        key="inject_play",
        type="primary",
        icon=":material/play_arrow:",
        disabled=bool(blocked),
        help=blocked or "The controller plays it, also when this page is closed.",
        on_click=_play,
        args=(snapshot.run.id, snapshot.run.config),
    )


def _duration_box() -> float | None:
    return st.number_input(
        "For, seconds",
        1.0,
        86_400.0,
        value=None,
        step=10.0,
        format="%.0f",
        key=injection_form.DURATION,
        placeholder="until cleared",
        width=142,
    )


def _problems(found: ScheduleFile) -> str:
    shown = "".join(
        f"<li><b>line {problem.line}</b> {escape(problem.text)}</li>" for problem in found.problems[:MOST_PROBLEMS]
    )
    more = len(found.problems) - MOST_PROBLEMS
    rest = f"<li>and {more} more</li>" if more > 0 else ""
    return f'<ul class="line-problems" role="alert">{shown}{rest}</ul>'


def _progress(playing: CommandView, snapshot: Snapshot) -> str:
    entries, name = entries_of(playing.arguments), escape(str(playing.arguments["name"]))
    if playing.accepted_at is None:
        waits = "the run's first step" if snapshot.run.step is None else "the controller"
        return f"<p><b>{name}</b> waits for {waits}.</p>{schedule_lanes(entries)}"
    elapsed_s = (snapshot.now - playing.accepted_at).total_seconds()
    following = next_entry(entries, elapsed_s)
    num_played = sum(entry.at_s <= elapsed_s for entry in entries)
    coming = (
        "the engine is to take up the last one"
        if following is None
        else f"next device {following.device} {q.rate(following.rate)} in {q.age(following.at_s - elapsed_s)}"
    )
    return (
        f"<p><b>{name}</b> is being played: {num_played} of {len(entries)} due, {escape(coming)}.</p>"
        f"{schedule_lanes(entries, elapsed_s=elapsed_s)}"
    )
