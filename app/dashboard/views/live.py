"""Live: is it training, what is slow, what is done about it, and how old is what I see.

Layout only; the figures come from `snapshot`, the drawings from the modules named after them.
"""

from __future__ import annotations

from html import escape

import streamlit as st

from app.dashboard import charts, device_grid, frame, palette, plan_map, reads, run_line, writes
from app.dashboard.acknowledgements import acknowledgements, refusals
from app.dashboard.device_facts import device_facts
from app.dashboard.links import link
from app.dashboard.live_part import live_part
from app.dashboard.picture import picture
from app.dashboard.plot import plot
from app.dashboard.snapshot import Snapshot, rate_points
from db.errors import StoreError

REFRESH_S = 1.0
FORMS = ("pause", "resume", "checkpoint", "stop")
WINDOWS = {"100 steps": 100, "500 steps": 500, "5,000 steps": 5_000, "all": None}
DEFAULT_WINDOW = "500 steps"


def show() -> None:
    """The page."""
    run = frame.current_run()
    if run is None:
        frame.nothing_to_show(frame.problem_with_address())
        return
    live_part(_live, every_s=REFRESH_S)(run.id, run.status)


def _live(run: int, status: str) -> None:
    try:
        snapshot = reads.snapshot(run)
    except StoreError as error:
        frame.broken(error)
        return
    if snapshot.run.status != status:
        st.rerun()  # the title names the state
    device = _device(snapshot)
    _header(snapshot)
    with st.container(key="live_figures"):
        picture(run_line.figures(snapshot), key="live_headline")
        frame.follow(picture(run_line.alert_line(snapshot), key="live_alert"))
    with st.container(key="live_body"):
        _cluster(snapshot, device)
        if device is not None:
            frame.follow(picture(device_facts(snapshot, device), key="live_device"))
        window = _charts(snapshot, device)
    frame.keep_address(
        run,
        device=None if device is None else str(device),
        window=None if window == DEFAULT_WINDOW else window,
    )


def _header(snapshot: Snapshot) -> None:
    with st.container(horizontal=True, vertical_alignment="center", key="live_header"):
        frame.follow(picture(run_line.run_line(snapshot), key="live_run"))
        with st.container(horizontal=True, key="live_actions", gap="small"):
            _actions(snapshot)
    notes = run_line.problems(snapshot)
    if notes:
        picture(notes, key="live_problems")
    acks = acknowledgements(snapshot.commands, now=snapshot.now)
    errors = refusals([writes.form_state(form).error for form in FORMS])
    if acks or errors:
        picture(acks + errors, key="live_acks")


def _actions(snapshot: Snapshot) -> None:
    run, why_not = snapshot.run, writes.refusal(snapshot)
    kind = "resume" if run.is_paused else "pause"
    waiting = writes.settle(kind).command is not None
    st.button(
        kind.capitalize(),
        key=f"live_{kind}",
        icon=":material/play_arrow:" if kind == "resume" else ":material/pause:",
        disabled=bool(why_not) or waiting or run.is_stopping,
        help=why_not
        or ("The last one is under way." if waiting else f"{kind.capitalize()} at the next step boundary."),
        on_click=writes.submit,
        args=(run.id, kind, {}),
        kwargs={"form": kind},
    )
    saving = writes.settle("checkpoint").command is not None
    st.button(
        "Checkpoint",
        key="live_checkpoint",
        icon=":material/save:",
        disabled=bool(why_not) or saving or run.is_stopping,
        help=why_not or ("The last one is under way." if saving else "Save the run at the next step boundary."),
        on_click=writes.submit,
        args=(run.id, "checkpoint", {}),
        kwargs={"form": "checkpoint"},
    )
    stopping = writes.settle("stop").command is not None or run.is_stopping
    why_not = writes.refusal(snapshot, "stop")
    help_ = why_not or ("It is stopping." if stopping else "End the run after the current step.")
    with st.popover("Stop", icon=":material/stop:", disabled=bool(why_not) or stopping, help=help_, key="live_stop"):
        st.markdown(f"**Stop run {run.id}?** It finishes the current step and ends for good.")
        st.button(
            f"Stop run {run.id}",
            key="live_stop_confirm",
            type="primary",
            disabled=bool(why_not) or stopping,
            on_click=writes.submit,
            args=(run.id, "stop", {}),
            kwargs={"form": "stop"},
        )


def _cluster(snapshot: Snapshot, device: int | None) -> None:
    selected = [] if device is None else [str(device)]
    left, right = st.columns(2, gap="large")
    with left:
        head = f'<div class="head"><h3>Devices</h3><span class="muted">{escape(_devices(snapshot))}</span></div>'
        html = head + device_grid.grid(snapshot.cells(), selected=[] if device is None else [device])
        picture(html + device_grid.legend(), key="live_grid", mode="one", selected=selected, on_pick=_picked)
    with right:
        frame.follow(picture(_plan(snapshot), key="live_map", mode="one", selected=selected, on_pick=_picked))


def _plan(snapshot: Snapshot) -> str:
    plan, version = snapshot.active_plan, snapshot.active_version
    if plan is None:
        return '<div class="head"><h3>Plan</h3></div><p class="empty">The plan has no document yet.</p>'
    target = {"run": snapshot.run.id, "version": version}
    head = (
        f'<div class="head"><h3>Plan {link(f"v{version}", "plans", target)}</h3>'
        f'<span class="muted">{escape(plan_map.summary(plan))}</span></div>'
    )
    rates = {cell.device: float("inf") if cell.state == "failed" else cell.rate or 1.0 for cell in snapshot.cells()}
    busy = plan_map.busy_shares(plan, snapshot.profile, {d: r for d, r in rates.items() if r == r})
    note = "Width is layers, height is TP degree" + (", shade is how busy the stage is." if busy else ".")
    return f'{head}{plan_map.plan_map(plan, rates=rates, busy=busy)}<p class="map-note">{note}</p>'


def _charts(snapshot: Snapshot, device: int | None) -> str:
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        picture('<div class="head"><h3>Timeline</h3></div>', key="live_timeline")
        window = _window()
    steps = reads.steps(snapshot.run.id, num_last=WINDOWS[window])
    if not steps:
        picture('<p class="empty">Step time and loss appear with the first step.</p>', key="live_no_steps")
        return window
    points = snapshot.points(steps)
    marks = [mark for mark in snapshot.marks() if mark.at >= points[0].at]
    rates = (
        rate_points(reads.device_rates(snapshot.run.id, device, since_step=points[0].step), steps)
        if device is not None
        else []
    )
    figure = charts.run_chart(
        points,
        marks,
        palette=palette.DARK if st.context.theme.type == "dark" else palette.LIGHT,
        revision=f"{snapshot.run.id}/{window}",
        device=device,
        rates=rates,
        evaluations=[point for point in snapshot.evaluation_points() if point.at >= points[0].at],
    )
    plot(figure, key="live_chart", alt=charts.description(points, marks))
    return window


def _window() -> str:
    wanted = st.query_params.get("window", DEFAULT_WINDOW)
    chosen = st.segmented_control(
        "Steps shown",
        list(WINDOWS),
        default=wanted if wanted in WINDOWS else DEFAULT_WINDOW,
        key="live_window",
        label_visibility="collapsed",
    )
    return chosen or DEFAULT_WINDOW


def _devices(snapshot: Snapshot) -> str:
    config = snapshot.run.config
    nodes = config.cluster.num_nodes
    return (
        f"{config.num_devices} {config.device.backend} on {nodes} node{'s' if nodes != 1 else ''}; "
        "rate now is the median of the last 3 train steps"
    )


def _device(snapshot: Snapshot) -> int | None:
    asked = st.query_params.get("device", "")
    return int(asked) if asked.isdigit() and int(asked) < snapshot.run.config.num_devices else None


def _picked(values: list[str]) -> None:
    if values:
        st.query_params["device"] = values[-1]
    else:
        st.query_params.pop("device", None)
