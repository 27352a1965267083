"""The failure of a device, as a way of the Inject page: first what it leads to, then the button, then the question."""

from __future__ import annotations

from html import escape

import streamlit as st

from app.dashboard import injection_form, reads, writes
from app.dashboard.picture import picture
from app.dashboard.snapshot import Snapshot
from app.failure_outlook import failure_outlook
from db.commands import failure_problem


def show(snapshot: Snapshot) -> None:
    """Draws the choice of the device and the button."""
    run, device, number = snapshot.run, injection_form.victim(), injection_form.state().list_number
    st.selectbox(
        "Device",
        range(run.config.num_devices),
        index=device,
        key=f"inject_victim_{number}",
        placeholder="none, click the grid or choose here",
        on_change=injection_form.victim_chosen,
    )
    outlook = _outlook(snapshot)
    picture(
        f'<p>Its process is killed at the next step boundary. <span class="muted">{escape(outlook)}</span></p>',
        key="inject_failure_outlook",
    )
    form = writes.settle("fail")
    blocked = writes.refusal(snapshot) or _refusal(snapshot, device, is_under_way=form.command is not None)
    # The form's own key: once the command is answered, the question is a new one, and closed.
    key = f"inject_fail_ask_{form.key[:8]}"
    label = "Fail" if device is None else f"Fail device {device}"
    with st.popover(label, icon=":material/power_off:", disabled=bool(blocked), help=blocked or None, key=key):
        st.markdown(f"**Kill the process of device {device} of run {run.id}?** {outlook}")
        st.button(
            f"Yes, fail device {device}",
            key="inject_fail",
            type="primary",
            disabled=bool(blocked),
            on_click=writes.submit,
            args=(run.id, "fail", {"device": device}),
            kwargs={"form": "fail"},
        )


def _outlook(snapshot: Snapshot) -> str:
    first = snapshot.steps[0].step if snapshot.steps else 0
    return failure_outlook(snapshot.run, first_step=first, saved_step=reads.saved_step(snapshot.run.id))


def _refusal(snapshot: Snapshot, device: int | None, *, is_under_way: bool) -> str:
    if is_under_way:
        return "The last one is under way."
    problem = failure_problem(snapshot.run)
    if problem:
        return f"{problem[:1].upper()}{problem[1:]}."
    return "Select one device." if device is None else ""
