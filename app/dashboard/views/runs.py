"""Runs: every run with its state, speed and stragglers. Layout only; rows are drawn by `run_table`."""

from __future__ import annotations

import streamlit as st

from app.dashboard import frame, reads
from app.dashboard.downloads import csv_text, json_text
from app.dashboard.live_part import live_part
from app.dashboard.picture import picture
from app.dashboard.run_table import records, run_table
from app.dashboard.snapshot import Snapshot
from app.dashboard.table import Sorting
from db.errors import StoreError
from db.runs import RunView

REFRESH_S = 2.0
PER_PAGE = 15
FILTERS = ("all", "open", "ended")


def show() -> None:
    """The page."""
    live_part(_runs, every_s=REFRESH_S)()


def _runs() -> None:
    try:
        found = reads.all_runs(limit=500)
        if not found:
            frame.nothing_to_show("")
            return
        _list(found)
    except StoreError as error:
        frame.broken(error)


def _list(found: list[RunView]) -> None:
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        head = st.container()
        state = st.segmented_control(
            "State", FILTERS, default="all", key="runs_state", label_visibility="collapsed", bind="query-params"
        )
        text = st.text_input(
            "Filter", placeholder="Filter by name", key="runs_text", label_visibility="collapsed", width=220
        )
    kept = [run for run in found if _matches(run, state or "all", text)]
    number = st.session_state.get("runs_page", 1)
    last = max(1, -(-len(kept) // PER_PAGE))
    first = (min(number, last) - 1) * PER_PAGE
    snapshots = [reads.snapshot(run.id) for run in kept[first : first + PER_PAGE]]
    with head:
        counts = _counts(found, snapshots)
        picture(f'<div class="run-line"><span class="run-name">Runs</span>{counts}</div>', key="runs_head")
    sorting = st.session_state.setdefault("runs_sorting", Sorting(column="run"))
    target = picture(run_table(snapshots, sorting), key="runs_table")
    if target is not None and target[0] == "sort":
        st.session_state["runs_sorting"] = sorting.toggled(target[1]["column"])
        st.rerun(scope="fragment")
    frame.follow(target)
    _foot(snapshots, last)


def _foot(snapshots: list[Snapshot], last: int) -> None:
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        with st.container(horizontal=True, gap="small"):
            rows = records(snapshots)
            st.download_button(
                "CSV", csv_text(rows), "runs.csv", "text/csv", icon=":material/download:", key="runs_csv"
            )
            st.download_button(
                "JSON", json_text(rows), "runs.json", "application/json", icon=":material/download:", key="runs_json"
            )
        if last > 1:
            st.number_input("Page", 1, last, key="runs_page", width=140, help=f"{last} pages")


def _counts(found: list[RunView], snapshots: list[Snapshot]) -> str:
    silent = sum(entry.is_stale for entry in snapshots)
    running = sum(run.is_open for run in found)
    words = f'<span class="fact"><b>{running}</b> open of {len(found)}</span>'
    return words + (f'<span class="fact"><b>{silent}</b> silent</span>' if silent else "")


def _matches(run: RunView, state: str, text: str) -> bool:
    if (state == "open" and not run.is_open) or (state == "ended" and run.is_open):
        return False
    return text.lower() in f"{run.id} {run.name} {run.status}".lower()
