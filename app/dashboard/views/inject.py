"""Inject: make devices slow or let one fail on purpose, and watch the loop answer. Layout only.

By hand, by a named situation, or by a schedule; the grid shows what would be slow before anything is asked for. An
injection is a command, so is a failure; a situation and a schedule are one command that the controller plays. The
timeline and the report under them show what came of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import streamlit as st

from app.dashboard import device_grid, drill_part, frame, injection_form, injection_ways, reads, run_line, writes
from app.dashboard.acknowledgements import acknowledgements, refusals
from app.dashboard.injection_table import injection_table
from app.dashboard.live_part import live_part
from app.dashboard.picture import picture
from app.dashboard.snapshot import Snapshot
from db.errors import StoreError

REFRESH_S = 1.0
FORMS = ("inject", "play", "clear", "fail")
PICKS: dict[str, Literal["", "one", "many"]] = {"by hand": "many", "failure": "one"}
"""How many devices the grid lets one select, by the way to choose."""


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
        injection_ways.show(snapshot)
        _clear(snapshot)
        _acknowledged(snapshot)
    drill = drill_part.show(snapshot)
    form = injection_form.state()
    frame.keep_address(
        run,
        devices=",".join(str(device) for device in form.devices),
        way=form.way if form.way != injection_form.WAYS[0] else None,
        situation=form.situation if form.way == "situation" else None,
        drill=None if drill is None else str(drill),
    )


def _devices(snapshot: Snapshot) -> None:
    form = injection_form.state()
    preview = injection_ways.preview(snapshot)
    cells = snapshot.cells()
    if preview:
        cells = [
            replace(cell, rate=preview[cell.device], state="active") if cell.device in preview else cell
            for cell in cells
        ]
    pick = PICKS.get(form.way, "")
    if pick:
        chosen = form.devices if pick == "many" or len(form.devices) == 1 else []
        note = f"{len(chosen)} selected" if chosen else "click to select"
    else:
        chosen = sorted(preview)
        note = f"preview: {len(preview)} would be slow" if preview else "nothing previewed"
    head = f'<div class="head"><h3>Devices</h3><span class="muted">{note}</span></div>'
    picture(
        head + device_grid.grid(cells, selected=chosen) + device_grid.legend(),
        key="inject_grid",
        mode=pick,
        selected=[str(device) for device in chosen],
        on_pick=injection_form.picked,
    )
    why_not = writes.refusal(snapshot)
    target = picture(injection_table(snapshot, may_write=not why_not), key="inject_open")
    if target is not None and target[0] == "clear":
        writes.submit(snapshot.run.id, "clear", {"devices": [int(target[1]["device"])]}, form="clear")


def _clear(snapshot: Snapshot) -> None:
    devices, why_not = injection_form.state().devices, writes.refusal(snapshot)
    injected = {entry.device for entry in snapshot.injections if entry.status != "cleared"}
    playing = reads.playing(snapshot.run.id)
    writes.settle("clear")
    with st.container(horizontal=True):
        if injection_form.state().way == injection_form.WAYS[0]:
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
        blocked = why_not or ("" if injected or playing else "No injection is open, and no schedule is being played.")
        st.button(
            "Clear all and end the schedule" if playing else "Clear all",
            key="inject_clear_all",
            disabled=bool(blocked),
            help=blocked or ("What is still to come of the schedule does not come any more." if playing else None),
            on_click=writes.submit,
            args=(snapshot.run.id, "clear", {"devices": None}),
            kwargs={"form": "clear"},
        )


def _acknowledged(snapshot: Snapshot) -> None:
    error = refusals([writes.form_state(form).error for form in FORMS])
    acks = acknowledgements(snapshot.commands, now=snapshot.now)
    if error or acks:
        picture(error + acks, key="inject_acks")
