"""The lower part of the Plans page: one plan in detail, or two compared. Layout only."""

from __future__ import annotations

from html import escape

import streamlit as st

from app.dashboard import flow_arrows, frame, plan_changes, plan_facts, plan_map, plan_story, reads
from app.dashboard.downloads import csv_text, json_text
from app.dashboard.headline import parsed
from app.dashboard.picture import picture
from app.dashboard.plan_table import record
from app.dashboard.snapshot import Snapshot
from app.dashboard.views import plan_decision
from app.plan_bundle import bundle_of, why_not
from db.errors import InputError
from db.plans import PlanView


def detail(snapshot: Snapshot, plan: PlanView, *, runner: int | None) -> None:
    """One plan.

    Args:
        runner: place of the runner-up whose map is open.
    """
    run = snapshot.run
    parents = reads.plan_versions(run.id, [plan.parent] if plan.parent else [])
    story = reads.plan_story(run.id, plan.version)
    document = parsed(plan.document)
    st.divider()
    with st.container(horizontal=True, vertical_alignment="center"):
        frame.follow(picture(plan_facts.plan_head(plan, snapshot.active_version), key="plans_detail_head"))
        _downloads(snapshot, plan)
    left, right = st.columns([1.15, 1], gap="large")
    with left:
        if document is None:
            picture('<p class="empty">This version has no plan document.</p>', key="plans_no_map")
        else:
            busy = plan_map.busy_shares(document, snapshot.profile, plan.rates)
            head = f'<p class="muted" style="margin-bottom:8px">{escape(plan_map.summary(document))}</p>'
            picture(head + plan_map.plan_map(document, rates=plan.rates, busy=busy), key="plans_map")
        picture(plan_facts.plan_rates(plan, document, run.config.nodes), key="plans_rates")
        switch = plan_story.last_switches(story.switches).get(plan.version)
        phases = plan_story.switch_phases(switch, story.num_digests)
        if phases:
            picture(phases, key="plans_phases")
    with right:
        plan_decision.decision(snapshot, plan)
        picture(plan_facts.plan_facts(plan, parents.get(plan.parent or 0), now=snapshot.now), key="plans_facts")
        picture(plan_story.story_lines(plan, story, now=snapshot.now), key="plans_story")
        links = plan_story.plan_links(plan, story, snapshot.episodes, now=snapshot.now)
        frame.follow(picture(links, key="plans_links"))
    _search(snapshot, plan, runner)


def difference(snapshot: Snapshot, old: PlanView, new: PlanView) -> None:
    """Two plans compared: maps, arrows, sentences."""
    before, after = parsed(old.document), parsed(new.document)
    changes = plan_changes.changes_of(before, after, snapshot.profile)
    st.divider()
    with st.container(horizontal=True, vertical_alignment="center"):
        picture(
            f'<div class="run-line"><span class="run-name">Plan v{old.version} → v{new.version}</span></div>',
            key="plans_diff_head",
        )
        nodes = snapshot.run.config.nodes
        moved = flow_arrows.flows_of(before, after, nodes=nodes, profile=snapshot.profile)
        if moved:
            name = f"run-{old.run}-plans-{old.version}-{new.version}-moves"
            rows = flow_arrows.records(moved)
            st.download_button(
                "Moves",
                csv_text(rows),
                f"{name}.csv",
                "text/csv",
                icon=":material/download:",
                key="plans_moves_csv",
                on_click="ignore",
            )
    if changes is None or before is None or after is None:
        missing = old.version if before is None else new.version
        said = (
            f"plan v{missing} has no document"
            if before is None or after is None
            else "they are plans of different models"
        )
        picture(f'<p class="empty">Nothing to compare: {said}.</p>', key="plans_no_diff")
        return
    names = (f"v{old.version}", f"v{new.version}")
    maps = plan_changes.change_maps(before, after, changes, names=names, rates=(old.rates, new.rates))
    for column, drawing, key in zip(st.columns(2, gap="large"), maps, ("plans_old", "plans_new"), strict=True):
        with column:
            picture(drawing, key=key)
    picture(flow_arrows.flow_arrows(moved, rates=new.rates, nodes=nodes), key="plans_arrows")
    picture(plan_changes.change_lines(changes), key="plans_changes")


def _downloads(snapshot: Snapshot, plan: PlanView) -> None:
    st.download_button(
        "This plan",
        json_text(record(plan, None) | {"details": plan.details}),
        f"run-{plan.run}-plan-{plan.version}.json",
        "application/json",
        icon=":material/download:",
        key="plans_one",
        on_click="ignore",
    )
    try:
        text = bundle_of(plan, reads.plan_job(plan.run, plan.version)).to_text()
        problem = ""
    except InputError as error:
        text, problem = "", str(error)
    st.download_button(
        "Bundle",
        text,
        f"run-{plan.run}-plan-{plan.version}-bundle.json",
        "application/json",
        icon=":material/package_2:",
        key="plans_bundle",
        disabled=bool(problem),
        help=f"No bundle: {problem}."
        if problem
        else "All that it was searched with, and the answer: `malleus replay FILE` searches again.",
        on_click="ignore",
    )


def _search(snapshot: Snapshot, plan: PlanView, runner: int | None) -> None:
    """What else the search found, and what it said."""
    runners, log = plan_facts.runners_up(plan, runner), plan_facts.solver_log(plan)
    if runners:
        with st.expander("Runners-up", expanded=runner is not None, key=f"plans_runners_{plan.run}_{plan.version}"):
            frame.follow(picture(runners, key="plans_runners"))
            document = None if runner is None else plan_facts.runner_up(plan, runner)
            if document is not None:
                busy = plan_map.busy_shares(document, snapshot.profile, plan.rates)
                head = f'<div class="head"><h3>Runner-up at place {runner}</h3></div>'
                picture(head + plan_map.plan_map(document, rates=plan.rates, busy=busy), key="plans_runner_map")
    if log:
        with st.expander("Solver log", key=f"plans_log_{plan.run}_{plan.version}"):
            st.code("\n".join(log), language=None)
    elif plan.solve_s is None:
        picture(f'<p class="muted">{escape(why_not(plan)).capitalize()}.</p>', key="plans_no_log")
