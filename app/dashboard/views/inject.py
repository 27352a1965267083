"""Inject: make devices slow on purpose, and watch the loop answer. Layout only.

Devices are chosen on the grid or in a list (both are the same choice); an injection is a command, and
the timeline under it shows what came of it.
"""

from __future__ import annotations

from html import escape

import streamlit as st

from app.dashboard import charts, device_grid, frame, injection_form, palette, reads, run_line, writes
from app.dashboard import quantities as q
from app.dashboard.acknowledgements import acknowledgements, refusals, wording
from app.dashboard.drill import drill_stages
from app.dashboard.drill_line import drill_line, drill_summary
from app.dashboard.injection_preview import injection_preview
from app.dashboard.injection_table import injection_table
from app.dashboard.live_part import live_part
from app.dashboard.picture import picture
from app.dashboard.plot import plot
from app.dashboard.snapshot import Snapshot
from db.commands import CommandView
from db.errors import StoreError

REFRESH_S = 1.0
FORMS = ("inject", "clear")
CHART_STEPS = 100


def show() -> None:
    """The page."""
    run = frame.current_run()
    if run is None:
        frame.nothing_to_show(frame.problem_with_address())
        return
    injection_form.begin(run.id, run.config.num_devices)
    live_part(_inject, every_s=REFRESH_S)(run.id, run.status)


def _inject(run: int, status: str) -> None:
    try:
        snapshot = reads.snapshot(run)
    except StoreError as error:
        frame.broken(error)
        return
    if snapshot.run.status != status:
        st.rerun()
    frame.follow(picture(run_line.run_line(snapshot), key="inject_run_line"))
    notes = run_line.problems(snapshot)
    if notes:
        picture(notes, key="inject_problems")
    left, right = st.columns([1.15, 1], gap="large")
    with left:
        _devices(snapshot)
    with right:
        _fields(snapshot)
    _drill(snapshot)
    frame.keep_address(run, devices=",".join(str(device) for device in injection_form.state().devices))


def _devices(snapshot: Snapshot) -> None:
    chosen = injection_form.state().devices
    note = f"{len(chosen)} selected" if chosen else "click to select"
    head = f'<div class="head"><h3>Devices</h3><span class="muted">{note}</span></div>'
    picture(
        head + device_grid.grid(snapshot.cells(), selected=chosen) + device_grid.legend(),
        key="inject_grid",
        mode="many",
        selected=[str(device) for device in chosen],
        on_pick=injection_form.picked,
    )
    picture(injection_table(snapshot), key="inject_open")


def _fields(snapshot: Snapshot) -> None:
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
        duration = st.number_input(
            "For, seconds",
            1.0,
            86_400.0,
            value=None,
            step=10.0,
            format="%.0f",
            key="inject_duration",
            placeholder="until cleared",
            width=142,
        )
    devices, rate = form.devices, form.rate
    picture(injection_preview(snapshot, devices, rate, duration), key="inject_preview")
    waiting = writes.settle("inject").command is not None
    blocked = why_not or ("" if devices else "Select at least one device.")
    with st.container(horizontal=True):
        st.button(
            f"Inject {q.rate(rate)} on {q.devices(devices)}" if devices else "Inject",
            key="inject_submit",
            type="primary",
            disabled=bool(blocked),
            help=blocked or None,
            on_click=writes.submit,
            args=(run.id, "inject", {"devices": devices, "rate": rate, "for_s": duration}),
            kwargs={"form": "inject"},
        )
        _clear_buttons(snapshot, devices, why_not)
    error = refusals([writes.form_state(form).error for form in FORMS])
    acks = acknowledgements(snapshot.commands, now=snapshot.now)
    if error or acks or waiting:
        picture(error + acks, key="inject_acks")


def _clear_buttons(snapshot: Snapshot, devices: list[int], why_not: str) -> None:
    injected = {entry.device for entry in snapshot.injections if entry.status != "cleared"}
    writes.settle("clear")
    mine = sorted(injected & set(devices))
    blocked = why_not or ("" if mine else "No injection is open on the selected devices.")
    st.button(
        "Clear selected",
        key="inject_clear",
        disabled=bool(blocked),
        help=blocked or None,
        on_click=writes.submit,
        args=(snapshot.run.id, "clear", {"devices": mine}),
        kwargs={"form": "clear"},
    )
    blocked = why_not or ("" if injected else "No injection is open.")
    st.button(
        "Clear all",
        key="inject_clear_all",
        disabled=bool(blocked),
        help=blocked or None,
        on_click=writes.submit,
        args=(snapshot.run.id, "clear", {"devices": None}),
        kwargs={"form": "clear"},
    )


def _drill(snapshot: Snapshot) -> None:
    drills = [command for command in reads.injections_asked(snapshot.run.id) if command.kind == "inject"]
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        picture('<div class="head"><h3>Drill</h3></div>', key="inject_drill_head")
        if len(drills) > 1:
            names = {command.id: _drill_name(command, snapshot) for command in drills}
            chosen = st.selectbox(
                "Drill",
                [None, *names],
                key="inject_drill",
                label_visibility="collapsed",
                width=420,
                format_func=lambda entry: "the newest" if entry is None else names.get(entry, f"drill {entry}"),
            )
        else:
            chosen = None
    if not drills:
        picture('<p class="empty">What follows an injection is timed here, stage by stage.</p>', key="inject_no_drill")
        return
    command = next((entry for entry in drills if entry.id == chosen), drills[0])
    following = [entry for entry in drills if entry.id > command.id]
    stages = drill_stages(
        command,
        episodes=snapshot.episodes,
        plans=snapshot.plans,
        switches=snapshot.switches,
        points=snapshot.points(snapshot.steps),
        mode=snapshot.run.mode,
        detected_at=reads.detected_at(snapshot.run.id),
        until=min(entry.created_at for entry in following) if following else None,
    )
    lead = f'<p class="drill-lead"><b>{escape(wording(command))}</b>: {escape(drill_summary(stages))}</p>'
    picture(lead + drill_line(stages, now=snapshot.now), key="inject_drill_line")
    _chart(snapshot)


def _chart(snapshot: Snapshot) -> None:
    points = snapshot.points(reads.steps(snapshot.run.id, num_last=CHART_STEPS))
    if not points:
        return
    marks = [mark for mark in snapshot.marks() if mark.at >= points[0].at]
    figure = charts.run_chart(
        points,
        marks,
        palette=palette.DARK if st.context.theme.type == "dark" else palette.LIGHT,
        revision=f"inject/{snapshot.run.id}",
        has_loss=False,
    )
    plot(figure, key="inject_chart", alt=charts.description(points, marks))


def _drill_name(command: CommandView, snapshot: Snapshot) -> str:
    return f"{q.clock(command.created_at, now=snapshot.now)} · {wording(command)}"
