"""Decisions on plans: mode, a plan now, approve, reject, roll back; each with what it means first. Layout only."""

from __future__ import annotations

import streamlit as st

from app.dashboard import flow_arrows, plan_changes, run_line, writes
from app.dashboard.headline import parsed
from app.dashboard.picture import picture
from app.dashboard.snapshot import Snapshot
from db.plans import PlanView

FORMS = ("mode", "replan", "decide")
MODES = ("automatic", "manual", "off")
ACTIONS = {
    "ready": ("approve", "reject"),
    "queued": ("reject",),
    "solving": ("reject",),
    "approved": ("reject",),
    "superseded": ("rollback",),
}
LABELS = {"approve": "Approve", "reject": "Reject", "rollback": "Roll back to this plan"}


def mode_and_replan(snapshot: Snapshot) -> None:
    """The two buttons at the head of the page."""
    run, why_not = snapshot.run, writes.refusal(snapshot, "set_mode")
    key = writes.settle("mode").key[:8]  # once a choice is answered, the next one is asked anew
    help_ = why_not or "Who decides on a better plan."
    with st.popover(f"Mode: {run.mode}", disabled=bool(why_not), help=help_, key=f"plans_mode_ask_{key}"):
        chosen = st.radio(
            "Mode",
            MODES,
            index=MODES.index(run.mode),
            key=f"plans_mode_{key}",
            format_func=str.capitalize,
            captions=[run_line.MODES[mode] for mode in MODES],
            label_visibility="collapsed",
        )
        is_same = chosen == run.mode
        st.button(
            f"It is {run.mode} now" if is_same else f"Yes, set mode {chosen}",
            key="plans_mode_set",
            type="primary",
            disabled=bool(why_not) or is_same,
            width="stretch",
            on_click=writes.submit,
            args=(run.id, "set_mode", {"mode": chosen}),
            kwargs={"form": "mode"},
        )
    waiting, why_not = writes.settle("replan").command is not None, writes.refusal(snapshot, "replan")
    st.button(
        "Replan now",
        key="plans_replan",
        icon=":material/refresh:",
        disabled=bool(why_not) or waiting,
        help=why_not or "Asks the worker for a plan at the rates measured now.",
        on_click=writes.submit,
        args=(run.id, "replan", {}),
        kwargs={"form": "replan"},
    )


def decision(snapshot: Snapshot, plan: PlanView) -> None:
    """First what will happen, then the reason, then the button, then the confirmation."""
    actions = ACTIONS.get(plan.status, ())
    if not actions or (actions == ("rollback",) and plan.document is None):
        return
    is_same = _preview(snapshot, plan)
    refused = {kind: writes.refusal(snapshot, kind) for kind in actions}
    why_none = refused[actions[0]] if all(refused.values()) else ""
    form = writes.settle("decide")
    reason = st.text_input(
        "Reason",
        key=_reason_key(plan.run, plan.version),
        placeholder="why; kept with the plan and in the audit",
        max_chars=writes.MAX_REASON,
        disabled=bool(why_none),
        help=why_none or None,
    )
    with st.container(horizontal=True, gap="small"):
        for kind in actions:
            blocked = refused[kind] or ("The last decision is under way." if form.command is not None else "")
            if not blocked and is_same and kind != "reject":
                blocked = f"It is the same as the active plan v{snapshot.active_version}."
            # The form's own key: once the decision is answered, the confirmation is a new one, and closed.
            key = f"plans_{kind}_ask_{form.key[:8]}"
            with st.popover(LABELS[kind], disabled=bool(blocked), help=blocked or None, key=key):
                st.markdown(_question(snapshot, plan, kind))
                st.caption(f"Reason: {reason}" if reason else "Without a reason.")
                st.button(
                    f"Yes, {LABELS[kind].lower()}",
                    key=f"plans_{kind}",
                    type="primary",
                    disabled=bool(blocked),
                    on_click=_decide,
                    args=(plan.run, kind, plan.version),
                )


def _reason_key(run: int, version: int) -> str:
    return f"plans_reason_{run}_{version}"


def _decide(run: int, kind: str, version: int) -> None:
    arguments = {"version": version, "reason": writes.typed(_reason_key(run, version))}
    writes.submit(run, kind, arguments, form="decide")


def _preview(snapshot: Snapshot, plan: PlanView) -> bool:
    """What moving to it now would mean; whether it is what runs already."""
    document = parsed(plan.document)
    changes = plan_changes.changes_of(snapshot.active_plan, document, snapshot.profile)
    if changes is None:
        return False
    stay_s, move_s = snapshot.predicted_s(snapshot.active_plan), snapshot.predicted_s(document)
    preview = plan_changes.move_preview(changes, snapshot.switches, stay_s=stay_s, move_s=move_s)
    note = f'<span class="muted">from v{snapshot.active_version}, at the rates measured now</span>'
    head = f'<div class="head"><h3>If the job moves to it now</h3>{note}</div>'
    said = ""
    if not changes.is_empty:
        said = plan_changes.verdict(
            changes,
            snapshot.switches,
            stay_s=stay_s,
            move_s=move_s,
            num_done=0 if snapshot.run.step is None else snapshot.run.step + 1,
            num_steps=snapshot.run.config.train.num_steps,
        )
    picture(
        f'{head}{plan_changes.preview_facts(preview)}<div style="margin-top:10px">{said}</div>', key="plans_preview"
    )
    nodes = snapshot.run.config.nodes
    moved = flow_arrows.flows_of(snapshot.active_plan, document, nodes=nodes, profile=snapshot.profile)
    if moved:
        with st.expander("What would move", key=f"plans_would_{plan.run}_{plan.version}"):
            picture(flow_arrows.flow_arrows(moved, rates=snapshot.rates, nodes=nodes), key="plans_would")
    return changes.is_empty


def _question(snapshot: Snapshot, plan: PlanView, kind: str) -> str:
    if kind == "rollback":
        return (
            f"**Return to plan v{plan.version} of run {plan.run}?** It becomes a new version that repeats "
            f"v{plan.version}; plan v{snapshot.active_version} is superseded."
        )
    if kind == "approve":
        return f"**Approve plan v{plan.version} of run {plan.run}?** The job moves to it at the next step boundary."
    return f"**Reject plan v{plan.version} of run {plan.run}?** The job keeps plan v{snapshot.active_version}."
