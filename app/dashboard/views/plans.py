"""Plans: every version, why it was made, what it does and what became of it. Layout only.

The address says what is open: `?run=7&version=3` a plan, `&diff=2` the comparison of two.
"""

from __future__ import annotations

from html import escape

import streamlit as st

from app.dashboard import frame, plan_changes, plan_facts, plan_map, plan_table, reads, run_line, writes
from app.dashboard.acknowledgements import acknowledgements, refusals
from app.dashboard.downloads import csv_text, json_text
from app.dashboard.headline import parsed
from app.dashboard.live_part import live_part
from app.dashboard.picture import picture
from app.dashboard.snapshot import Snapshot
from db.errors import InputError, StoreError
from db.plans import PlanView

REFRESH_S = 1.5
FORMS = ("mode", "replan", "decide")
PER_PAGE = 12
MODES = ("automatic", "manual", "off")


def show() -> None:
    """The page."""
    run = frame.current_run()
    if run is None:
        frame.nothing_to_show(frame.problem_with_address())
        return
    live_part(_plans, every_s=REFRESH_S)(run.id, run.status)


def _plans(run: int, status: str) -> None:
    try:
        snapshot = reads.snapshot(run)
        if snapshot.run.status != status:
            st.rerun()
        _page(snapshot)
    except StoreError as error:
        frame.broken(error)


def _page(snapshot: Snapshot) -> None:
    run = snapshot.run.id
    with st.container(horizontal=True, vertical_alignment="center", key="plans_header"):
        frame.follow(picture(run_line.run_line(snapshot), key="plans_run_line"))
        with st.container(horizontal=True, key="plans_actions", gap="small", vertical_alignment="center"):
            _mode(snapshot)
    notes = run_line.problems(snapshot)
    if notes:
        picture(notes, key="plans_problems")
    errors = refusals([writes.form_state(form).error for form in FORMS])
    acks = acknowledgements(snapshot.commands, now=snapshot.now)
    if acks or errors:
        picture(errors + acks, key="plans_acks")
    version, other = _asked("version"), _asked("diff")
    _list(snapshot, [entry for entry in (version, other) if entry is not None])
    try:
        if version is not None and other is not None and other != version:
            _diff(snapshot, reads.plan(run, min(version, other)), reads.plan(run, max(version, other)))
        elif version is not None:
            _detail(snapshot, reads.plan(run, version))
        elif snapshot.plans:
            _detail(snapshot, _of_interest(snapshot))
    except InputError as error:
        picture(f'<p class="empty">{escape(str(error)).capitalize()}.</p>', key="plans_unknown")
    frame.keep_address(
        run, version=None if version is None else str(version), diff=None if other is None else str(other)
    )


def _of_interest(snapshot: Snapshot) -> PlanView:
    """The plan to show when nobody asked for one: the newest that waits for a decision, else the active one."""
    waiting = next((plan for plan in snapshot.plans if plan.status == "ready"), None)
    active = next((plan for plan in snapshot.plans if plan.version == snapshot.active_version), None)
    return waiting or active or snapshot.plans[0]


def _mode(snapshot: Snapshot) -> None:
    run, why_not = snapshot.run, writes.refusal(snapshot, needs_engine=False)
    key = f"plans_mode_ask_{writes.settle('mode').key[:8]}"
    help_ = why_not or "When a better plan becomes active."
    with st.popover(f"Mode: {run.mode}", disabled=bool(why_not), help=help_, key=key):
        for mode in MODES:
            st.button(
                mode.capitalize(),
                key=f"plans_mode_{mode}",
                disabled=bool(why_not) or mode == run.mode,
                help=run_line.MODES[mode],
                width="stretch",
                on_click=writes.submit,
                args=(run.id, "set_mode", {"mode": mode}),
                kwargs={"form": "mode"},
            )
    waiting = writes.settle("replan").command is not None
    st.button(
        "Plan now",
        key="plans_replan",
        icon=":material/refresh:",
        disabled=bool(why_not) or waiting,
        help=why_not or "Asks the worker for a plan at the rates measured now.",
        on_click=writes.submit,
        args=(run.id, "replan", {}),
        kwargs={"form": "replan"},
    )


def _list(snapshot: Snapshot, ticked: list[int]) -> None:
    run = snapshot.run.id
    number = reads.num_plans(run)
    last = max(1, -(-number // PER_PAGE))
    page = min(st.session_state.get("plans_page", 1), last)
    shown = reads.plan_page(run, limit=PER_PAGE, offset=(page - 1) * PER_PAGE)
    known = {plan.version: plan for plan in [*snapshot.plans, *shown]}
    switches = plan_table.last_switches(snapshot.switches)
    frame.follow(
        picture(
            plan_table.plan_table(shown, switches, known, ticked=ticked, now=snapshot.now),
            key="plans_table",
            mode="many",
            selected=[str(version) for version in ticked],
            on_pick=_picked,
        )
    )
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            rows = plan_table.records(shown, switches)
            name = f"run-{run}-plans"
            st.download_button(
                "CSV", csv_text(rows), f"{name}.csv", "text/csv", icon=":material/download:", key="plans_csv"
            )
            st.download_button(
                "JSON",
                json_text(rows),
                f"{name}.json",
                "application/json",
                icon=":material/download:",
                key="plans_json",
            )
            hint = (
                "Tick a second one to compare."
                if len(ticked) == 1
                else ""
                if ticked
                else "Tick one to see it, two to compare."
            )
            picture(f'<p class="muted">{hint}</p>', key="plans_hint")
        if last > 1:
            st.number_input("Page", 1, last, key="plans_page", width=140, help=f"{number} plans on {last} pages")


def _detail(snapshot: Snapshot, plan: PlanView) -> None:
    parent = next((entry for entry in snapshot.plans if entry.version == plan.parent), None)
    switch = plan_table.last_switches(snapshot.switches).get(plan.version)
    document = parsed(plan.document)
    st.divider()
    with st.container(horizontal=True, vertical_alignment="center"):
        frame.follow(picture(plan_facts.plan_head(plan, snapshot.active_version), key="plans_detail_head"))
        st.download_button(
            "This plan",
            json_text(plan_table.records([plan], {})[0] | {"details": plan.details}),
            f"run-{plan.run}-plan-{plan.version}.json",
            "application/json",
            icon=":material/download:",
            key="plans_one",
        )
    left, right = st.columns([1.15, 1], gap="large")
    with left:
        if document is None:
            picture('<p class="empty">This version has no plan document.</p>', key="plans_no_map")
        else:
            busy = plan_map.busy_shares(document, snapshot.profile, plan.rates)
            head = f'<p class="muted" style="margin-bottom:8px">{escape(plan_map.summary(document))}</p>'
            drawing = plan_map.plan_map(document, rates=plan.rates, busy=busy)
            picture(f'{head}{drawing}<div style="margin-top:12px">{plan_facts.plan_rates(plan)}</div>', key="plans_map")
    with right:
        _decision(snapshot, plan)
        picture(plan_facts.plan_facts(plan, parent, switch, now=snapshot.now), key="plans_facts")
    runners, log = plan_facts.runners_up(plan), plan_facts.solver_log(plan)
    if runners:
        with st.expander("Runner-ups"):
            picture(runners, key="plans_runners")
    if log:
        with st.expander("Solver log"):
            st.code("\n".join(log), language=None)


def _decision(snapshot: Snapshot, plan: PlanView) -> None:
    """Approve, reject or roll back: first what will happen, then the reason, then the button."""
    kinds = {"ready": ("approve", "reject"), "queued": ("reject",), "solving": ("reject",), "approved": ("reject",)}
    actions = kinds.get(plan.status, ("rollback",) if plan.status == "superseded" and plan.document else ())
    if not actions:
        return
    document = parsed(plan.document)
    changes = plan_changes.changes_of(snapshot.active_plan, document, snapshot.profile)
    if changes is not None:
        stay_s, move_s = snapshot.predicted_s(snapshot.active_plan), snapshot.predicted_s(document)
        preview = plan_changes.move_preview(changes, snapshot.switches, stay_s=stay_s, move_s=move_s)
        note = f'<span class="muted">from v{snapshot.active_version}</span>'
        head = f'<div class="head"><h3>If the job moves to it now</h3>{note}</div>'
        picture(head + plan_changes.preview_facts(preview), key="plans_preview")
    why_not = writes.refusal(snapshot)
    form = writes.settle("decide")
    reason = st.text_input(
        "Reason",
        key=f"plans_reason_{plan.run}_{plan.version}",
        placeholder="for the audit",
        max_chars=writes.MAX_REASON,
        disabled=bool(why_not),
        help=why_not or None,
    )
    is_same = changes is not None and changes.is_empty
    with st.container(horizontal=True, gap="small"):
        for kind in actions:
            label = {"approve": "Approve", "reject": "Reject", "rollback": "Roll back to this plan"}[kind]
            blocked = why_not or ("The last decision is under way." if form.command is not None else "")
            if not blocked and is_same and kind != "reject":
                blocked = f"It is the same as the active plan v{snapshot.active_version}."
            # The form's own key: once the decision is answered, the confirmation is a new one, and closed.
            with st.popover(
                label, disabled=bool(blocked), help=blocked or None, key=f"plans_{kind}_ask_{form.key[:8]}"
            ):
                st.markdown(f"**{label}: plan v{plan.version} of run {plan.run}?**")
                st.button(
                    f"Yes, {label.lower()}",
                    key=f"plans_{kind}",
                    type="primary",
                    disabled=bool(blocked),
                    on_click=writes.decide,
                    args=(plan.run, kind, plan.version, reason),
                )


def _diff(snapshot: Snapshot, old: PlanView, new: PlanView) -> None:
    before, after = parsed(old.document), parsed(new.document)
    changes = plan_changes.changes_of(before, after, snapshot.profile)
    st.divider()
    picture(
        f'<div class="run-line"><span class="run-name">Plan v{old.version} → v{new.version}</span></div>',
        key="plans_diff_head",
    )
    if changes is None or before is None or after is None:
        missing = old.version if before is None else new.version
        picture(f'<p class="empty">Nothing to compare: plan v{missing} has no document.</p>', key="plans_no_diff")
        return
    names = (f"v{old.version}", f"v{new.version}")
    maps = plan_changes.change_maps(before, after, changes, names=names, rates=(old.rates, new.rates))
    for column, drawing, key in zip(st.columns(2, gap="large"), maps, ("plans_old", "plans_new"), strict=True):
        with column:
            picture(drawing, key=key)
    picture(plan_changes.change_lines(changes), key="plans_changes")


def _asked(name: str) -> int | None:
    asked = st.query_params.get(name, "")
    return int(asked) if asked.isdigit() else None


def _picked(values: list[str]) -> None:
    versions = [int(value) for value in values][-2:]
    for name, version in zip(("version", "diff"), [*versions, None, None], strict=False):
        if version is None:
            st.query_params.pop(name, None)
        else:
            st.query_params[name] = str(version)
