"""All devices of a run over its steps as a strip: a row a device, the highest rate of a block as colour.

Pure drawing; part of the figure that `rate_chart` makes. The colours are those of `rate_colors`, on
the same fixed scale. A failure is a cross, a block in which nothing was measured is a hole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from app.dashboard import quantities as q
from app.dashboard import rate_colors
from app.dashboard.palette import Palette
from app.dashboard.rate_lines import Place
from db.rates import RateBlock

MAX_CELLS = 24_000
MIN_COLUMNS, MAX_COLUMNS = 90, 240
MAX_CROSSES = 2_000
MAX_OUTLINED = 64
NAMED_DEVICES = 16
"""Up to so many devices each has its number at the axis; of more, the first of a node."""

_NUM_STOPS = 28


def num_columns(num_devices: int) -> int:
    """How many blocks a strip of so many devices has at most."""
    return max(MIN_COLUMNS, min(MAX_COLUMNS, MAX_CELLS // max(1, num_devices)))


def height_px(num_devices: int) -> int:
    """Rows of 13 pixels, until they have to share 300."""
    return max(26, min(300, 13 * num_devices))


def strip_traces(
    blocks: Sequence[RateBlock], num_devices: int, width: int, palette: Palette, place: Place, axis: str
) -> list[dict[str, Any]]:
    """The strip, and crosses where a device failed.

    Args:
        width: steps a block.
        axis: the figure's y axis of the strip.
    """
    if not blocks:
        return []
    low = min(block.first_step for block in blocks) // width
    high = max(block.last_step for block in blocks) // width
    cells: list[list[float | None]] = [[None] * (high - low + 1) for _ in range(num_devices)]
    crosses = []
    for block in blocks:
        if block.num_known and 0 <= block.device < num_devices:
            value = round(block.high, 2) if math.isfinite(block.high) else 2 * rate_colors.SCALE_TOP
            for column in range(block.first_step // width, block.last_step // width + 1):  # a minute may be longer
                known = cells[block.device][column - low]
                cells[block.device][column - low] = value if known is None else max(known, value)
            if math.isinf(block.high):
                crosses.append(block)
    edges = [round(place(column * width - 0.5), 1) for column in range(low, high + 2)]
    return [
        {
            "type": "heatmap",
            "x": edges,
            "y": list(range(num_devices)),
            "z": cells,
            "zmin": 1.0,
            "zmax": rate_colors.SCALE_TOP,
            "colorscale": color_scale(palette),
            "showscale": False,
            "hoverongaps": False,
            "meta": "pick",
            "hovertemplate": f"device %{{y}}: highest <b>%{{z:.2f}}{q.TIMES}</b>, click to select<extra></extra>",
            "xaxis": "x",
            "yaxis": axis,
        },
        *_crosses(crosses[:MAX_CROSSES], palette, place, axis),
    ]


def strip_axis(nodes: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The strip's y axis: first device on top, named by number or, if they are many, by node."""
    devices = [device for node in nodes for device in node]
    if len(devices) <= NAMED_DEVICES:
        places, names = devices, [str(device) for device in devices]
    else:
        every = max(1, math.ceil(len(nodes) / 16))
        places = [node[0] for node in nodes[::every] if node]
        names = [f"node {index}" for index in range(0, len(nodes), every) if nodes[index]]
    return {
        "tickmode": "array",
        "tickvals": places,
        "ticktext": names,
        "tickfont": {"size": 10.5},
        "range": [len(devices) - 0.5, -0.5],
        "showgrid": False,
    }


def outlines(devices: Sequence[int], palette: Palette, axis: str) -> list[dict[str, Any]]:
    """Marks between the names and the rows of chosen devices."""
    return [
        {
            "type": "rect",
            "xref": "paper",
            "yref": axis,
            "xsizemode": "pixel",
            "xanchor": 0,
            "x0": -6,
            "x1": -2,
            "y0": device - 0.5,
            "y1": device + 0.5,
            "fillcolor": palette.accent,
            "line": {"width": 0},
        }
        for device in devices[:MAX_OUTLINED]
    ]


def color_scale(palette: Palette) -> list[list[Any]]:
    """The fixed scale for Plotly, which interpolates between stops in rate, not in its logarithm."""
    top, healthy = rate_colors.SCALE_TOP, rate_colors.HEALTHY_BELOW
    ratio = top / healthy
    rates = [healthy * ratio ** (index / (_NUM_STOPS - 1)) for index in range(_NUM_STOPS)]
    stops = [[(rate - 1) / (top - 1), rate_colors.fill(max(rate, healthy))] for rate in rates]
    stops[-1][0] = 1.0
    return [[0.0, palette.line], [stops[0][0], palette.line], *stops]


def _crosses(failed: Sequence[RateBlock], palette: Palette, place: Place, axis: str) -> list[dict[str, Any]]:
    if not failed:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [place((block.first_step + block.last_step) / 2) for block in failed],
            "y": [block.device for block in failed],
            "marker": {"symbol": "x-thin", "size": 6, "line": {"width": 1.2, "color": palette.surface}},
            "hovertemplate": "device %{y} failed<extra></extra>",
            "xaxis": "x",
            "yaxis": axis,
        }
    ]
