"""Stragglers: how fast every device was and is, when it was slow, why, and what absorbed it. Layout only.

The address is the view (`straggler_address`): `?run=7&devices=3,5&range=1200-1500&x=time&data=raw&episode=4`.
"""

from __future__ import annotations

import math
import time
from html import escape
from typing import Any

import streamlit as st

from app.dashboard import device_grid, frame, palette, rate_chart, rate_lines, reads, run_line
from app.dashboard import quantities as q
from app.dashboard.device_list import ALL, listed, parsed
from app.dashboard.episode_table import words_of
from app.dashboard.links import link
from app.dashboard.live_part import live_part
from app.dashboard.picture import picture
from app.dashboard.plot import plot
from app.dashboard.rate_chart import RateChart, Shade, SwitchMark
from app.dashboard.rate_range import data_label, default_devices, line_width, strip_width
from app.dashboard.snapshot import Snapshot
from app.dashboard.step_clock import PlanSpan, StepClock, plan_spans
from app.dashboard.straggler_address import AXES, DATA, RANGES, View, clean_range, is_range, view_of
from app.dashboard.views.straggler_episodes import episode_list
from db.errors import StoreError

REFRESH_S = 2.0
LINES_BUDGET_S, STRIP_BUDGET_S = 0.06, 0.16
"""How long one refresh may go on reading a range that is not known yet."""

MAX_PLAN_LINKS = 12
_BOX, _LATE = "stragglers_", "stragglers_late_"

LATE_S = 3.0
"""So long after a link or a click elsewhere has changed a widget, its value of before does not count as chosen."""


def show() -> None:
    """The page."""
    run = frame.current_run()
    if run is None:
        frame.nothing_to_show(frame.problem_with_address())
        return
    live_part(_stragglers, every_s=REFRESH_S)(run.id, run.status)


def _stragglers(run: int, status: str) -> None:
    try:
        snapshot = reads.snapshot(run)
        if snapshot.run.status != status:
            st.rerun()  # the title names the state
        _page(snapshot)
    except StoreError as error:
        frame.broken(error)


def _page(snapshot: Snapshot) -> None:
    frame.follow(picture(run_line.run_line(snapshot), key="stragglers_run"))
    notes = run_line.problems(snapshot)
    if notes:
        picture(notes, key="stragglers_problems")
    if "run" not in st.query_params:
        st.query_params["run"] = str(snapshot.run.id)
    view = view_of(st.query_params, snapshot.run.config.num_devices)
    chosen = list(view.devices) or default_devices(snapshot)
    _grid(snapshot, view)
    _controls(snapshot)
    if view.problems:
        lines = "".join(f"<div>{escape(problem)}</div>" for problem in view.problems)
        picture(f'<div class="banner" role="alert">{lines}</div>', key="stragglers_wrong")
    newest = snapshot.run.step
    if newest is None or not snapshot.steps:
        picture(
            '<p class="empty">Rates appear with the first step. Nothing yet: the engine has not reported one '
            f"(run {snapshot.run.id} is {escape(snapshot.run.status)}).</p>",
            key="stragglers_no_steps",
        )
    else:
        _rates(snapshot, view, chosen, newest)
    episode_list(snapshot, view)


def _grid(snapshot: Snapshot, view: View) -> None:
    number = snapshot.run.config.num_devices
    if view.devices:
        note = f"{len(view.devices)} of {number} chosen"
    else:
        note = "none chosen: the chart shows those that are or were slow, else all"
    head = f'<div class="head"><h3>Devices</h3><span class="muted">{note}</span></div>'
    html = head + device_grid.grid(snapshot.cells(), selected=view.devices) + device_grid.legend()
    selected = [str(device) for device in view.devices]
    picture(html, key="stragglers_grid", mode="many", selected=selected, on_pick=_picked)


def _controls(snapshot: Snapshot) -> None:
    number = snapshot.run.config.num_devices
    view = view_of(st.query_params, number)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium", key="stragglers_controls"):
        _set("devices", st.query_params.get("devices", ""))
        st.text_input(
            "Devices", placeholder="3, 5, 8-15 or all", key=f"{_BOX}devices", on_change=_typed_devices,
            args=(number,), width=190, help="The grid, the strip and this list are the same choice.",
        )  # fmt: skip
        _set("range", view.range if view.range in RANGES else None)
        st.segmented_control(
            "Steps", list(RANGES), format_func=lambda name: RANGES[name], key=f"{_BOX}range",
            on_change=_chosen, args=("range", ""),
        )  # fmt: skip
        _set("between", "" if view.range in RANGES else view.range)
        st.text_input(
            "From-to", placeholder="1200-1500", key=f"{_BOX}between", on_change=_typed_range, width=130,
            help="First and last step; 1200- goes on with the run.",
        )  # fmt: skip
        _set("x", view.x)
        st.segmented_control(
            "Axis", list(AXES), format_func=lambda name: AXES[name], key=f"{_BOX}x", on_change=_chosen,
            args=("x", "step"),
        )  # fmt: skip
        _set("data", view.data)
        st.segmented_control(
            "Data", list(DATA), format_func=lambda name: DATA[name], key=f"{_BOX}data", on_change=_chosen,
            args=("data", "auto"),
            help="Old samples are rolled up: per device and minute the lowest, median and highest rate stay. "
            "Automatic shows raw samples wherever there are any.",
        )  # fmt: skip


def _rates(snapshot: Snapshot, view: View, chosen: list[int], newest: int) -> None:
    run, config = snapshot.run.id, snapshot.run.config
    first, last = view.steps(newest)
    number = last - first + 1
    wide = strip_width(number, config.num_devices)
    strip = reads.rate_picture(run, None, first, last, width=wide, data=view.data, budget_s=STRIP_BUDGET_S)
    if len(chosen) > rate_lines.MAX_LINES:
        wanted = set(chosen)
        blocks, width = [block for block in strip.blocks if block.device in wanted], wide
        missing = strip.missing
    else:
        width = line_width(number, len(chosen))
        asked = tuple(sorted(chosen))
        lines = reads.rate_picture(run, asked, first, last, width=width, data=view.data, budget_s=LINES_BUDGET_S)
        blocks, missing = list(lines.blocks), max(lines.missing, strip.missing)
    span = reads.sample_span(run)
    label = data_label(span, view.data, (first, last), width=width, wide=wide, missing=missing, num_blocks=len(blocks))
    picture(f'<p class="muted" data-shown>{escape(label)}</p>', key="stragglers_label")
    if not blocks and not strip.blocks and missing == 0:
        return
    steps = reads.steps_between(run, first, last) or snapshot.steps
    plans = plan_spans(steps, snapshot.switches)
    shown = set(chosen)
    chart = RateChart(
        run=run,
        steps=(first, last),
        clock=StepClock(steps),
        axis="time" if view.x == "time" else "step",
        lines=rate_lines.lines_of(blocks),
        width=width,
        strip=strip.blocks,
        strip_width=wide,
        nodes=config.nodes,
        chosen=view.devices,
        shades=[
            Shade(
                first_step=episode.start_step,
                last_step=newest if episode.end_step is None else episode.end_step,
                text=words_of(episode),
                is_marked=episode.id == view.episode,
            )
            for episode in reads.episodes_of(run)
            if episode.device in shown and episode.start_step <= last and (episode.end_step or newest) >= first
        ],
        plans=plans,
        switches=_switch_marks(snapshot, first, last),
    )
    is_dark = st.context.theme.type == "dark"
    figure = rate_chart.rate_chart(
        chart, palette.DARK if is_dark else palette.LIGHT, revision=f"{run}/{view.range}/{view.x}"
    )
    target = plot(figure, key="stragglers_chart", alt=rate_chart.description(chart), on_pick=_toggled)
    frame.follow(target)
    frame.follow(picture(_plan_links(run, plans), key="stragglers_plans"))


def _switch_marks(snapshot: Snapshot, first: int, last: int) -> list[SwitchMark]:
    marks = []
    for switch in snapshot.switches:
        if not first <= switch.step <= last:
            continue
        if switch.outcome == "applied":
            text = f"switched v{switch.from_version} to v{switch.plan_version} before step {switch.step:,}, "
            marks.append(SwitchMark(step=switch.step, text=f"{text}paused {q.seconds(switch.pause_s)}"))
        else:
            text = f"switch to v{switch.plan_version} refused: {escape(switch.reason)}"
            marks.append(SwitchMark(step=switch.step, text=text, is_bad=True))
    return marks


def _plan_links(run: int, spans: list[PlanSpan]) -> str:
    shown = spans[-MAX_PLAN_LINKS:]
    links = [
        f"{link(f'v{span.version}', 'plans', {'run': run, 'version': span.version})} "
        f'<span class="muted">steps {q.count(span.first_step)}{q.DASH}{q.count(span.stop_step - 1)}</span>'
        for span in shown
    ]
    more = f'<span class="muted">{len(spans) - len(shown)} earlier, </span>' if len(spans) > len(shown) else ""
    return f'<p><span class="muted">Plans in these steps: </span>{more}{", ".join(links)}</p>'


def _set(name: str, value: object) -> None:
    """A widget shows what the address says, also after a link or a click elsewhere has changed it."""
    before = st.session_state.get(f"{_BOX}{name}")
    if before != value:
        st.session_state[f"{_LATE}{name}"] = before, time.monotonic()
    st.session_state[f"{_BOX}{name}"] = value


def _sent(name: str) -> Any:
    """What a widget's callback is called for; None if nobody has chosen it.

    A refresh that was under way when a link changed the widget brings the value of before; one whose widget is gone
    brings a value without its key.
    """
    value = st.session_state.get(f"{_BOX}{name}")
    before, at = st.session_state.get(f"{_LATE}{name}", (None, -math.inf))
    return None if value == before and time.monotonic() - at < LATE_S else value


def _put(name: str, value: str, default: str = "") -> None:
    if value == default:
        st.query_params.pop(name, None)
    else:
        st.query_params[name] = value


def _chosen(name: str, default: str) -> None:
    value = _sent(name)
    if value is not None:
        _put(name, value, default)


def _typed_range() -> None:
    typed = _sent("between")
    if typed is None:
        return
    text = clean_range(typed)
    _put("range", text if not text or is_range(text) or text not in RANGES else "", "")


def _typed_devices(num_devices: int) -> None:
    typed = _sent("devices")
    if typed is None:
        return
    text = typed.strip()
    try:
        _put("devices", ALL if text.lower() == ALL else listed(parsed(text, num_devices), num_devices))
    except ValueError:
        _put("devices", text)  # the page says what was expected


def _picked(values: list[str]) -> None:
    number = _num_devices()
    _put("devices", listed((int(value) for value in values), number))


def _toggled(value: str) -> None:
    """A click on a row of the strip."""
    number = _num_devices()
    device = round(float(value))
    kept = set(view_of(st.query_params, number).devices) ^ {device}
    _put("devices", listed(kept, number))


def _num_devices() -> int:
    run = frame.current_run()
    return 1 if run is None else run.config.num_devices
