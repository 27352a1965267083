"""Runs: every run with its state, speed and stragglers, and the start of a new one.

Layout only: rows are drawn by `run_table`, the form is `run_form`. Filter, order, page and an open form are in the
address. What is asked of a run from its menu is answered under the table.
"""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from app.dashboard import frame, reads, run_form, writes
from app.dashboard.acknowledgements import acknowledgements, refusals
from app.dashboard.download_buttons import download_buttons
from app.dashboard.live_part import live_part
from app.dashboard.picture import picture
from app.dashboard.run_start_line import is_settled, run_start_line
from app.dashboard.run_table import COLUMNS, OF_RUNS, in_order, records, run_table, runs_in_order
from app.dashboard.snapshot import Snapshot
from app.dashboard.table import Sorting
from app.run_draft import preset_names
from db.errors import InputError, StoreError
from db.runs import RunView

REFRESH_S = 2.0
PER_PAGE = 15
MAX_SNAPSHOTS = 30
"""Of more runs than this, only those of the page shown are looked at closely."""

FILTERS = ("all", "open", "ended")
NEWEST_FIRST = Sorting(column="run")
_ASKED, _STOP, _SORTING = "runs_asked", "runs_stop", "runs_sorting"


def show() -> None:
    """The page."""
    if run_form.opened():
        picture('<div class="run-line"><span class="run-name">Start a run</span></div>', key="start_head")
        run_form.show()
    started = st.query_params.get("started", "")
    if started.isdigit():
        live_part(_started, every_s=REFRESH_S / 2)(int(started))
    live_part(_runs, every_s=REFRESH_S)()


def _started(run: int) -> None:
    try:
        snapshot = reads.snapshot(run)
    except StoreError as error:
        frame.broken(error)
        return
    except InputError as error:
        picture(refusals([str(error)]), key="started_unknown")
        return
    frame.follow(picture(run_start_line(snapshot, reads.log_lines(run)), key="started_line"))
    if is_settled(snapshot):
        st.button("Done", key="started_done", on_click=_forget_started)


def _forget_started() -> None:
    st.query_params.pop("started", None)


def _runs() -> None:
    try:
        found = reads.all_runs(limit=500)
        if not found:
            _start_button()
            frame.nothing_to_show("")
            return
        _list(found)
    except StoreError as error:
        frame.broken(error)


def _start_button() -> None:
    if run_form.opened():
        return
    if st.button("Start a run", key="runs_new", icon=":material/add:", type="primary"):
        run_form.open_with(preset_names()[0])
        st.rerun()


def _list(found: list[RunView]) -> None:
    asked = st.query_params
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        head = st.container(width="content")
        with st.container(horizontal=True, vertical_alignment="center", gap="small", width="content"):
            wanted = asked.get("state", "")
            state = st.segmented_control(
                "State",
                FILTERS,
                default=wanted if wanted in FILTERS else FILTERS[0],
                key="runs_state",
                label_visibility="collapsed",
            )
            text = st.text_input(
                "Filter",
                value=asked.get("text", ""),
                placeholder="Filter by name, number or state",
                key="runs_text",
                label_visibility="collapsed",
                width=240,
            )
            _start_button()
    sorting = _sorting()
    kept = [run for run in found if _matches(run, state or FILTERS[0], text)]
    last = max(1, -(-len(kept) // PER_PAGE))
    number = min(_page(), last)
    snapshots = _page_of(kept, sorting, number)
    with head:
        counts = _counts(found, snapshots)
        picture(f'<div class="run-line"><span class="run-name">Runs</span>{counts}</div>', key="runs_head")
    why_not = "" if writes.is_unlocked() else writes.READ_ONLY
    target = picture(run_table(snapshots, sorting, why_not=why_not), key="runs_table")
    if target is not None and target[0] in ("sort", "ask"):
        if target[0] == "sort":
            st.session_state[_SORTING] = sorting.toggled(target[1]["column"])
        else:
            _ask(target[1])
        st.rerun(scope="fragment")
    frame.follow(target)
    _stop_question()
    _answers()
    _foot(kept, last, number)
    _keep_address(state=state, text=text, sorting=sorting, number=number)


def _page_of(kept: list[RunView], sorting: Sorting, number: int) -> list[Snapshot]:
    first = (number - 1) * PER_PAGE
    if len(kept) <= MAX_SNAPSHOTS:
        everything = in_order([reads.snapshot(run.id) for run in kept], sorting)
        return everything[first : first + PER_PAGE]
    ordered = runs_in_order(kept, sorting if sorting.column in OF_RUNS else NEWEST_FIRST)
    return in_order([reads.snapshot(run.id) for run in ordered[first : first + PER_PAGE]], sorting)


def _ask(asked: Mapping[str, str]) -> None:
    """What was chosen in the menu of a run; a stop is asked back first."""
    run, kind = int(asked["run"]), asked["kind"]
    if kind == "stop":
        st.session_state[_STOP] = run
    else:
        _submit(run, kind)


def _submit(run: int, kind: str) -> None:
    st.session_state.pop(_STOP, None)
    st.session_state.setdefault(_ASKED, []).append(run)
    form = f"runs_{kind}_{run}"
    writes.settle(form)
    writes.submit(run, kind, {}, form=form)
    st.session_state["runs_error"] = writes.form_state(form).error


def _stop_question() -> None:
    run = st.session_state.get(_STOP)
    if run is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", key="runs_stop_question"):
        picture(
            f'<div class="banner"><b>Stop run {run}?</b> It finishes the current step and ends for good.</div>',
            key="runs_stop_words",
        )
        st.button(f"Stop run {run}", key="runs_stop_confirm", type="primary", on_click=_submit, args=(run, "stop"))
        st.button("Let it run", key="runs_stop_cancel", on_click=lambda: st.session_state.pop(_STOP, None))


def _answers() -> None:
    """What came of what was asked in this session, by run."""
    shown = refusals([st.session_state.get("runs_error", "")])
    for run in dict.fromkeys(reversed(st.session_state.get(_ASKED, []))):
        snapshot = reads.snapshot(run)
        lines = acknowledgements(snapshot.commands, now=snapshot.now, most=2)
        if lines:
            shown += f'<p class="muted">Run {run}</p>{lines}'
    if shown:
        picture(shown, key="runs_answers")


def _foot(kept: list[RunView], last: int, number: int) -> None:
    ids = [run.id for run in kept]
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        with st.container(horizontal=True, gap="small"):
            download_buttons(
                "runs",
                lambda: records([reads.snapshot(run) for run in ids]),
                key="runs",
                help="All runs that match the filter.",
            )
        if last > 1:
            st.number_input("Page", 1, last, value=number, key="runs_page", width=140, help=f"{last} pages")


def _sorting() -> Sorting:
    if _SORTING not in st.session_state:
        column = st.query_params.get("sort", "")
        is_known = column in {entry.sort for entry in COLUMNS if entry.sort}
        is_descending = st.query_params.get("order") != "up"
        st.session_state[_SORTING] = Sorting(column=column, is_descending=is_descending) if is_known else NEWEST_FIRST
    sorting: Sorting = st.session_state[_SORTING]
    return sorting


def _page() -> int:
    if "runs_page" in st.session_state:
        return int(st.session_state["runs_page"])
    asked = st.query_params.get("page", "")
    return max(1, int(asked)) if asked.isdigit() else 1


def _keep_address(*, state: str | None, text: str, sorting: Sorting, number: int) -> None:
    """Writes the view into the address, beside what the form keeps there."""
    wanted = {name: st.query_params[name] for name in ("new", "started", "run") if name in st.query_params}
    view = {
        "state": state if state and state != FILTERS[0] else "",
        "text": text,
        "sort": sorting.column if sorting != NEWEST_FIRST else "",
        "order": "" if sorting.is_descending else "up",
        "page": str(number) if number > 1 else "",
    }
    wanted |= {name: value for name, value in view.items() if value}
    if st.query_params.to_dict() != wanted:
        st.query_params.from_dict(wanted)


def _counts(found: list[RunView], snapshots: list[Snapshot]) -> str:
    silent = sum(entry.is_stale for entry in snapshots)
    running = sum(run.is_open for run in found)
    words = f'<span class="fact"><b>{running}</b> open of {len(found)}</span>'
    return words + (f'<span class="fact"><b>{silent}</b> silent</span>' if silent else "")


def _matches(run: RunView, state: str, text: str) -> bool:
    if (state == "open" and not run.is_open) or (state == "ended" and run.is_open):
        return False
    return text.lower() in f"{run.id} {run.name} {run.status}".lower()
