"""The device grid: every device of a run, by node, coloured by its straggling rate.

Pure drawing: cells in, HTML out (shown by `picture`, which adds tooltips and selection). State is
never told by colour alone: standby is an outline, failed is hatched with a cross, a silent device
shows "?" and how long it has been silent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from app.dashboard import quantities as q
from app.dashboard import rate_colors

CellState = Literal["active", "standby", "failed", "silent"]

COMPACT_ABOVE = 64
"""With more devices than this a cell shows its number only; rate and place are in the tooltip."""


STRIP_DEVICES = 32
STRIP_NODES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One device as the grid shows it.

    Args:
        rate: last measured straggling rate; None if it has never measured one.
        age_s: seconds since that measurement; None if there is none.
        place: where the plan has it ("pipeline 0, stage 1, layers 8-15"), for the tooltip.
        is_injected: an injection is open on it.
    """

    device: int
    node: int
    state: CellState
    rate: float | None = None
    age_s: float | None = None
    place: str = ""
    is_injected: bool = False


def cell_state(*, role: str, rate: float | None, is_heard: bool) -> CellState:
    """What a device is, from its role in the plan and its last measurement.

    Args:
        role: active, standby or failed, as the plan has it.
        is_heard: its last measurement is as recent as the run's own data.
    """
    if role == "failed" or (rate is not None and math.isinf(rate)):
        return "failed"
    if rate is None or math.isnan(rate) or not is_heard:
        return "silent"
    return "standby" if role == "standby" else "active"


def grid(cells: Sequence[Cell], *, selected: Sequence[int] = (), is_selectable: bool = True) -> str:
    """The grid as HTML, one row a node.

    Args:
        cells: in device order; node ids need not be consecutive.
        selected: devices drawn as selected.
        is_selectable: cells are buttons (else plain boxes).
    """
    if not cells:
        return '<p class="empty">No devices have introduced themselves yet.</p>'
    nodes: dict[int, list[Cell]] = {}
    for cell in cells:
        nodes.setdefault(cell.node, []).append(cell)
    is_compact = len(cells) > COMPACT_ABOVE
    rows = []
    for node, members in sorted(nodes.items()):
        drawn = "".join(_cell(cell, cell.device in selected, is_selectable, is_compact) for cell in members)
        rows.append(
            f'<div class="node"><span class="node-name">node {node}</span>'
            f'<div class="cells" style="--columns:{min(len(members), 8)}">{drawn}</div></div>'
        )
    kind = "grid compact" if is_compact else "grid"
    return f'<div class="{kind}" role="group" aria-label="Devices by node">{"".join(rows)}</div>'


def legend() -> str:
    """The colour scale with its ticks, and the marks that are not colour."""
    ticks = "".join(
        f'<span class="tick" style="left:{100 * rate_colors.position(rate):.1f}%">{rate:g}</span>'
        for rate in rate_colors.TICKS
    )
    healthy = 100 * rate_colors.position(rate_colors.HEALTHY_BELOW)
    return (
        '<div class="legend" aria-label="Colour scale of straggling rates, 1 is healthy">'
        '<span class="legend-name" data-tip="Straggling rate: compute time per unit of work over the calibrated '
        'reference. 1 is healthy; below 1.05 a device is drawn grey." tabindex="0">rate</span>'
        f'<span class="scale"><span class="bar" style="background:linear-gradient(90deg,{rate_colors.gradient()})">'
        f'<span class="bar-healthy" style="width:{healthy:.1f}%"></span></span>{ticks}</span>'
        '<span class="key"><i class="swatch standby"></i>standby</span>'
        f'<span class="key"><i class="swatch failed">{q.TIMES}</i>failed</span>'
        '<span class="key"><i class="swatch silent">?</i>silent</span></div>'
    )


def rate_style(rate: float | None) -> str:
    """CSS variables of a rate's fill and ink; empty where the scale has no colour."""
    color = rate_colors.fill(rate)
    return f"--fill:{color};--ink:{rate_colors.ink(color)}" if color else ""


def strip(rates: Mapping[int, float], nodes: Sequence[Sequence[int]]) -> str:
    """A run's devices as a strip of small marks, for a table cell; a large cluster has one mark a node (its worst)."""
    devices = [device for node in nodes for device in node]
    if len(devices) <= STRIP_DEVICES:
        marks = [_mark(rates.get(device), f"device {device}") for device in devices]
    else:
        marks = [
            _mark(
                max((rates.get(device, math.nan) for device in node), key=_badness),
                f"node {index}, worst of {len(node)}",
            )
            for index, node in enumerate(nodes[:STRIP_NODES])
        ]
    more = (
        f"<b>+{len(nodes) - STRIP_NODES} nodes</b>" if len(devices) > STRIP_DEVICES and len(nodes) > STRIP_NODES else ""
    )
    return f'<span class="strip">{"".join(marks)}{more}</span>'


def _mark(rate: float | None, name: str) -> str:
    kind = "silent" if rate is None or math.isnan(rate) else "failed" if math.isinf(rate) else ""
    words = {"silent": "silent", "failed": "failed"}.get(kind, q.rate(rate))
    return f'<i class="{kind}" style="{rate_style(rate)}" data-tip="{name}: {words}"></i>'


def _badness(rate: float) -> float:
    return 0.0 if math.isnan(rate) else rate


def _cell(cell: Cell, is_selected: bool, is_selectable: bool, is_compact: bool) -> str:
    style = rate_style(cell.rate) if cell.state in ("active", "standby") else ""
    slow = " slow" if style else ""
    classes = f"cell {cell.state}{slow}{' injected' if cell.is_injected else ''}"
    tip = escape(description(cell), quote=True)
    value = "" if is_compact else f'<span class="cell-rate">{_value(cell)}</span>'
    cross = _CROSS if cell.state == "failed" else ""
    body = f'<span class="cell-id">{cell.device}</span>{value}{cross}'
    if not is_selectable:
        return f'<span class="{classes}" style="{style}" data-tip="{tip}">{body}</span>'
    return (
        f'<button type="button" class="{classes}" style="{style}" data-pick="{cell.device}" data-tip="{tip}" '
        f'aria-pressed="{"true" if is_selected else "false"}" aria-label="{tip}">{body}</button>'
    )


_CROSS = (
    '<svg class="cross" viewBox="0 0 10 10" preserveAspectRatio="none" aria-hidden="true">'
    '<path d="M0 0L10 10M10 0L0 10"/></svg>'
)


def _value(cell: Cell) -> str:
    if cell.state == "failed":
        return "failed"
    if cell.state == "silent":
        return f"?&thinsp;{q.age(cell.age_s)}" if cell.age_s is not None else "?"
    return q.rate(cell.rate)


def description(cell: Cell) -> str:
    """A device in words, for tooltips and screen readers."""
    words = {
        "active": f"{q.rate(cell.rate)} of healthy time",
        "standby": f"stands by, probes itself at {q.rate(cell.rate)}",
        "failed": "failed",
        "silent": "silent, nothing measured"
        + (f", last heard {q.age(cell.age_s)} ago" if cell.age_s is not None else " yet"),
    }[cell.state]
    parts = [f"device {cell.device}, node {cell.node}: {words}"]
    if cell.place and cell.state != "failed":
        parts.append(cell.place)
    if cell.is_injected:
        parts.append("an injection is active")
    return " · ".join(parts)
