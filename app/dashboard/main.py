"""The dashboard's entry point: router and picture frame (`streamlit run app/dashboard/main.py`).

Pages lay out, `reads` reads, `writes` writes; see the modules of this package. The framework's
settings lie beside this file in `.streamlit/config.toml`.
"""

from __future__ import annotations

import streamlit as st

from app.dashboard import frame
from app.dashboard.views import inject, live, plans, runs, what_if
from db.errors import StoreError

REFRESH_BROKEN_S = 3.0
RUNS = "Runs"
WHAT_IF = "What-if"

frame.PAGES.update(
    {
        "runs": st.Page(runs.show, title=RUNS, url_path="runs", default=True),
        "live": st.Page(live.show, title="Live", url_path="live"),
        "inject": st.Page(inject.show, title="Inject", url_path="inject"),
        "plans": st.Page(plans.show, title="Plans", url_path="plans"),
        "what-if": st.Page(what_if.show, title=WHAT_IF, url_path="what-if"),
    }
)


def main() -> None:
    """Draws the frame, then the page."""
    page = st.navigation(list(frame.PAGES.values()), position="top")
    try:
        run = frame.current_run()
        is_about_one_run = page.title not in (RUNS, WHAT_IF)
        frame.dress(run if is_about_one_run else None, page.title)
        frame.corner(has_picker=is_about_one_run, run=run)
        page.run()
    except StoreError as error:
        frame.dress(None)
        _broken(str(error))


@st.fragment(run_every=REFRESH_BROKEN_S)
def _broken(message: str) -> None:
    frame.broken(StoreError(message))
    try:
        frame.current_run()
    except StoreError:
        return
    st.rerun()


main()
