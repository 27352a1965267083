"""Plans: every version, why it was made, what it does and what became of it. Layout only.

The address says what is open: `?run=7&version=3` a plan, `&diff=2` the comparison of two, `&view=calibration` or
`&view=replay` the other parts; filters, sorting and page stand there too, so that a reload shows the same.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import streamlit as st

from app.dashboard import frame, plan_table, reads, run_line, writes
from app.dashboard.acknowledgements import acknowledgements, refusals
from app.dashboard.download_buttons import download_buttons
from app.dashboard.live_part import live_part
from app.dashboard.picture import picture
from app.dashboard.plan_story import last_switches
from app.dashboard.snapshot import Snapshot
from app.dashboard.table import Sorting
from app.dashboard.views import plan_calibration, plan_decision, plan_detail, plan_replay
from db.errors import InputError, StoreError
from db.plans import SORTS, PlanView, Selection

REFRESH_S = 1.5
PER_PAGE = 12

VIEWS = {"plans": "Plans", "calibration": "Predicted against measured", "replay": "Replay a bundle"}
STATUSES = (
    *("queued", "solving", "ready", "approved", "switching"),
    *("active", "superseded", "rejected", "failed"),
)


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
            plan_decision.mode_and_replan(snapshot)
    notes = run_line.problems(snapshot)
    if notes:
        picture(notes, key="plans_problems")
    errors = refusals([writes.form_state(form).error for form in plan_decision.FORMS])
    acks = acknowledgements(snapshot.commands, now=snapshot.now)
    if acks or errors:
        picture(errors + acks, key="plans_acks")
    view = _view()
    if view == "calibration":
        plan_calibration.show(snapshot)
        frame.keep_address(run, view=view)
    elif view == "replay":
        replay = plan_replay.show(snapshot, version=_asked("version"), replay=_asked("replay"))
        frame.keep_address(run, view=view, version=_text(_asked("version")), replay=_text(replay))
    else:
        _versions(snapshot)


def _view() -> str:
    asked = st.query_params.get("view", "plans")
    seen = st.session_state.get("plans_view_asked")
    if asked != seen:  # a link, or a reload, says what to show
        st.session_state["plans_view_asked"] = asked
        st.session_state["plans_view"] = asked if asked in VIEWS else "plans"
    chosen = st.segmented_control(
        "View", list(VIEWS), key="plans_view", format_func=VIEWS.__getitem__, label_visibility="collapsed"
    )
    view = chosen or (asked if asked in VIEWS else "plans")
    st.session_state["plans_view_asked"] = view
    return str(view)


def _versions(snapshot: Snapshot) -> None:
    run = snapshot.run.id
    version, other, runner = _asked("version"), _asked("diff"), _asked("runner")
    selection, page = _list(snapshot, [entry for entry in (version, other) if entry is not None])
    try:
        if version is not None and other is not None and other != version:
            old, new = sorted((version, other))
            plan_detail.difference(snapshot, reads.plan(run, old), reads.plan(run, new))
        elif version is not None:
            plan_detail.detail(snapshot, reads.plan(run, version), runner=runner)
        elif snapshot.plans:
            plan_detail.detail(snapshot, _of_interest(snapshot), runner=runner)
    except InputError as error:
        picture(f'<p class="empty">{escape(str(error)).capitalize()}.</p>', key="plans_unknown")
    order = "" if selection == Selection(statuses=selection.statuses, triggers=selection.triggers) else selection.sort
    frame.keep_address(
        run,
        version=_text(version),
        diff=_text(other),
        runner=_text(runner),
        status=",".join(selection.statuses),
        trigger=",".join(selection.triggers),
        sort=order and f"{'-' if selection.is_descending else ''}{order}",
        page=str(page) if page > 1 else None,
    )


def _of_interest(snapshot: Snapshot) -> PlanView:
    """The plan to show when nobody asked for one: the newest that waits for a decision, else the active one."""
    waiting = next((plan for plan in snapshot.plans if plan.status == "ready"), None)
    active = next((plan for plan in snapshot.plans if plan.version == snapshot.active_version), None)
    return waiting or active or snapshot.plans[0]


def _list(snapshot: Snapshot, ticked: list[int]) -> tuple[Selection, int]:
    run = snapshot.run.id
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="plans_filters"):
        selection = _selection(run)
        number = reads.num_plans(run, selection)
        last = max(1, -(-number // PER_PAGE))
        _restore("plans_page", lambda: min(max(_asked("page") or 1, 1), last))
        st.session_state["plans_page"] = page = min(st.session_state["plans_page"], last)
        if last > 1:
            st.number_input(
                "Page", 1, last, key="plans_page", width=130, label_visibility="collapsed", help="Page of the list."
            )
        pages = f", page {page:,} of {last:,}" if last > 1 else ""
        is_filtered = bool(selection.statuses or selection.triggers)
        noun = f"plan{'s' if number != 1 else ''}{' selected' if is_filtered else ''}"
        picture(f'<p class="muted">{number:,} {noun}{pages}</p>', key="plans_count")
    shown = reads.plan_page(run, selection, limit=PER_PAGE, offset=(page - 1) * PER_PAGE)
    known = {plan.version: plan for plan in [*snapshot.plans, *shown]}
    known |= reads.plan_versions(run, {plan.parent for plan in shown if plan.parent} - set(known))
    switches = last_switches(reads.switches_to(run, [plan.version for plan in shown]))
    sorting = Sorting(column=selection.sort, is_descending=selection.is_descending)
    target = picture(
        plan_table.plan_table(
            shown,
            switches,
            known,
            ticked=ticked,
            now=snapshot.now,
            sorting=sorting,
            empty="No plan is like this: take a filter away." if is_filtered else "No plan yet.",
        ),
        key="plans_table",
        mode="many",
        selected=[str(version) for version in ticked],
        on_pick=_picked,
    )
    if target is not None and target[0] == "sort":
        st.session_state["plans_sorting"] = sorting.toggled(target[1]["column"])
        st.rerun(scope="fragment")
    frame.follow(target)
    _foot(run, selection, ticked)
    return selection, page


def _selection(run: int) -> Selection:
    """What the filters, the heads and (at first) the address say."""
    _restore("plans_status", lambda: [entry for entry in _words("status") if entry in STATUSES])
    triggers = sorted({*reads.plan_triggers(run), *st.session_state.get("plans_trigger", [])})
    _restore("plans_trigger", lambda: [entry for entry in _words("trigger") if entry in triggers])
    _restore("plans_sorting", _asked_sorting)
    statuses = st.multiselect(
        "State", STATUSES, key="plans_status", placeholder="All states", label_visibility="collapsed", width=260
    )
    chosen = st.multiselect(
        "Trigger", triggers, key="plans_trigger", placeholder="All triggers", label_visibility="collapsed", width=260
    )
    sorting = st.session_state["plans_sorting"]
    return Selection(
        statuses=tuple(statuses),
        triggers=tuple(chosen),
        sort=sorting.column,
        is_descending=sorting.is_descending,
    )


def _foot(run: int, selection: Selection, ticked: list[int]) -> None:
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        download_buttons(
            f"run-{run}-plans",
            lambda: [plan_table.record(plan, switch) for plan, switch in reads.all_selected(run, selection)],
            key="plans",
            help="All plans that the filters leave, not only this page.",
        )
        hints = ("Tick one to see it, two to compare.", "Tick a second one to compare.", "")
        picture(f'<p class="muted">{hints[min(len(ticked), 2)]}</p>', key="plans_hint")


def _restore(key: str, given: Callable[[], object]) -> None:
    if key not in st.session_state:
        st.session_state[key] = given()


def _asked_sorting() -> Sorting:
    asked = st.query_params.get("sort", "-version")
    column = asked.removeprefix("-")
    return Sorting(column=column, is_descending=asked.startswith("-")) if column in SORTS else Sorting(column="version")


def _words(name: str) -> list[str]:
    return [entry for entry in st.query_params.get(name, "").split(",") if entry]


def _asked(name: str) -> int | None:
    asked = st.query_params.get(name, "")
    return int(asked) if asked.isdecimal() and len(asked) < 19 else None


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _picked(values: list[str]) -> None:
    versions = [int(value) for value in values][-2:]
    st.query_params.pop("runner", None)
    for name, version in zip(("version", "diff"), [*versions, None, None], strict=False):
        if version is None:
            st.query_params.pop(name, None)
        else:
            st.query_params[name] = str(version)
