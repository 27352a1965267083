"""The alert line: one sentence a person would say about the run, with the links that matter.

Pure: state in, sentence out. There is always exactly one line (a calm one when nothing is wrong), so
that the page does not move when something happens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from app.dashboard import quantities as q
from app.dashboard.headline import Headline
from app.dashboard.rate_colors import HEALTHY_BELOW

if TYPE_CHECKING:
    from db.episodes import EpisodeView
    from db.plans import PlanView

Level = Literal["calm", "watch", "slow", "bad"]
UNDER_WAY = ("queued", "solving", "ready", "approved", "switching")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link inside the page: `label` opens `page` with `params`."""

    label: str
    page: str
    params: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """The line. `lead` is what is wrong (bold), `rest` what is done about it."""

    level: Level
    lead: str
    rest: str = ""
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the sentence is about: a run that is being heard.

    Args:
        rates: measured rates now, by device; NaN is unknown.
        episodes: the open ones.
        plans: newest first.
        patience_steps: how many steps a shift must last before it is believed.
        has_steps: whether a step has been reported.
    """

    run: int
    mode: str
    num_devices: int
    node_of: Mapping[int, int]
    rates: Mapping[int, float]
    episodes: Sequence[EpisodeView]
    plans: Sequence[PlanView]
    active_version: int | None
    figures: Headline
    last_loss: float | None
    patience_steps: int
    now: datetime
    has_steps: bool = True

    @property
    def slow(self) -> dict[int, float]:
        return {device: rate for device, rate in self.rates.items() if rate >= HEALTHY_BELOW}

    @property
    def silent(self) -> list[int]:
        return sorted(device for device, rate in self.rates.items() if math.isnan(rate))

    @property
    def confirmed(self) -> list[int]:
        """Devices with an open episode."""
        return sorted({episode.device for episode in self.episodes})

    @property
    def under_way(self) -> PlanView | None:
        """The newest plan that is not decided or not yet active."""
        return next((plan for plan in self.plans if plan.status in UNDER_WAY), None)


def alert(situation: Situation) -> Alert:
    """The sentence."""
    loss = situation.last_loss
    if loss is not None and not math.isfinite(loss):
        return Alert(
            level="bad",
            lead=f"The loss is {q.number(loss)}.",
            rest="Training goes on, but the model is lost unless an earlier state is restored.",
        )
    if situation.confirmed:
        return _straggling(situation)
    if situation.slow:
        return _suspected(situation)
    if situation.silent:
        names = q.devices(situation.silent).capitalize()
        links = (_history(situation.run, situation.silent[0]),)
        lead = f"{names} measured nothing in the last steps."
        return Alert(level="watch", lead=lead, rest="How fast it is is unknown.", links=links)
    plan = situation.under_way
    if plan is not None and situation.has_steps:
        rest = _progress(plan, situation.mode)
        return Alert(level="watch", lead=_calm(situation), rest=rest, links=(_plan_link(situation.run, plan),))
    return Alert(level="calm", lead=_calm(situation))


def _straggling(situation: Situation) -> Alert:
    confirmed, slow = situation.confirmed, situation.slow
    shown = {device: slow.get(device, math.nan) for device in confirmed}
    is_back = all(situation.rates.get(device, math.nan) < HEALTHY_BELOW for device in confirmed)
    if is_back:
        shown = {episode.device: episode.rate for episode in situation.episodes}
    since = q.clock(min(episode.start_at for episode in situation.episodes), now=situation.now)
    state = _state(confirmed, shown)
    lead = f"{_names(confirmed, situation.node_of).capitalize()} {state} since {since}{_causes(situation.episodes)}."
    worst = max(confirmed, key=lambda device: slow.get(device, 1.0))
    level: Level = "bad" if any(math.isinf(rate) for rate in shown.values()) else "slow"
    rest, plan = _answer(situation, is_back=is_back)
    links = [_history(situation.run, worst), *([_plan_link(situation.run, plan)] if plan is not None else [])]
    return Alert(level=level, lead=lead, rest=rest, links=tuple(links))


def _suspected(situation: Situation) -> Alert:
    slow = situation.slow
    devices = sorted(slow)
    verb = "measures" if len(devices) == 1 else "measure"
    worst = max(devices, key=lambda device: slow[device])
    return Alert(
        level="watch",
        lead=f"{_names(devices, situation.node_of).capitalize()} {verb} {_rates(devices, slow)}.",
        rest=f"It counts once it has lasted {situation.patience_steps} steps.",
        links=(_history(situation.run, worst),),
    )


def _answer(situation: Situation, *, is_back: bool) -> tuple[str, PlanView | None]:
    """What is being done about confirmed stragglers."""
    if is_back:
        return "It measures healthy speed again; that counts once it has lasted.", None
    plan = situation.under_way
    if plan is not None:
        return _progress(plan, situation.mode), plan
    figures, version = situation.figures, situation.active_version
    active = next((entry for entry in situation.plans if entry.version == version), None)
    if active is not None and all(not active.rates.get(device, 1.0) < HEALTHY_BELOW for device in situation.confirmed):
        return f"Plan v{version} absorbs it{_cost_against_first(figures)}.", active
    cost = f" It costs {_signed(figures.slowdown)} step time." if figures.slowdown is not None else ""
    if situation.mode == "off":
        return f"Re-planning is off, so the run keeps plan v{version}.{cost}", active
    newest = next((entry for entry in situation.plans if entry.version != version), None)
    if newest is not None and newest.status in ("rejected", "failed"):
        why = f": {q.arrows(newest.reason)}" if newest.reason else ""
        return f"Plan v{newest.version} was {_decided(newest)}{why}.{cost}", newest
    return f"No plan absorbs it yet.{cost}", None


def _progress(plan: PlanView, mode: str) -> str:
    gain = ""
    if plan.predicted_s is not None and plan.current_s is not None and math.isfinite(plan.predicted_s):
        gain = f": {q.seconds(plan.predicted_s)} a step instead of {q.seconds(plan.current_s)}"
    return {
        "queued": f"Plan v{plan.version} waits for a worker.",
        "solving": f"Plan v{plan.version} is being computed.",
        "ready": f"Plan v{plan.version} is ready{gain}"
        + ("; it waits for your approval." if mode == "manual" else "; the controller decides."),
        "approved": f"Plan v{plan.version} is approved{gain}; the job moves to it at the next step boundary.",
        "switching": f"The job is moving to plan v{plan.version}{gain}.",
    }[plan.status]


def _cost_against_first(figures: Headline) -> str:
    if figures.slowdown is None:
        return ""
    instead = figures.slowdown_of_first_plan
    text = f": {_signed(figures.slowdown)} step time"
    return text + (f" instead of {_signed(instead)}" if instead is not None and instead > figures.slowdown else "")


def _decided(plan: PlanView) -> str:
    if plan.status == "rejected":
        return "rejected"
    return "refused" if plan.document is not None else "not found"


def _calm(situation: Situation) -> str:
    if not situation.has_steps:
        return "No step has been reported yet."
    if not situation.rates:
        return "No device has measured its speed yet."
    if situation.num_devices == 1:
        return "The device runs at healthy speed."
    return f"All {situation.num_devices} devices run at healthy speed."


def _names(devices: Sequence[int], node_of: Mapping[int, int]) -> str:
    if len(devices) == 1:
        node = node_of.get(devices[0])
        return f"device {devices[0]}" + (f" (node {node})" if node is not None else "")
    return q.devices(list(devices))


def _state(devices: Sequence[int], rates: Mapping[int, float]) -> str:
    is_one = len(devices) == 1
    if all(math.isnan(rates[device]) for device in devices):
        return f"{'has' if is_one else 'have'} been silent"
    if all(math.isinf(rates[device]) for device in devices):
        return f"{'has' if is_one else 'have'} failed"
    heard = [device for device in devices if not math.isnan(rates[device])]
    return f"{'is' if is_one else 'are'} {_rates(heard, rates)} slow"


def _rates(devices: Sequence[int], rates: Mapping[int, float]) -> str:
    if len(devices) > 3:
        return f"up to {q.rate(max(rates[device] for device in devices))}"
    texts = [q.rate(rates[device]) for device in devices]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _causes(episodes: Sequence[EpisodeView]) -> str:
    """Why, where it is not the device itself."""
    words = {
        "data": "heavy micro-batches",
        "stage": "its share is heavy by design",
        "link": "a slow link",
        "everyone": "every device slowed down alike",
        "unknown": "not enough evidence",
    }
    found = sorted({words[episode.cause] for episode in episodes if episode.cause in words})
    return f" (cause: {', '.join(found)})" if found else ""


def _signed(share: float | None) -> str:
    return f"{'+' if (share or 0) >= 0 else ''}{q.percent(share)}"


def _history(run: int, device: int) -> Link:
    return Link(label="evidence", page="live", params={"run": str(run), "device": str(device)})


def _plan_link(run: int, plan: PlanView) -> Link:
    return Link(label=f"plan v{plan.version}", page="plans", params={"run": str(run), "version": str(plan.version)})
