"""What became of one plan: asked for, searched, weighed, decided, switched to, run. Pure drawing; shown by `picture`.

The sentences are the audit's own; episodes and steps are linked, so that a reader can go from a plan to what it
answered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

from app.dashboard import quantities as q
from app.dashboard.links import link

if TYPE_CHECKING:
    from db.audit import AuditView
    from db.episodes import EpisodeView
    from db.history import SwitchView
    from db.plans import PlanView

JUST_ENDED = timedelta(minutes=2)
"""An episode that ended within this time before a plan was asked for may be what it answers."""

MAX_EPISODES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStory:
    """What the store knows of one plan beside its row.

    Args:
        entries: of the audit, oldest first.
        switches: to this plan, oldest first.
        num_digests: tensors whose digests the last switch compared.
        steps: first and last step that ran under it, and their number; None if none did.
    """

    entries: Sequence[AuditView]
    switches: Sequence[SwitchView]
    num_digests: int
    steps: tuple[int, int, int] | None


def last_switches(switches: Sequence[SwitchView]) -> dict[int, SwitchView]:
    """The last switch to each version, applied ones first."""
    found: dict[int, SwitchView] = {}
    for switch in switches:
        if switch.outcome == "applied" or switch.plan_version not in found:
            found[switch.plan_version] = switch
    return found


def story_lines(plan: PlanView, story: PlanStory, *, now: datetime) -> str:
    """The plan's life, a line each: when, what, who, why. A reason that the line before has given is not repeated."""
    reasons = [_reason(entry) for entry in story.entries]
    lines = [
        _line(entry, reason if reason != before else "", now)
        for entry, (before, reason) in zip(story.entries, pairwise(["", *reasons]), strict=True)
    ]
    if not lines:
        lines = [f"<li><span>{q.clock(plan.created_at, now=now)}</span><span>asked for</span></li>"]
    return f'<div class="head"><h3>What happened</h3></div><ol class="story">{"".join(lines)}</ol>'


def switch_phases(switch: SwitchView | None, num_digests: int) -> str:
    """How long each phase of the switch took, to scale, and whether the digests agree; empty without a switch."""
    if switch is None:
        return ""
    if switch.outcome != "applied":
        return f"{_head('Switch', 'refused')}<p>Refused by the engine: {escape(switch.reason)}</p>"
    known = {name: seconds for name, seconds in switch.phases.items() if math.isfinite(seconds) and seconds >= 0}
    total = sum(known.values())
    bars = "".join(
        f'<span class="phase" style="flex-grow:{max(seconds / total, 0.02):.4f}" '
        f'data-tip="{escape(name, quote=True)}: {q.seconds(seconds)}" tabindex="0">'
        f"<b>{escape(name)}</b> {q.seconds(seconds)}</span>"
        for name, seconds in known.items()
        if total > 0
    )
    count = f" over {q.count(num_digests)} tensors" if num_digests else ""
    digests = f"digests equal{count}" if switch.digests_equal else f"digests differ{count}"
    verdict = "good" if switch.digests_equal else "bad"
    words = (
        f"before step {q.count(switch.step)}, from v{switch.from_version}, {q.num_bytes(switch.bytes_moved)} moved, "
        f"paused {q.seconds(switch.pause_s)}"
    )
    return (
        f'{_head("Switch", words)}<div class="phases">{bars}</div>'
        f'<p class="verdict {verdict}"><span aria-hidden="true">{"✓" if switch.digests_equal else "✕"}</span> '
        f"{digests} before and after</p>"
    )


def answered_episodes(plan: PlanView, episodes: Sequence[EpisodeView]) -> list[EpisodeView]:
    """The episodes that a plan answers: open when it was asked for, or just ended; the newest first."""
    return [
        episode
        for episode in episodes
        if episode.start_at <= plan.created_at
        and (episode.end_at is None or episode.end_at >= plan.created_at - JUST_ENDED)
    ]


def plan_links(plan: PlanView, story: PlanStory, episodes: Sequence[EpisodeView], *, now: datetime) -> str:
    """The episodes that it answers and the steps that it ran, with the way to them."""
    lines = []
    for episode in answered_episodes(plan, episodes)[:MAX_EPISODES]:
        name = link(f"device {episode.device}", "live", {"run": plan.run, "device": episode.device})
        until = "" if episode.end_at is None else f" until {q.clock(episode.end_at, now=now)}"
        since = f"slow since {q.clock(episode.start_at, now=now)} (step {q.count(episode.start_step)}){until}"
        lines.append(f"<li>{name} {since}, {q.rate(episode.rate)}, cause: {escape(episode.cause)}</li>")
    if not lines:
        lines.append('<li class="muted">no episode was open when it was asked for</li>')
    if story.steps is not None:
        first, last, number = story.steps
        ran = link(f"steps {q.count(first)}{q.DASH}{q.count(last)}", "live", {"run": plan.run})
        lines.append(f"<li>ran {ran} ({q.count(number)} recorded)</li>")
    else:
        lines.append('<li class="muted">no step has run under it</li>')
    return f'{_head("Episodes and steps", "")}<ul class="plain">{"".join(lines)}</ul>'


def _reason(entry: AuditView) -> str:
    """What the entry gives as its reasons, the one of who decided first."""
    reasons = (str(entry.detail.get("decided_reason") or ""), entry.reason)
    return q.arrows("; ".join(dict.fromkeys(reason for reason in reasons if reason)))


def _line(entry: AuditView, because: str, now: datetime) -> str:
    if entry.action == "plan.create":
        what = "asked for" if entry.result == "queued" else f"added as {entry.result}"
    elif entry.action == "plan.decision":
        what = {"move": "weighed: move", "stay": "weighed: stay", "waiting": "waits for a person"}.get(
            entry.result, entry.result
        )
    else:
        what = entry.result
    return (
        f"<li><span>{q.clock(entry.at, now=now)}</span><span><b>{escape(what)}</b> "
        f'<span class="muted">by {escape(entry.actor)}</span>'
        f"{f'<br>{escape(because)}' if because else ''}</span></li>"
    )


def _head(title: str, note: str) -> str:
    return f'<div class="head"><h3>{title}</h3><span class="muted">{note}</span></div>'
