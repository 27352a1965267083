"""What-if: another set of rates or settings, planned by the worker, beside the plan in use. Layout only.

The address says what is shown: `?whatif=12` a question with its answer; `&from=run-7&rates=3:2.57` one that is being
written. Nothing here touches a run, except that a plan may be proposed to it, which then waits for approval.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from html import escape

import streamlit as st

from app.dashboard import frame, reads, what_if_draft, what_if_table, writes
from app.dashboard import quantities as q
from app.dashboard.acknowledgements import refusals
from app.dashboard.device_grid import Cell, cell_state, grid, legend
from app.dashboard.download_buttons import download_buttons
from app.dashboard.live_part import live_part
from app.dashboard.picture import picture
from app.dashboard.plan_map import place
from app.dashboard.views import what_if_answer
from app.dashboard.what_if_draft import Draft
from app.dashboard.what_if_origin import PRESETS, Origin, preset_origin, request_origin, run_name, run_of, run_origin
from db.errors import InputError, StoreError
from db.what_ifs import WhatIfView
from planner.errors import PlannerError

REFRESH_S = 1.0
PER_PAGE = 8
_SHOWN, _PROBLEM = "what_if_shown", "what_if_problem"


def show() -> None:
    """The page."""
    try:
        draft = _restore()
        _head(draft)
        left, right = st.columns([1.15, 1], gap="large")
        with left:
            _devices(draft)
        with right:
            _settings(draft)
        _table(draft)
        asked = _shown()
        if asked is not None:
            st.divider()
            if asked.is_open:
                live_part(_waiting, every_s=REFRESH_S)(asked.id)
            else:
                what_if_answer.show(asked)
        st.divider()
        _history(None if asked is None else asked.id, draft)
        _keep_address(draft, asked)
    except StoreError as error:
        frame.broken(error)


def _restore() -> Draft:
    """The draft that the address asks for; else this session's; else one of the newest run, or of the demo."""
    params = dict(st.query_params)
    st.session_state[_PROBLEM] = ""
    draft, shown = what_if_draft.current(), st.session_state.get(_SHOWN)
    asked = params.get("whatif", "")
    try:
        if asked and asked != str(shown or ""):
            found = reads.what_if(int(asked)) if asked.isdigit() else None
            if found is None:
                raise InputError(f"whatif must be a number, given {asked!r}")
            st.session_state[_SHOWN] = found.id
            draft = what_if_draft.start(request_origin(found.request, found.run))
            draft.apply({name: value for name, value in params.items() if params.get("from") == draft.origin.name})
            return draft
        name = params.get("from") or (run_name(int(params["run"])) if params.get("run", "").isdigit() else "")
        if name and (draft is None or draft.origin.name != name):
            draft = what_if_draft.start(_origin(name))
            draft.apply(params)
            return draft
    except (InputError, PlannerError) as error:
        st.session_state[_PROBLEM] = str(error)
        st.session_state[_SHOWN] = None
        st.query_params.clear()
    return draft or what_if_draft.start(_first_origin())


def _first_origin() -> Origin:
    run = frame.current_run()
    if run is not None:
        try:
            return _origin(run_name(run.id))
        except InputError:
            pass
    return preset_origin("demo")


def _origin(name: str) -> Origin:
    run = run_of(name)
    return preset_origin(name) if run is None else run_origin(reads.snapshot(run))


def _head(draft: Draft) -> None:
    origin = draft.origin
    with st.container(horizontal=True, vertical_alignment="center", key="what_if_header"):
        title = '<div class="run-line"><span class="run-name">What if</span>'
        picture(f'{title}<span class="fact">{escape(origin.title)}</span></div>', key="what_if_head")
        with st.container(horizontal=True, key="what_if_actions", gap="small", vertical_alignment="center"):
            names = {run_name(run.id): f"run {run.id} · {run.name}, {run.status}" for run in reads.all_runs()}
            names |= {name: title for name, (_, _, title) in PRESETS.items()}
            names.setdefault(origin.name, origin.title)
            options = list(names)
            st.selectbox(
                "Start from",
                options,
                index=options.index(origin.name),
                format_func=lambda name: names.get(name, name),
                key=f"what_if_origin_{draft.fields_number}",
                label_visibility="collapsed",
                width=300,
                on_change=_begin_chosen,
                args=(draft.fields_number,),
            )
            st.button(
                "Take anew",
                icon=":material/refresh:",
                key="what_if_anew",
                help="Starts again from what it is now: the run's rates and plan of this moment, or the preset.",
                on_click=_begin,
                args=(origin.name,),
            )
    if st.session_state.get(_PROBLEM):
        picture(refusals([_sentence(st.session_state[_PROBLEM])]), key="what_if_problem")
    if origin.unknown:
        silent = f"{q.devices(origin.unknown).capitalize()} measured nothing and count as healthy."
        picture(f'<p class="banner">{escape(silent)}</p>', key="what_if_unknown")


def _devices(draft: Draft) -> None:
    note = f"{len(draft.selected)} selected" if draft.selected else "click to select, then give a rate"
    head = f'<div class="head"><h3>Devices and their rates</h3><span class="muted">{note}</span></div>'
    picture(
        head + grid(_cells(draft), selected=draft.selected) + legend(),
        key="what_if_grid",
        mode="many",
        selected=[str(device) for device in draft.selected],
        on_pick=what_if_draft.picked,
    )


def _cells(draft: Draft) -> list[Cell]:
    cells, plan = [], draft.origin.current
    for node, devices in enumerate(draft.origin.cluster.nodes):
        for device in devices:
            rate = draft.rates.get(device, 1.0)
            role, where = place(plan, device) if plan is not None else ("active", "")
            state = cell_state(role="active" if role == "failed" else role, rate=rate, is_heard=True)
            cells.append(Cell(device=device, node=node, state=state, rate=rate, place=where))
    return cells


def _settings(draft: Draft) -> None:
    nothing = not draft.selected
    rate = draft.shared_rate
    with st.container(horizontal=True, vertical_alignment="top"):
        st.segmented_control(
            f"Rate of {q.devices(draft.selected)}" if draft.selected else "Rate of the selected devices",
            what_if_draft.PRESETS,
            default=rate if rate in what_if_draft.PRESETS else None,
            key=f"what_if_preset_{draft.rate_number}",
            format_func=lambda value: "healthy" if value == 1.0 else q.rate(value),
            disabled=nothing,
            on_change=what_if_draft.preset_chosen,
        )
        st.number_input(
            "Other rate",
            0.01,
            what_if_draft.MAX_RATE,
            value=rate if rate is not None and math.isfinite(rate) else None,
            step=0.1,
            format="%.2f",
            key=f"what_if_rate_{draft.rate_number}",
            disabled=nothing,
            on_change=what_if_draft.rate_typed,
            width=112,
        )
    with st.container(horizontal=True, gap="small"):
        st.button("All healthy", key="what_if_healthy", disabled=not draft.rates, on_click=what_if_draft.all_healthy)
        st.button(
            "As at the start",
            key="what_if_measured",
            disabled=draft.rates == dict(draft.origin.rates),
            help="The rates of the run when this what-if began.",
            on_click=what_if_draft.as_measured,
        )
    _search(draft)
    _ask(draft)


def _search(draft: Draft) -> None:
    origin, number = draft.origin, draft.fields_number
    sizes, degrees, most = (
        what_if_draft.possible_sizes(origin),
        what_if_draft.possible_tp(origin),
        what_if_draft.most_dp(origin),
    )
    with st.container(horizontal=True, vertical_alignment="top"):
        chosen = st.multiselect(
            "Micro-batch sizes",
            sizes,
            default=[size for size in draft.sizes if size in sizes],
            key=f"what_if_sizes_{number}",
            help="Sequences in a micro-batch; those that the profile knows.",
            width=190,
        )
        low = st.number_input("Pipelines, at least", 1, most, draft.dp[0], key=f"what_if_low_{number}", width=140)
        high = st.number_input("At most", 1, most, draft.dp[1], key=f"what_if_high_{number}", width=120)
        tp = st.segmented_control(
            "Largest TP degree", degrees, default=draft.max_tp, key=f"what_if_tp_{number}", required=True
        )
    draft.sizes, draft.dp, draft.max_tp = tuple(sorted(chosen)), (int(low), int(high)), int(tp or draft.max_tp)


def _ask(draft: Draft) -> None:
    problem = ""
    try:
        draft.request()
    except PlannerError as error:
        problem = _sentence(str(error))
    blocked = writes.ask_refusal() or problem
    refused = writes.settle_ask().error
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.button(
            "Plan this",
            key="what_if_ask",
            type="primary",
            icon=":material/play_arrow:",
            disabled=bool(blocked),
            help=blocked or f"The worker searches for at most {q.duration(draft.origin.time_limit_s)}.",
            on_click=_submit,
        )
        if blocked:
            picture(f'<p class="muted">{escape(blocked)}</p>', key="what_if_blocked")
    if refused:
        picture(refusals([refused]), key="what_if_error")


def _table(draft: Draft) -> None:
    with st.expander("Rates as a table", key="what_if_table_open"):
        nodes = {device: node for node, devices in enumerate(draft.origin.cluster.nodes) for device in devices}
        shown = draft.table_rates
        st.data_editor(
            {
                "Device": sorted(nodes),
                "Node": [nodes[device] for device in sorted(nodes)],
                "At the start": [q.rate(draft.origin.rates.get(device, 1.0)) for device in sorted(nodes)],
                what_if_draft.RATE: [_finite(shown.get(device, 1.0)) for device in sorted(nodes)],
                what_if_draft.FAILED: [math.isinf(shown.get(device, 1.0)) for device in sorted(nodes)],
            },
            key=f"what_if_table_{draft.table_number}",
            disabled=["Device", "Node", "At the start"],
            column_config={
                what_if_draft.RATE: st.column_config.NumberColumn(
                    min_value=0.01, max_value=what_if_draft.MAX_RATE, step=0.01, format="%.2f"
                )
            },
            hide_index=True,
            width=560,
            height=min(38 + 35 * len(nodes), 388),
            on_change=what_if_draft.table_edited,
        )


def _waiting(id: int) -> None:
    """An open what-if: what it waits for. Once it has ended the whole page runs again, with the answer."""
    try:
        asked = reads.what_if(id)
    except (InputError, StoreError) as error:
        frame.broken(StoreError(str(error)))
        return
    if not asked.is_open:
        st.rerun()
    age_s = (datetime.now(UTC) - asked.created_at).total_seconds()
    words = "the worker searches" if asked.status == "solving" else "waits for a worker"
    limit = q.duration(asked.request.time_limit_s)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        badge = what_if_table.status_badge(asked.status)
        picture(
            f'<div class="run-line"><span class="run-name">What-if #{id}</span>{badge}'
            f'<span class="fact">{words}, for {q.age(age_s)} so far (at most {limit} of search)</span></div>',
            key="what_if_waiting",
        )
        locked = writes.read_only()
        st.button(
            "Cancel",
            key="what_if_cancel",
            disabled=bool(locked),
            help=locked or None,
            on_click=writes.withdraw,
            args=(id,),
        )


def _history(shown: int | None, draft: Draft) -> None:
    run = draft.origin.run
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        picture('<div class="head"><h3>Earlier what-ifs</h3></div>', key="what_if_history_head")
        scope = st.segmented_control(
            "Which",
            ["all", "of this run"],
            default="all",
            key="what_if_scope",
            label_visibility="collapsed",
            disabled=run is None,
        )
    of = run if scope == "of this run" else None
    number = reads.num_what_ifs(of)
    last = max(1, -(-number // PER_PAGE))
    page = min(st.session_state.get("what_if_page", 1), last)
    entries = reads.what_if_page(of, limit=PER_PAGE, offset=(page - 1) * PER_PAGE)
    table = what_if_table.what_if_table(entries, shown=shown, now=datetime.now(UTC))
    frame.follow(picture(table, key="what_if_history"))
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        with st.container(horizontal=True, gap="small"):
            download_buttons(
                "what-ifs", lambda: what_if_table.records(entries), key="what_if", help="The what-ifs of this page."
            )
        if last > 1:
            st.number_input("Page", 1, last, key="what_if_page", width=140, help=f"{number} on {last} pages")


def _shown() -> WhatIfView | None:
    id = st.session_state.get(_SHOWN)
    try:
        return None if id is None else reads.what_if(id)
    except InputError:  # its run was removed, and it with it
        st.session_state[_SHOWN] = None
        return None


def _keep_address(draft: Draft, asked: WhatIfView | None) -> None:
    params = {} if asked is None else {"whatif": str(asked.id)}
    is_asked = False
    if asked is not None:
        try:
            is_asked = draft.request() == asked.request
        except PlannerError:
            is_asked = False
    if not is_asked:
        params |= draft.params()
    if asked is not None and "plan" in st.query_params:
        params["plan"] = st.query_params["plan"]
    if dict(st.query_params) != params:
        st.query_params.from_dict(params)


def _begin_chosen(number: int) -> None:
    _begin(st.session_state[f"what_if_origin_{number}"])


def _begin(name: str) -> None:
    """Starts a new question; what was answered before is in the list."""
    try:
        draft = what_if_draft.start(_origin(name))
    except (InputError, PlannerError, StoreError) as error:
        st.session_state[_PROBLEM] = str(error)
        return
    st.session_state[_SHOWN] = None
    st.query_params.from_dict(draft.params())


def _submit() -> None:
    draft = what_if_draft.current()
    assert draft is not None
    try:
        id = writes.ask(draft.request().model_dump(), draft.origin.run)
    except PlannerError as error:  # the button was drawn before the last edit
        writes.form_state("ask").error = str(error)
        return
    if id is not None:
        st.session_state[_SHOWN] = id
        st.query_params.from_dict({"whatif": str(id)})


def _finite(rate: float) -> float:
    return rate if math.isfinite(rate) else 1.0


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
