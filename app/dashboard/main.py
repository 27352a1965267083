"""The dashboard's entry point: router and picture frame (`streamlit run app/dashboard/main.py`).

Pages lay out, `reads` reads, `writes` writes; see the modules of this package. The framework's
settings lie beside this file in `.streamlit/config.toml`.
"""

from __future__ import annotations

import streamlit as st

from app.dashboard import access, frame, sign_in, writes
from app.dashboard.sign_in_return import sign_in_return
from app.dashboard.views import audit, health, inject, live, plans, runs, stragglers, what_if
from db.errors import StoreError

REFRESH_BROKEN_S = 3.0
RUNS = "Runs"
ABOUT_NO_RUN = (RUNS, "What-if", "Health", "Audit")


def _to_runs() -> None:
    """The default page answers at `/` alone; links name it like any other page, and may be opened in a new tab."""
    st.switch_page(frame.PAGES["runs"], query_params=st.query_params.to_dict())


frame.PAGES.update(
    {
        "runs": st.Page(runs.show, title=RUNS, url_path="", default=True),
        "live": st.Page(live.show, title="Live", url_path="live"),
        "stragglers": st.Page(stragglers.show, title="Stragglers", url_path="stragglers"),
        "inject": st.Page(inject.show, title="Inject", url_path="inject"),
        "plans": st.Page(plans.show, title="Plans", url_path="plans"),
        "what-if": st.Page(what_if.show, title="What-if", url_path="what-if"),
        "health": st.Page(health.show, title="Health", url_path="health"),
        "audit": st.Page(audit.show, title="Audit", url_path="audit"),
    }
)
RUNS_BY_NAME = st.Page(_to_runs, title=RUNS, url_path="runs", visibility="hidden")


def main() -> None:
    """Draws the frame, then the page; where people sign in, nothing before that."""
    person = access.person()
    is_let_in = person.role != "nobody"
    page = st.navigation([*frame.PAGES.values(), RUNS_BY_NAME], position="top" if is_let_in else "hidden")
    if not is_let_in:
        frame.dress(None, "Sign in")
        sign_in_return(is_let_in=False)
        sign_in.show(person)
        return
    try:
        writes.note_login(person)
        run = frame.current_run()
        is_about_one_run = page.title not in ABOUT_NO_RUN
        frame.dress(run if is_about_one_run else None, page.title)
        frame.corner(has_picker=is_about_one_run, run=run)
        if person.by_login:
            sign_in_return(is_let_in=True)
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
