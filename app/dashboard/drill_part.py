"""The lower half of the Inject page: one drill as a timeline, a report to keep, and the chart of its steps.

Which drill is shown stands in the address (`drill`); without one it is the newest.
"""

from __future__ import annotations

from html import escape

import streamlit as st

from app.dashboard import charts, palette, reads
from app.dashboard import quantities as q
from app.dashboard.acknowledgements import wording
from app.dashboard.downloads import csv_text, json_text
from app.dashboard.drill import as_drill, drill_stages
from app.dashboard.drill_card import drill_card, report_rows
from app.dashboard.drill_line import drill_line, drill_summary
from app.dashboard.headline import best_healthy_s
from app.dashboard.picture import picture
from app.dashboard.plot import plot
from app.dashboard.snapshot import Snapshot
from app.drill_report import BEFORE_STEPS, DrillReport, drill_report
from db.commands import CommandView

CHART_STEPS = 100
MARGIN_STEPS = 40
"""More steps than are needed before the drill: some of them are no train steps."""


def show(snapshot: Snapshot) -> int | None:
    """Draws the part.

    Returns:
        The drill that a person chose; None: the newest.
    """
    drills = reads.drills_asked(snapshot.run.id)
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        picture('<div class="head"><h3>Drill</h3></div>', key="inject_drill_head")
        chosen = _choice(drills, snapshot) if drills else None
    if not drills:
        picture('<p class="empty">What follows an injection is timed here, stage by stage.</p>', key="inject_no_drill")
        return None
    command = next((entry for entry in drills if entry.id == chosen), drills[0])
    following = [entry for entry in drills if entry.id > command.id and entry.status != "failed"]
    injections = reads.drill_injections(snapshot.run.id)
    stages = drill_stages(
        as_drill(command, injections),
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
    report = _report(command, following, snapshot)
    if report is not None:
        _card(report, snapshot)
    _chart(snapshot, report)
    return chosen


def _choice(drills: list[CommandView], snapshot: Snapshot) -> int | None:
    names = {command.id: f"{q.clock(command.created_at, now=snapshot.now)} · {wording(command)}" for command in drills}
    asked = st.query_params.get("drill", "")
    options = [None, *names]
    wanted = int(asked) if asked.isdigit() and int(asked) in names else None
    return st.selectbox(
        "Drill",
        options,
        index=options.index(wanted),
        key="inject_drill",
        label_visibility="collapsed",
        width=420,
        format_func=lambda entry: "the newest" if entry is None else names.get(entry, f"drill {entry}"),
    )


def _report(command: CommandView, following: list[CommandView], snapshot: Snapshot) -> DrillReport | None:
    run = snapshot.run
    injections = reads.drill_injections(run.id)
    begun = [
        entry.applied_step for entry in injections if entry.command == command.id and entry.applied_step is not None
    ]
    if not begun:
        return None
    ends = [entry.created_at for entry in following] + ([run.ended_at] if run.ended_at is not None else [])
    first_step = min(begun)
    return drill_report(
        command,
        name=wording(command),
        injections=injections,
        steps=reads.drill_steps(run.id, max(0, first_step - BEFORE_STEPS - MARGIN_STEPS), None),
        plans=snapshot.plans,
        switches=snapshot.switches,
        num_devices=run.config.num_devices,
        profile=snapshot.profile,
        healthy_s=snapshot.figures.capacity_s if snapshot.figures.is_healthy_measured else None,
        best_healthy_s=best_healthy_s(snapshot.plans, run.config.num_devices),
        until=min(ends, default=None),
    )


def _card(report: DrillReport, snapshot: Snapshot) -> None:
    picture(drill_card(report, now=snapshot.now), key="inject_report")
    name = f"run-{report.run}-drill-{report.drill}"
    with st.container(horizontal=True, gap="small"):
        st.download_button(
            "CSV",
            csv_text(report_rows(report)),
            f"{name}.csv",
            "text/csv",
            icon=":material/download:",
            key="inject_csv",
        )
        st.download_button(
            "JSON",
            json_text(report.to_json()),
            f"{name}.json",
            "application/json",
            icon=":material/download:",
            key="inject_json",
        )


def _chart(snapshot: Snapshot, report: DrillReport | None) -> None:
    """The steps of the drill, from a little before it on."""
    run, newest = snapshot.run, snapshot.run.step or 0
    first = max(0, (newest - CHART_STEPS if report is None else report.first_step - BEFORE_STEPS) + 1)
    last = newest if report is None else min(newest, max(report.last_step, first + CHART_STEPS - 1))
    points = snapshot.points(reads.steps_between(run.id, first, last))
    if not points:
        return
    end_at = snapshot.now if last == newest else points[-1].at
    marks = [mark for mark in snapshot.marks() if points[0].at <= mark.at <= end_at]
    figure = charts.run_chart(
        points,
        marks,
        palette=palette.DARK if st.context.theme.type == "dark" else palette.LIGHT,
        revision=f"inject/{run.id}/{0 if report is None else report.drill}",
        has_loss=False,
    )
    plot(figure, key="inject_chart", alt=charts.description(points, marks))
