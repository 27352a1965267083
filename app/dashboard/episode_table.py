"""The list of a run's episodes of straggling: filters, order, rows. Pure drawing; shown by `picture`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from app.dashboard import quantities as q
from app.dashboard.device_facts import evidence_words
from app.dashboard.device_grid import rate_style
from app.dashboard.downloads import json_text
from app.dashboard.links import link
from app.dashboard.rate_colors import HEALTHY_BELOW
from app.dashboard.straggler_address import View, around
from app.dashboard.table import Column, Row, Sorting, table

if TYPE_CHECKING:
    from db.episodes import EpisodeView
    from db.plans import PlanView

CAUSES = {
    "device": "This device is slow for equal work.",
    "stage": "Its share of the model is heavy by design.",
    "data": "Its micro-batches were heavy.",
    "link": "A link is slow, not the device.",
    "everyone": "Every device slowed down alike.",
    "unknown": "Not enough evidence for a cause.",
}

COLUMNS = (
    Column(title="Device", sort="device"),
    Column(title="Node", sort="node"),
    Column(title="Slow since", sort="since", tip="The first slow step; the link shows the steps around the episode."),
    Column(title="Until", sort="until"),
    Column(title="Lasted", is_number=True, sort="duration"),
    Column(title="Rate", is_number=True, sort="rate", tip="When the episode was opened."),
    Column(title="Peak", is_number=True, sort="peak", tip="The highest rate since."),
    Column(title="Cause", sort="cause"),
    Column(
        title="Absorbed by",
        sort="plan",
        tip="The first plan that was made for this slowness and became active while it lasted.",
    ),
    Column(title="Evidence", is_wide=True, tip="What the verdict rests on."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeEntry:
    """An episode with what the page knows beside it."""

    episode: EpisodeView
    node: int | None
    plan: int | None
    now: datetime

    @property
    def duration_s(self) -> float:
        return ((self.episode.end_at or self.now) - self.episode.start_at).total_seconds()

    @property
    def words(self) -> str:
        """The evidence as one sentence."""
        return evidence_words(self.episode.evidence, self.episode.device)


def entries_of(
    episodes: Sequence[EpisodeView], plans: Sequence[PlanView], node_of: Mapping[int, int], *, now: datetime
) -> list[EpisodeEntry]:
    """Episodes with node and absorbing plan, in the order given."""
    active = [plan for plan in plans if plan.active_at is not None]
    return [
        EpisodeEntry(episode=entry, node=node_of.get(entry.device), plan=absorbed_by(entry, active), now=now)
        for entry in episodes
    ]


def absorbed_by(episode: EpisodeView, plans: Sequence[PlanView]) -> int | None:
    """The version of the first plan made for the slow device that became active while it was slow."""
    fitting = [
        (plan.active_at, plan.version)
        for plan in plans
        if plan.active_at is not None
        and plan.created_at >= episode.start_at
        and plan.active_at >= episode.start_at
        and (episode.end_at is None or plan.active_at <= episode.end_at)
        and not plan.rates.get(episode.device, 1.0) < HEALTHY_BELOW
    ]
    return min(fitting)[1] if fitting else None


def chosen(entries: Sequence[EpisodeEntry], view: View) -> list[EpisodeEntry]:
    """What the filters leave, in the order of the view."""
    words = view.text.lower().split()
    kept = [
        entry
        for entry in entries
        if (view.state == "all" or entry.episode.is_open == (view.state == "open"))
        and (not view.cause or entry.episode.cause == view.cause)
        and (view.only is None or entry.episode.device == view.only)
        and all(word in _text(entry) for word in words)
    ]
    column = view.sort.lstrip("-")
    order = _ORDERS.get(column, _ORDERS["since"])
    return sorted(kept, key=order, reverse=view.sort.startswith("-"))


def sorting(view: View) -> Sorting:
    """The view's order as the table shows it."""
    return Sorting(column=view.sort.lstrip("-"), is_descending=view.sort.startswith("-"))


def episode_table(entries: Sequence[EpisodeEntry], view: View, *, empty: str, params: Mapping[str, str]) -> str:
    """The rows given, one page of them.

    Args:
        params: of the address, which a row's link keeps.
    """
    rows = [
        Row(key=str(entry.episode.id), cells=_cells(entry, params), is_picked=entry.episode.id == view.episode)
        for entry in entries
    ]
    return table(COLUMNS, rows, label="Episodes", sorting=sorting(view), empty=empty)


def records(entries: Sequence[EpisodeEntry]) -> list[dict[str, Any]]:
    """The same as plain values, for a download."""
    return [
        {
            "episode": entry.episode.id,
            "run": entry.episode.run,
            "device": entry.episode.device,
            "node": entry.node,
            "start_step": entry.episode.start_step,
            "start_at": entry.episode.start_at,
            "end_step": entry.episode.end_step,
            "end_at": entry.episode.end_at,
            "duration_s": entry.duration_s,
            "rate": entry.episode.rate,
            "peak": entry.episode.peak,
            "cause": entry.episode.cause,
            "absorbed_by_plan": entry.plan,
            "evidence": entry.episode.evidence,
        }
        for entry in entries
    ]


def words_of(episode: EpisodeView) -> str:
    """One episode in a line, for the chart."""
    end = "lasts" if episode.end_step is None else f"until step {episode.end_step:,}"
    return (
        f"device {episode.device}: {q.rate(episode.rate)} slow from step {episode.start_step:,}, {end}, "
        f"peak {q.rate(episode.peak)} (cause: {escape(episode.cause)})"
    )


def link_params(episode: EpisodeView, newest_step: int) -> dict[str, str]:
    """The address of the steps around an episode."""
    last = newest_step if episode.end_step is None else episode.end_step
    shown = around(episode.start_step, max(last, episode.start_step))
    if episode.end_step is None:  # it lasts, so the range goes on with the run
        shown = f"{shown.split('-')[0]}-"
    return {"devices": str(episode.device), "range": shown, "episode": str(episode.id)}


def _cells(entry: EpisodeEntry, params: Mapping[str, str]) -> list[str]:
    episode, now = entry.episode, entry.now
    target = dict(params) | {"run": str(episode.run)} | link_params(episode, episode.start_step)
    since = link(f"step {q.count(episode.start_step)}", "stragglers", target, title="Show these steps of this device")
    until = "now" if episode.is_open else f"step {q.count(episode.end_step)}"
    ended = "" if episode.is_open else f' <span class="muted">{q.clock(episode.end_at, now=now)}</span>'
    plan = f"v{entry.plan}" if entry.plan is not None else ""
    return [
        f"<b>{episode.device}</b>",
        q.UNKNOWN if entry.node is None else str(entry.node),
        f'{since} <span class="muted">{q.clock(episode.start_at, now=now)}</span>',
        f"{f'<b>{until}</b>' if episode.is_open else until}{ended}",
        q.duration(entry.duration_s),
        q.rate(episode.rate),
        f'<span class="rate-chip" style="{rate_style(episode.peak)}">{q.rate(episode.peak)}</span>',
        f'<span data-tip="{escape(CAUSES.get(episode.cause, ""), quote=True)}">{escape(episode.cause)}</span>',
        link(plan, "plans", {"run": episode.run, "version": entry.plan}) if plan else '<span class="muted">none</span>',
        _evidence(entry),
    ]


def _evidence(entry: EpisodeEntry) -> str:
    """A sentence that unfolds, and the raw document as a file."""
    episode = entry.episode
    if not episode.evidence:
        return '<span class="muted">none recorded</span>'
    text = json_text({"episode": episode.id, "device": episode.device, "evidence": episode.evidence})
    name = f"run-{episode.run}-episode-{episode.id}-evidence.json"
    lead, *rest = entry.words.split("; ")
    more = "".join(f"<li>{escape(part)}</li>" for part in rest)
    raw = f'<a download="{name}" href="data:application/json;charset=utf-8,{quote(text)}">raw JSON</a>'
    body = f"<ul>{more}<li>{raw}</li></ul>"
    return f'<details class="evidence" data-key="{episode.id}"><summary>{escape(lead)}</summary>{body}</details>'


def _text(entry: EpisodeEntry) -> str:
    episode = entry.episode
    plan = "" if entry.plan is None else f"plan v{entry.plan}"
    state = "open" if episode.is_open else "ended"
    steps = f"step {episode.start_step} {'' if episode.end_step is None else episode.end_step}"
    return (
        f"device {episode.device} node {entry.node} {episode.cause} {state} {plan} {steps} {entry.words} "
        f"{json.dumps(str(episode.evidence))}"
    ).lower()


def _last(value: float | None) -> float:
    return math.inf if value is None or math.isnan(value) else value


_ORDERS: Mapping[str, Callable[[EpisodeEntry], Any]] = {
    "device": lambda entry: (entry.episode.device, entry.episode.start_step),
    "node": lambda entry: (_last(entry.node), entry.episode.device),
    "since": lambda entry: (entry.episode.start_step, entry.episode.id),
    "until": lambda entry: (_last(entry.episode.end_step), entry.episode.id),
    "duration": lambda entry: (entry.duration_s, entry.episode.id),
    "rate": lambda entry: (_last(entry.episode.rate), entry.episode.id),
    "peak": lambda entry: (_last(entry.episode.peak), entry.episode.id),
    "cause": lambda entry: (entry.episode.cause, entry.episode.id),
    "plan": lambda entry: (entry.plan or 0, entry.episode.id),
}
