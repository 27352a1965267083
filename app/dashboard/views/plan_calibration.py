"""Predicted against measured, for the plans of a run that ran. Layout only; drawn by `calibration`."""

from __future__ import annotations

import streamlit as st

from app.dashboard import calibration, frame, palette, reads
from app.dashboard.download_buttons import download_buttons
from app.dashboard.headline import parsed
from app.dashboard.picture import picture
from app.dashboard.plot import plot
from app.dashboard.snapshot import Snapshot


def show(snapshot: Snapshot) -> None:
    """The part of the page."""
    run = snapshot.run.id
    ran = reads.plans_that_ran(run)
    found = calibration.outcomes(ran, predicted_s=_predicted_now(snapshot))
    picture(calibration.summary(found, len(ran)), key="plans_calibration_head")
    if not found:
        return
    if len(ran) >= reads.MAX_RAN:
        picture(f'<p class="muted">These are the last {reads.MAX_RAN:,} plans that ran.</p>', key="plans_cut")
    colours = palette.DARK if st.context.theme.type == "dark" else palette.LIGHT
    drawing = calibration.figure(found, palette=colours, revision=f"calibration-{run}")
    plot(drawing, key="plans_calibration", alt=calibration.description(found))
    picture('<div class="head"><h3>Large errors, and what explains them</h3></div>', key="plans_errors_head")
    counts = {}
    for entry in calibration.with_large_error(found):
        steps = reads.plan_steps(run, entry.version)
        if steps is not None:
            counts[entry.version] = steps[2]
    html = calibration.large_errors(found, snapshot.episodes, counts, run=run, now=snapshot.now)
    frame.follow(picture(html, key="plans_errors"))
    with st.container(horizontal=True, gap="small"):
        download_buttons(
            f"run-{run}-predictions",
            lambda: calibration.records(found),
            key="plans_calibration",
            help="All plans that are compared here.",
        )


def _predicted_now(snapshot: Snapshot) -> dict[int, float]:
    """For plans that came without a prediction (the first one): what the profile says at healthy rates."""
    found = {}
    for plan in snapshot.plans:
        if plan.predicted_s is None and plan.active_at is not None:
            predicted = snapshot.predicted_at(parsed(plan.document), plan.rates)
            if predicted is not None:
                found[plan.version] = predicted
    return found
