"""The answer on the What-if page: both plans, what they cost, what moving means, and the proposal. Layout only."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from html import escape

import streamlit as st

from app.dashboard import palette, plan_changes, plan_map, reads, what_if_comparison, writes
from app.dashboard import quantities as q
from app.dashboard.acknowledgements import acknowledgements, refusals
from app.dashboard.downloads import json_text
from app.dashboard.frame import follow
from app.dashboard.links import link
from app.dashboard.live_part import live_part
from app.dashboard.memory_bars import memory_bars
from app.dashboard.picture import picture
from app.dashboard.plot import plot
from app.dashboard.what_if_answer import Answer, Choice, answer_of, proposal
from app.dashboard.what_if_table import status_badge
from app.dashboard.what_if_timeline import step_timeline
from db.errors import InputError, StoreError
from db.what_ifs import WhatIfView
from planner.plan import Plan

REFRESH_S = 1.0


def show(asked: WhatIfView) -> None:
    """An ended what-if."""
    answer = answer_of(asked.request, asked.result) if asked.result is not None else None
    _title(asked)
    if answer is None:
        words = asked.error or "The answer cannot be read."
        picture(f'<div class="alert bad" role="status"><b>{escape(words)}</b></div>', key="what_if_no_answer")
        return
    index = _chosen(answer)
    choice = answer.choices[index] if answer.choices else None
    name = "The plan in use" if asked.request.current_version is None else f"Plan v{asked.request.current_version}"
    if asked.run is None and answer.current is not None:
        name = "The uniform plan"
    picture(what_if_comparison.lead(answer, choice, name), key="what_if_lead")
    picture(what_if_comparison.figures(answer, choice), key="what_if_figures")
    if choice is not None:
        _plans(answer, choice, (name, "The best plan" if index == 0 else f"Plan in place {index + 1}"))
        _cost(asked, answer, choice, (name, "Found"))
        _timelines(answer, choice, (name, "Found"))
    if len(answer.choices) > 1:
        picture('<div class="head"><h3>All plans that were found</h3></div>', key="what_if_choices_head")
        picture(
            what_if_comparison.choices(answer, index),
            key="what_if_choices",
            mode="one",
            selected=[str(index + 1)],
            on_pick=_choose,
        )
    if answer.log:
        with st.expander(f"Solver log ({q.seconds(answer.seconds)})"):
            st.code("\n".join(answer.log), language=None)


def _title(asked: WhatIfView) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        who = f"asked {q.clock(asked.created_at, now=datetime.now(UTC))} by {asked.actor}"
        target = picture(
            f'<div class="run-line"><span class="run-name">What-if #{asked.id}</span>{status_badge(asked.status)}'
            f"<span>{what_if_comparison.rate_chips(asked.request.rates)}</span>"
            f'<span class="fact">{escape(who)}, from {escape(asked.request.title)}</span></div>',
            key="what_if_title",
        )
        follow(target)
        document = {"id": asked.id, "request": asked.request.model_dump(), "result": asked.result}
        st.download_button(
            "Question and answer",
            json_text(document),
            f"what-if-{asked.id}.json",
            "application/json",
            icon=":material/download:",
            key="what_if_download",
        )


def _plans(answer: Answer, choice: Choice, names: tuple[str, str]) -> None:
    """Both maps and what they need of memory, side by side."""
    old, new = answer.current, choice.plan
    changes = plan_changes.changes_of(old, new, answer.profile)
    left, right = st.columns(2, gap="large")
    if old is None or changes is None or changes.is_empty:
        with left:
            busy = plan_map.busy_shares(new, answer.profile, answer.rates)
            head = f'<div class="head"><h3>{escape(names[1])}</h3></div>'
            picture(head + plan_map.plan_map(new, rates=answer.rates, busy=busy), key="what_if_new")
        with right:
            picture(memory_bars(new, answer.cluster, answer.profile), key="what_if_new_memory")
        return
    maps = plan_changes.change_maps(old, new, changes, names=names, rates=(answer.rates, answer.rates))
    for column, side, plan, drawing in zip((left, right), ("old", "new"), (old, new), maps, strict=True):
        with column:
            picture(drawing, key=f"what_if_{side}")
            picture(memory_bars(plan, answer.cluster, answer.profile), key=f"what_if_{side}_memory")


def _cost(asked: WhatIfView, answer: Answer, choice: Choice, names: tuple[str, str]) -> None:
    left, right = st.columns(2, gap="large")
    with left:
        picture(what_if_comparison.comparison(answer, choice, names=names), key="what_if_comparison")
    with right:
        move = answer.move_to(choice)
        if move is not None:
            picture(what_if_comparison.move_facts(move), key="what_if_move")
        st.download_button(
            "This plan",
            json.dumps(choice.plan.to_json(), indent=2),
            f"what-if-{asked.id}-plan.json",
            "application/json",
            icon=":material/download:",
            key="what_if_plan",
            help="`malleus propose RUN FILE` takes it.",
        )
        if asked.run is not None:
            live_part(_proposal, every_s=REFRESH_S)(asked.id, asked.run, choice.plan)


def _proposal(id: int, run: int, found: Plan) -> None:
    """The one thing here that concerns the run: the plan as a new version of it, for a person to approve."""
    try:
        snapshot = reads.snapshot(run)
    except (InputError, StoreError):  # the page around it says so
        return
    active = snapshot.active_plan
    plan = proposal(found, () if active is None else active.failed)
    blocked = writes.refusal(snapshot, "propose")
    if not blocked and plan == active:
        blocked = f"It is what run {run} runs already (plan v{snapshot.active_version})."
    form = writes.settle("propose")
    blocked = blocked or ("The last proposal is under way." if form.command is not None else "")
    label = f"Propose to run {run}"
    with st.popover(label, disabled=bool(blocked), help=blocked or None, key=f"what_if_propose_ask_{form.key[:8]}"):
        st.markdown(f"**{label} as a new plan?** It waits there until somebody approves it.")
        if plan != found:
            st.caption(
                f"{q.devices(found.failed).capitalize()} failed only in this what-if and would stand by instead."
            )
        st.text_input("Reason", key=f"what_if_reason_{id}", placeholder="for the audit", max_chars=writes.MAX_REASON)
        st.button(
            "Yes, propose it",
            key="what_if_propose",
            type="primary",
            on_click=_propose,
            args=(run, plan, id),
        )
    mine = [entry for entry in snapshot.commands if entry.kind == "propose" and entry.arguments.get("what_if") == id]
    notes = refusals([writes.form_state("propose").error]) + acknowledgements(mine, now=snapshot.now)
    waiting = [entry for entry in snapshot.plans if entry.details.get("what_if") == id]
    notes += "".join(
        f'<p class="muted">{link(f"plan v{entry.version}", "plans", {"run": run, "version": entry.version})} of run '
        f"{run} came of it: {escape(entry.status)}.</p>"
        for entry in waiting
    )
    if notes:
        follow(picture(notes, key="what_if_proposed"))


def _propose(run: int, plan: Plan, id: int) -> None:
    arguments = {"document": plan.to_json(), "reason": writes.typed(f"what_if_reason_{id}"), "what_if": id}
    writes.submit(run, "propose", arguments, form="propose")


def _timelines(answer: Answer, choice: Choice, names: tuple[str, str]) -> None:
    colors = palette.DARK if st.context.theme.type == "dark" else palette.LIGHT
    plans = [(names[1], choice.plan, choice.step_s)]
    if answer.current is not None and answer.current_s is not None and not choice.is_current:
        plans.insert(0, (names[0], answer.current, answer.current_s))
    with suppress(ValueError):
        end_s = max(seconds for _, _, seconds in plans if seconds < float("inf"))
        with st.expander("One step, stage by stage (1F1B)", key="what_if_timelines", expanded=True):
            for number, (name, plan, seconds) in enumerate(plans):
                drawn = step_timeline(plan, answer.profile, answer.rates, colors, end_s=end_s)
                words = "cannot run at these rates" if drawn is None else f"{q.seconds(seconds)} a step. {drawn[1]}"
                head = f'<div class="head"><h3>{escape(name)}</h3><span class="muted">{escape(words)}</span></div>'
                picture(head, key=f"what_if_timeline_head_{number}")
                if drawn is not None:
                    plot(drawn[0], key=f"what_if_timeline_{number}", alt=f"{name}: {q.seconds(seconds)} a step")


def _chosen(answer: Answer) -> int:
    asked = st.query_params.get("plan", "")
    return min(int(asked) - 1, len(answer.choices) - 1) if asked.isdigit() and int(asked) > 0 and answer.choices else 0


def _choose(values: list[str]) -> None:
    if values and values[-1] != "1":
        st.query_params["plan"] = values[-1]
    else:
        st.query_params.pop("plan", None)
