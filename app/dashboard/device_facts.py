"""One device in detail: where it is, what it does, how often it straggled and on what evidence.

Pure drawing of a snapshot; shown by `picture` under the grid when a device is selected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from app.dashboard import plan_map
from app.dashboard import quantities as q
from app.dashboard.facts import facts
from app.dashboard.links import link
from app.dashboard.snapshot import Snapshot
from app.dashboard.table import Column, Row, table

if TYPE_CHECKING:
    from db.episodes import EpisodeView

MAX_EPISODES = 5


def device_facts(snapshot: Snapshot, device: int) -> str:
    """The panel of a device."""
    view = next((entry for entry in snapshot.devices if entry.device == device), None)
    plan = snapshot.active_plan
    role, place = plan_map.place(plan, device) if plan is not None else ("", "no plan")
    injection = next(
        (entry for entry in snapshot.injections if entry.device == device and entry.status != "cleared"), None
    )
    episodes = [episode for episode in snapshot.episodes if episode.device == device]
    rate = snapshot.rates.get(device)
    pairs = [
        ("Rate now", "unknown" if rate is None or math.isnan(rate) else q.rate(rate)),
        ("Place in the plan", place),
        ("Node", "" if view is None else f"node {view.node}" + (f", host {view.host}" if view.host else "")),
        ("Rank", "not introduced yet" if view is None or view.rank is None else f"rank {view.rank}, pid {view.pid}"),
        ("Injection", _injection(injection, snapshot)),
    ]
    inject = link("inject here", "inject", {"run": snapshot.run.id, "devices": device})
    head = f'<div class="head"><h3>Device {device}</h3><span class="muted">{escape(role)}</span>{inject}</div>'
    return f"{head}{facts(pairs)}{_episodes(episodes, snapshot)}"


def evidence_words(evidence: Mapping[str, Any], device: int) -> str:
    """What a verdict rests on, in one line: samples, what was assumed, how the peers did."""
    known = dict(evidence)
    parts = []
    for name, words in (("samples", "samples"), ("reference", "assumed"), ("level", "level before")):
        value = known.pop(name, None)
        if isinstance(value, Mapping):
            value = value.get(str(device))
        if value is not None:
            parts.append(f"{words} {_short(value)}")
    peers = known.pop("peers", None)
    if isinstance(peers, Mapping):
        parts.append(
            f"{_short(peers.get('count'))} peers at median {_short(peers.get('median'))}, "
            f"highest {_short(peers.get('highest'))}"
        )
    threshold = known.pop("threshold", None)
    if isinstance(threshold, float):
        parts.append(f"threshold {q.percent(threshold)}")
    parts += [f"{name.replace('_', ' ')} {_short(value)}" for name, value in known.items()]
    return "; ".join(parts)


def _injection(injection: Any, snapshot: Snapshot) -> str:
    if injection is None:
        return "none"
    until = f" until {q.clock(injection.until_at, now=snapshot.now)}" if injection.until_at else ""
    state = "" if injection.status == "active" else f" ({injection.status})"
    return f"{q.rate(injection.rate)}{until}{state}"


def _episodes(episodes: list[EpisodeView], snapshot: Snapshot) -> str:
    if not episodes:
        return '<p class="muted" style="margin-top:10px">It has not straggled in this run.</p>'
    columns = [
        Column(title="Slow since"),
        Column(title="Until"),
        Column(title="Rate", is_number=True, tip="When the episode was opened."),
        Column(title="Peak", is_number=True),
        Column(title="Cause"),
        Column(title="Evidence", is_wide=True),
    ]
    rows = [
        Row(
            key=str(episode.id),
            cells=[
                f"{q.clock(episode.start_at, now=snapshot.now)}, step {q.count(episode.start_step)}",
                "now"
                if episode.end_at is None
                else f"{q.clock(episode.end_at, now=snapshot.now)}, step {q.count(episode.end_step)}",
                q.rate(episode.rate),
                q.rate(episode.peak),
                escape(episode.cause),
                escape(evidence_words(episode.evidence, episode.device)) or q.UNKNOWN,
            ],
        )
        for episode in episodes[:MAX_EPISODES]
    ]
    more = len(episodes) - MAX_EPISODES
    note = f'<p class="muted">and {more} earlier</p>' if more > 0 else ""
    return f'<div style="margin-top:12px">{table(columns, rows, label="Episodes of this device")}{note}</div>'


def _short(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, int):
        return q.count(value)
    if isinstance(value, float):
        return q.number(value)
    if isinstance(value, list | tuple):
        shown = ", ".join(_short(entry) for entry in value[:5])
        return f"{shown}{', …' if len(value) > 5 else ''}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_short(entry)}" for name, entry in list(value.items())[:5]) + "}"
    return str(value)[:80]
