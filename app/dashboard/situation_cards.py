"""The named situations as cards: what each one is, and which devices of this run it slows. Pure; shown by `picture`."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from app.dashboard import quantities as q
from app.dashboard.device_grid import strip
from app.situations import DESCRIPTIONS, rates
from db.errors import InputError


def situation_cards(nodes: Sequence[Sequence[int]], *, chosen: str = "") -> str:
    """One card a situation that has a straggler; one that this cluster is too small for says so."""
    return (
        '<div class="cards" role="group" aria-label="Situations">'
        + "".join(_card(name, text, nodes, name == chosen) for name, text in DESCRIPTIONS.items() if name != "S0")
        + "</div>"
    )


def rates_in_words(slow: dict[int, float]) -> str:
    """`device 3 2.57x, device 7 5.42x`; many of the same rate are named together."""
    by_rate: dict[float, list[int]] = {}
    for device, rate in slow.items():
        by_rate.setdefault(rate, []).append(device)
    return ", ".join(f"{q.devices(devices)} {q.rate(rate)}" for rate, devices in by_rate.items())


def _card(name: str, text: str, nodes: Sequence[Sequence[int]], is_chosen: bool) -> str:
    head = f"<b>{name}</b> <span>{escape(text)}</span>"
    try:
        slow = rates(name, nodes)
    except InputError as error:
        return f'<div class="card off" aria-disabled="true">{head}<span class="muted">{escape(str(error))}</span></div>'
    marks = strip({device: slow.get(device, 1.0) for node in nodes for device in node}, nodes)
    devices = f'{marks}<span class="muted">{escape(rates_in_words(slow))}</span>'
    return (
        f'<button type="button" class="card" data-pick="{name}" aria-pressed="{"true" if is_chosen else "false"}">'
        f'{head}<span class="card-devices">{devices}</span></button>'
    )
