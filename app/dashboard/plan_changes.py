"""Two plans side by side: what moves, how much, and what it is worth. Pure drawing; shown by `picture`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from app.dashboard import quantities as q
from app.dashboard.facts import facts
from app.dashboard.plan_map import plan_map
from planner.decide import Move, decide, expected_steps, pause_s
from planner.diff import DeviceChange, PlanDiff, diff
from planner.errors import PlannerError
from planner.plan import Plan
from planner.spec import ModelProfile

if TYPE_CHECKING:
    from db.history import SwitchView

MAX_LINES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePreview:
    """What moving to a plan is expected to mean; None where nothing is known.

    Args:
        gain_s: seconds saved a step (negative: lost).
        payback_steps: steps until the pause is earned back.
    """

    num_devices: int
    moved_bytes: float | None
    pause_s: float | None
    gain_s: float | None
    payback_steps: int | None


def move_preview(
    changes: PlanDiff, switches: Sequence[SwitchView], *, stay_s: float | None, move_s: float | None
) -> MovePreview:
    """Weighs a move from what the run has measured of earlier ones."""
    history = [
        Move(num_bytes=switch.bytes_moved, pause_s=switch.pause_s) for switch in switches if switch.outcome == "applied"
    ]
    pause = pause_s(changes.moved_bytes, history) if changes.moved_bytes is not None else None
    gain = None
    if stay_s is not None and move_s is not None and math.isfinite(move_s):
        gain = stay_s - move_s
    payback = None
    if gain is not None and pause is not None and gain > 0:
        payback = 0 if math.isinf(gain) else math.ceil(pause / gain)
    return MovePreview(
        num_devices=len(changes.devices),
        moved_bytes=changes.moved_bytes,
        pause_s=pause,
        gain_s=gain,
        payback_steps=payback,
    )


def verdict(
    changes: PlanDiff,
    switches: Sequence[SwitchView],
    *,
    stay_s: float | None,
    move_s: float | None,
    num_done: int,
    num_steps: int,
) -> str:
    """What the controller would say to the move, as a sentence; empty where nothing can be predicted.

    Args:
        num_done, num_steps: steps of the run so far, and in all.
    """
    if stay_s is None or move_s is None or math.isnan(stay_s) or math.isnan(move_s):
        return ""
    history = [
        Move(num_bytes=switch.bytes_moved, pause_s=switch.pause_s) for switch in switches if switch.outcome == "applied"
    ]
    decision = decide(
        stay_s=stay_s,
        move_s=move_s,
        num_steps=expected_steps(num_remaining=num_steps - num_done, num_done=num_done, num_shifts=len(history)),
        num_bytes=changes.moved_bytes or 0.0,
        history=history,
    )
    kind = "good" if decision.is_worth else "bad"
    mark = "✓" if decision.is_worth else "!"
    reason = q.arrows(decision.reason)
    return (
        f'<p class="verdict {kind}"><span aria-hidden="true">{mark}</span> The controller would say '
        f"{escape(reason)}.</p>"
    )


def preview_facts(preview: MovePreview) -> str:
    """The preview as names and values, above the button that decides."""
    gain = preview.gain_s
    gain_words = "unknown" if gain is None else f"{q.seconds(gain)} a step" if gain > 0 else f"none ({q.seconds(gain)})"
    pays = "never" if gain is not None and gain <= 0 else "unknown"
    if preview.payback_steps is not None:
        pays = f"{q.count(preview.payback_steps)} step{'s' if preview.payback_steps != 1 else ''}"
    pairs = [
        ("Changes", f"{preview.num_devices} device{'s' if preview.num_devices != 1 else ''}"),
        ("Moves about", q.num_bytes(preview.moved_bytes)),
        ("Expected pause", q.seconds(preview.pause_s)),
        ("Gain", gain_words),
        ("Pays back after", pays),
    ]
    return facts(pairs)


def changes_of(old: Plan | None, new: Plan | None, profile: ModelProfile | None) -> PlanDiff | None:
    """The diff of two plans; None if one has no document or they are of different models."""
    if old is None or new is None:
        return None
    try:
        return diff(old, new, profile)
    except PlannerError:
        return None


def change_maps(
    old: Plan,
    new: Plan,
    changes: PlanDiff,
    *,
    names: tuple[str, str],
    rates: tuple[Mapping[int, float], Mapping[int, float]],
) -> tuple[str, str]:
    """Both maps: dashed outlines are layers that leave a device, solid ones arrive."""
    outlined = {change.device: change for change in changes.devices}
    return (
        _titled(names[0], "dashed: layers that leave", plan_map(old, rates=rates[0], outlined=outlined, side="old")),
        _titled(names[1], "outlined: layers that arrive", plan_map(new, rates=rates[1], outlined=outlined, side="new")),
    )


def change_lines(changes: PlanDiff) -> str:
    """Every change as a sentence."""
    if changes.is_empty:
        return '<p class="muted">The two plans are the same.</p>'
    batches = [line for line in changes.sentences() if not line.startswith(("device ", "moves "))]
    batches = [q.arrows(line) for line in batches]
    lines = [*batches, *(device_sentence(change) for change in changes.devices)]
    shown = "".join(f"<li>{escape(line)}</li>" for line in lines[:MAX_LINES])
    more = f"<li>and {len(lines) - MAX_LINES} more</li>" if len(lines) > MAX_LINES else ""
    moved = "" if changes.moved_bytes is None else f", about {q.num_bytes(changes.moved_bytes)} in all"
    head = f'<div class="head"><h3>Changes</h3><span class="muted">{len(changes.devices)} devices{moved}</span></div>'
    return f'{head}<ul class="lines">{shown}{more}</ul>'


def device_sentence(change: DeviceChange) -> str:
    """What happens to one device: `device 3 receives 2 layers (1.2 MB), gives away 5; pipeline 0 stage 1 -> 0`."""
    parts = []
    gained, lost = _count(change.gained), _count(change.lost)
    if gained:
        size = f" ({q.num_bytes(change.moved_bytes)})" if change.moved_bytes else ""
        parts.append(f"receives {gained} layer{'s' if gained != 1 else ''}{size}")
    if lost:
        parts.append(f"gives away {lost}" + ("" if gained else f" layer{'s' if lost != 1 else ''}"))
    old, new = change.old, change.new
    if old.role != new.role:
        parts.append(f"{old.role} → {new.role}")
    elif old.tp_degree != new.tp_degree:
        parts.append(f"TP {old.tp_degree} → {new.tp_degree}")
    if old.role == new.role and (old.pipeline_index, old.stage_index) != (new.pipeline_index, new.stage_index):
        parts.append(
            f"pipeline {old.pipeline_index} stage {old.stage_index} → "
            f"pipeline {new.pipeline_index} stage {new.stage_index}"
        )
    return f"device {change.device} {', '.join(parts) or 'changes its place in the group'}"


def _titled(name: str, note: str, drawing: str) -> str:
    return f'<div class="head"><h3>{escape(name)}</h3><span class="muted">{escape(note)}</span></div>{drawing}'


def _count(spans: Sequence[tuple[int, int]]) -> int:
    return sum(stop - first for first, stop in spans)
