"""What moves between two plans, an arrow a link: from which device to which, how many layers, how many bytes.

Pure drawing; shown by `picture` beside the two maps. Devices keep the colour that they have in the grid. Many links
are drawn from node to node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from app.dashboard import quantities as q
from app.dashboard.device_grid import rate_style
from planner.errors import PlannerError
from planner.flows import Flow, flows
from planner.plan import Plan
from planner.spec import ModelProfile

MAX_ARROWS = 48
"""With more links than this, arrows go from node to node."""

NODES_SHOWN = 64


def flows_of(
    old: Plan | None, new: Plan | None, *, nodes: Sequence[Sequence[int]], profile: ModelProfile | None
) -> list[Flow]:
    """The transfers between two plans; none if they cannot be compared."""
    if old is None or new is None:
        return []
    try:
        return flows(old, new, nodes=nodes, profile=profile)
    except PlannerError:
        return []


def flow_arrows(moved: Sequence[Flow], *, rates: Mapping[int, float], nodes: Sequence[Sequence[int]]) -> str:
    """The arrows as HTML; thicker is more bytes, dashed crosses nodes."""
    if not moved:
        return '<p class="muted">No layer changes its device.</p>'
    head = f'<div class="head"><h3>What moves</h3><span class="muted">{_total(moved)}</span></div>'
    if len(moved) <= MAX_ARROWS:
        most = max(flow.num_layers for flow in moved)
        arrows = [_device_arrow(flow, most, rates) for flow in moved]
    else:
        arrows = _node_arrows(moved, nodes)
    return f'{head}<div class="arrows">{"".join(arrows)}</div>'


def records(moved: Sequence[Flow]) -> list[dict[str, Any]]:
    """The same as plain values, for a download."""
    return [flow.to_json() for flow in moved]


def _total(moved: Sequence[Flow]) -> str:
    parts = [f"{len(moved)} link{'s' if len(moved) != 1 else ''}"]
    for name, wanted in (("within nodes", True), ("between nodes", False), ("", None)):
        chosen = [flow for flow in moved if flow.is_within_node is wanted]
        if chosen:
            parts.append(f"{_amount(chosen)} {name}".strip())
    return " · ".join(parts)


def _amount(moved: Sequence[Flow]) -> str:
    if any(flow.num_bytes is None for flow in moved):
        return _layers(sum(flow.num_layers for flow in moved))
    return f"about {q.num_bytes(sum(flow.num_bytes or 0.0 for flow in moved))}"


def _device_arrow(flow: Flow, most: float, rates: Mapping[int, float]) -> str:
    size = "" if flow.num_bytes is None else f" · {q.num_bytes(flow.num_bytes)}"
    where = {True: "within the node", False: "between nodes", None: "nodes unknown"}[flow.is_within_node]
    tip = f"device {flow.source} sends device {flow.target} {_layers(flow.num_layers)} ({_spans(flow.layers)}), {where}"
    return _arrow(
        _chip(flow.source, rates),
        _chip(flow.target, rates),
        label=f"{_layers(flow.num_layers)}{size}",
        tip=tip,
        width=1.5 + 3.5 * flow.num_layers / most,
        is_dashed=flow.is_within_node is False,
    )


def _node_arrows(moved: Sequence[Flow], nodes: Sequence[Sequence[int]]) -> list[str]:
    node_of = {device: index for index, devices in enumerate(nodes) for device in devices}
    links: dict[tuple[int, int], list[Flow]] = {}
    for flow in moved:
        links.setdefault((node_of.get(flow.source, -1), node_of.get(flow.target, -1)), []).append(flow)
    ordered = sorted(links.items(), key=lambda entry: -sum(flow.num_layers for flow in entry[1]))
    most = sum(flow.num_layers for flow in ordered[0][1])
    drawn = []
    for (source, target), members in ordered[:NODES_SHOWN]:
        number = sum(flow.num_layers for flow in members)
        size = "" if members[0].num_bytes is None else f" · {q.num_bytes(sum(flow.num_bytes or 0 for flow in members))}"
        drawn.append(
            _arrow(
                f'<span class="arrow-end">node {source}</span>',
                f'<span class="arrow-end">node {target}</span>',
                label=f"{_layers(number)}{size}",
                tip=f"{len(members)} links between devices of node {source} and node {target}",
                width=1.5 + 3.5 * number / most,
                is_dashed=source != target,
            )
        )
    if len(ordered) > NODES_SHOWN:
        drawn.append(f'<p class="muted">and {len(ordered) - NODES_SHOWN} smaller ones (see the download)</p>')
    return drawn


def _arrow(source: str, target: str, *, label: str, tip: str, width: float, is_dashed: bool) -> str:
    kind = " crossing" if is_dashed else ""
    return (
        f'<div class="arrow{kind}" data-tip="{escape(tip, quote=True)}" tabindex="0" style="--width:{width:.1f}px">'
        f'{source}<span class="arrow-shaft"><i></i><u>{escape(label)}</u></span>{target}</div>'
    )


def _chip(device: int, rates: Mapping[int, float]) -> str:
    return f'<span class="arrow-end" style="{rate_style(rates.get(device, 1.0))}">{device}</span>'


def _layers(number: float) -> str:
    amount = q.count(round(number)) if float(number).is_integer() else q.number(number)
    return f"{amount} layer{'s' if number != 1 else ''}"


def _spans(layers: Sequence[int]) -> str:
    """`layers 3–5, 8`."""
    parts: list[list[int]] = []
    for layer in layers:
        if parts and layer == parts[-1][1] + 1:
            parts[-1][1] = layer
        else:
            parts.append([layer, layer])
    return "layers " + ", ".join(str(low) if low == high else f"{low}{q.DASH}{high}" for low, high in parts)
