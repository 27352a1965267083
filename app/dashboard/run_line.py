"""The head of a run's pages as HTML: state line, problems, headline figures, alert line.

Pure drawing of a snapshot; shown by `picture`. The age of the data keeps growing in the browser, so a
page whose server is gone does not look alive.
"""

from __future__ import annotations

import math
from html import escape

from app.dashboard import quantities as q
from app.dashboard.headline import DEFINITIONS
from app.dashboard.links import link
from app.dashboard.snapshot import Snapshot


def run_line(snapshot: Snapshot) -> str:
    """Which run, its state, its plan, and how old the data is."""
    run = snapshot.run
    model = run.config.model
    shape = f"{model.num_layers} layers, hidden {model.hidden_size}, sequence {model.seq_len}"
    plan = link(f"v{snapshot.active_version}", "plans", {"run": run.id, "version": snapshot.active_version})
    reason = f'<span class="muted">{escape(run.reason)}</span>' if run.reason else ""
    return (
        '<div class="run-line">'
        f'<span class="run-name" data-tip="{escape(shape, quote=True)}" tabindex="0">run {run.id} '
        f'<span class="muted">·</span> {escape(run.name)}</span>'
        f"{badge(snapshot)}{reason}"
        f'<span class="fact">plan {plan} <span data-tip="{MODES[run.mode]}" tabindex="0">({run.mode})</span></span>'
        f"{freshness(snapshot)}</div>"
    )


def badge(snapshot: Snapshot) -> str:
    """A run's state: a word, and a mark whose shape differs too. A run that is not heard is not called training."""
    status = escape(snapshot.run.status)
    if snapshot.is_stale and snapshot.run.status != "lost":
        return f'<span class="badge silent">silent <small>was {status}</small></span>'
    return f'<span class="badge {status}">{status}</span>'


def freshness(snapshot: Snapshot) -> str:
    """How old the data is; stale data says since when."""
    run, age_s = snapshot.run, snapshot.data_age_s
    if not run.is_open:
        ended = f"ended {q.clock(run.ended_at, now=snapshot.now)}"
        ago = f", {q.age((snapshot.now - run.ended_at).total_seconds())} ago" if run.ended_at else ""
        return f'<span class="freshness">{ended}{ago}</span>'
    if age_s is None:
        return '<span class="freshness">no data yet</span>'
    state = "stale" if snapshot.is_stale else "fresh"
    tip = (
        f"Time since the engine was last heard. Older than {q.age(snapshot.stale_after_s)} is stale: the page is "
        "greyed out, since it no longer shows what is."
    )
    return (
        f'<span class="freshness" data-freshness="{state}" data-tip="{tip}" tabindex="0">data '
        f'<span data-age="{age_s:.2f}" data-stale-after="{snapshot.stale_after_s:.1f}">{q.age(age_s)}</span> old'
        f'<span class="since">since {q.clock(run.last_seen_at, now=snapshot.now)}</span></span>'
    )


def problems(snapshot: Snapshot) -> str:
    """What is broken, since when, and what still works; empty if nothing is."""
    run = snapshot.run
    if not run.is_open:
        return ""
    silent_s = snapshot.silent_s("controller")
    if silent_s is not None:
        since = "has never been heard" if math.isinf(silent_s) else f"has been silent for {q.age(silent_s)}"
        return _banner(
            f"The controller {since}.",
            "Nothing new is recorded and commands wait; training goes on. Start it with <code>malleus up</code>.",
        )
    worker_s = snapshot.silent_s("worker")
    if snapshot.is_stale:
        at = q.clock(run.last_seen_at, now=snapshot.now)
        return _banner(
            f"The engine has been silent since {at}.",
            "The controller is alive; what is below is the last that is known.",
        )
    if worker_s is not None and run.mode != "off":
        since = "has never been heard" if math.isinf(worker_s) else f"has been silent for {q.age(worker_s)}"
        return _banner(f"The planning worker {since}.", "Training and detection go on, but no new plan can be made.")
    return ""


def figures(snapshot: Snapshot) -> str:
    """The headline figures with units and definitions."""
    run, now = snapshot.run, snapshot.figures
    reference = DEFINITIONS["healthy_measured" if now.is_healthy_measured else "healthy_predicted"]
    healthy = f"{reference} Here {q.seconds(now.healthy_s)}." if now.healthy_s is not None else ""
    is_bad = run.loss is not None and not math.isfinite(run.loss)
    norm = "" if now.grad_norm is None else f"gradient norm {q.number(now.grad_norm)}"
    mfu = "" if now.mfu is None else f"MFU {q.percent(now.mfu)}"
    bound = f"bound {q.seconds(now.bound_s)}" if now.bound_s is not None else "bound unknown"
    slower = "" if now.slowdown is None else _over_healthy(now.slowdown)
    tiles = [
        _figure("Step", q.count(run.step), f"of {q.count(run.config.train.num_steps)}", DEFINITIONS["step"]),
        _figure("Loss", q.number(run.loss), norm, f"{DEFINITIONS['loss']} {DEFINITIONS['grad_norm']}", is_bad=is_bad),
        _figure("Step time", q.seconds(now.measured_s), bound, f"{DEFINITIONS['step_s']} {DEFINITIONS['bound']}"),
        _figure("Efficiency", q.percent(now.efficiency), slower, f"{DEFINITIONS['efficiency']} {healthy}"),
        _figure("Tokens per second", q.number(now.tokens_per_s), mfu, f"{DEFINITIONS['tokens']} {DEFINITIONS['mfu']}"),
        _figure("Lost to stragglers", q.duration(now.lost_s), "", f"{DEFINITIONS['lost']} {healthy}"),
        _figure("Saved by switches", q.duration(now.saved_s), "", DEFINITIONS["saved"]),
    ]
    return f'<div class="figures">{"".join(tiles)}</div>'


def alert_line(snapshot: Snapshot) -> str:
    """One sentence about the run's stragglers, with its links."""
    line = snapshot.alert
    links = "".join(link(entry.label, entry.page, entry.params) for entry in line.links)
    nav = f"<nav>{links}</nav>" if links else ""
    lead = escape(line.lead) if line.level == "calm" else f"<b>{escape(line.lead)}</b>"
    return f'<div class="alert {line.level}" role="status"><span>{lead} {escape(line.rest)}</span>{nav}</div>'


MODES = {
    "automatic": "The controller publishes a better plan at once.",
    "manual": "A better plan waits for a person's approval.",
    "off": "Nothing is re-planned.",
}


def _figure(name: str, value: str, note: str, definition: str, *, is_bad: bool = False) -> str:
    number, _, unit = value.partition(q.THIN)
    is_duration = " " in value
    shown = escape(value) if is_duration or not unit else f"{escape(number)}{q.THIN}<small>{escape(unit)}</small>"
    return (
        f'<div class="figure" data-tip="{escape(definition, quote=True)}" tabindex="0">'
        f'<span class="figure-name">{escape(name)}</span>'
        f'<span class="figure-value{" bad" if is_bad else ""}">{shown}</span>'
        f'<span class="figure-note">{escape(note) or "&nbsp;"}</span></div>'
    )


def _over_healthy(share: float) -> str:
    if abs(share) < 0.005:
        return "at healthy speed"
    return f"{'+' if share >= 0 else ''}{q.percent(share)} over healthy"


def _banner(lead: str, rest: str) -> str:
    return f'<div class="banner" role="alert"><b>{escape(lead)}</b> {rest}</div>'
