"""The pure parts of the Stragglers page: lists of devices, addresses, clocks, feeds, drawings."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go
import pytest

from app.dashboard import heat_strip, rate_colors, rate_lines
from app.dashboard.device_list import listed, parsed
from app.dashboard.episode_table import absorbed_by, link_params
from app.dashboard.palette import DARK, LIGHT
from app.dashboard.rate_chart import RateChart, Shade, SwitchMark, description, rate_chart
from app.dashboard.rate_feed import RateFeed
from app.dashboard.rate_range import data_label, line_width, strip_width
from app.dashboard.step_clock import PlanSpan, StepClock, plan_spans
from app.dashboard.straggler_address import around, clean_range, view_of
from db.rates import RateBlock, SampleSpan
from tests.app.story_rows import at, episode, plain, plan, step, switch


def block(device: int, first: int, last: int, high: float = 1.0, *, low: float = 1.0, known: int = 1) -> RateBlock:
    if not known:
        return RateBlock(device, first, last, 0, last - first + 1, math.nan, math.nan, math.nan)
    return RateBlock(device, first, last, last - first + 1, 0, low, (low + high) / 2, high)


@pytest.mark.parametrize(
    ("text", "devices", "back"),
    [
        ("", [], ""),
        ("3", [3], "3"),
        ("5, 3;3", [3, 5], "3,5"),
        ("0-2, 7", [0, 1, 2, 7], "0-2,7"),
        ("1, 2", [1, 2], "1,2"),
        ("2 \u2013 4", [2, 3, 4], "2-4"),
        ("all", list(range(8)), "all"),
        ("0-7", list(range(8)), "all"),
    ],
)
def test_lists_of_devices(text: str, devices: list[int], back: str) -> None:
    assert parsed(text, 8) == devices
    assert listed(devices, 8) == back
    assert parsed(listed(devices, 8), 8) == devices


@pytest.mark.parametrize("text", ["8", "x", "3-1", "-1", "1-8", "1 2", "99999999999"])
def test_what_is_no_list_of_devices_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected devices 0 to 7 as in 3, 5, 8-15, given"):
        parsed(text, 8)


@pytest.mark.parametrize(
    ("shown", "steps"),
    [
        ("100", (900, 999)),
        ("5000", (0, 999)),
        ("all", (0, 999)),
        ("10-20", (10, 20)),
        ("10-", (10, 999)),
        ("-20", (0, 20)),
        ("950-2000", (950, 999)),
        ("2000-3000", (999, 999)),
    ],
)
def test_ranges(shown: str, steps: tuple[int, int]) -> None:
    view = view_of({"range": shown}, 8)
    assert view.problems == ()
    assert view.steps(999) == steps


def test_a_wrong_address_has_defaults_and_says_why() -> None:
    view = view_of(
        {"devices": "12", "range": "9-3", "x": "week", "data": "best", "episode": "-4", "page": "0", "only": "99"}, 8
    )
    assert (view.devices, view.range, view.x, view.data, view.episode, view.page, view.only) == (
        (), "500", "step", "auto", None, 1, None,
    )  # fmt: skip
    assert [problem.split(":")[0] for problem in view.problems] == ["Devices", "Range"]
    assert clean_range(" 1,200 \u2013 1,500 ") == "1200-1500"
    assert around(5, 10) == "0-30"
    assert around(1000, 1999) == "800-2199"


def test_links_to_an_episode() -> None:
    assert link_params(episode(3, start=100, end=150), 900) == {"devices": "3", "range": "80-170", "episode": "3"}
    assert link_params(episode(3, start=100), 900)["range"].endswith("-"), "one that lasts goes on with the run"


@pytest.mark.parametrize(
    ("end", "rates", "active", "absorbed"),
    [
        (None, {3: 2.57}, 20.0, 2),
        (None, {3: 2.57}, None, None),  # never became active
        (None, {5: 2.57}, 20.0, None),  # made for another device
        (15.0, {3: 2.57}, 20.0, None),  # too late
        (30.0, {3: math.nan}, 20.0, 2),  # made for a silent device
        (30.0, {3: math.inf}, 20.0, 2),
    ],
)
def test_absorbed_by(end: float | None, rates: dict[int, float], active: float | None, absorbed: int | None) -> None:
    plans = [
        plan(1, created=0.0, active_at=at(1)),
        plan(2, rates=rates, created=12.0, active_at=None if active is None else at(active)),
        plan(3, rates=rates, created=25.0, active_at=at(90) if active is not None else None),
    ]
    assert absorbed_by(episode(3, start=10, end=end), plans) == absorbed


def test_the_clock_interpolates_and_ends() -> None:
    clock = StepClock([step(0, 1.0), step(10, 1.0), step(20, 1.0)])
    assert [clock.at(value) for value in (-5, 0, 2.5, 10, 20, 99)] == [at(s) for s in (0, 0, 2.5, 10, 20, 20)]


def test_plan_spans_find_the_step_of_a_switch_between_thinned_steps() -> None:
    steps = [step(0, 1.0), step(10, 1.0), step(20, 1.0, version=3), step(30, 1.0, version=1)]
    switches = [switch(2, 12), switch(3, 17), switch(4, 18, outcome="rejected")]
    assert plan_spans(steps, switches) == [
        PlanSpan(version=1, first_step=0, stop_step=12),
        PlanSpan(version=2, first_step=12, stop_step=17),
        PlanSpan(version=3, first_step=17, stop_step=30),
        PlanSpan(version=1, first_step=30, stop_step=31),
    ]
    assert plan_spans([], switches) == []


class Recorded:
    """A run's samples behind a feed, which counts what is asked."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.newest = 0
        self.asked: list[tuple[int, int]] = []

    def fetch(self, first: int, last: int) -> Sequence[RateBlock]:
        self.asked.append((first, last))
        stop = min(last, self.newest)
        return [
            block(0, low, min(low + self.width - 1, stop)) for low in range(first, stop + 1) if low % self.width == 0
        ]


@pytest.mark.parametrize("width", [1, 4, 16])
def test_a_feed_reads_newest_first_and_nothing_twice(width: int) -> None:
    run = Recorded(width)
    run.newest = 99
    feed = RateFeed(run.fetch, width=width, max_steps=32)
    missing = [feed.read(0, 99, newest_step=99, budget_s=0.0).missing for _ in range(5)]
    assert missing == sorted(missing, reverse=True)
    assert missing[0] > 0.5
    assert missing[-1] == 0
    complete = 100 // width * width
    read = [number for first, last in run.asked for number in range(first, last + 1) if number < complete]
    assert sorted(read) == list(range(complete)), "each complete block once"
    whole = feed.read(0, 99, newest_step=99, budget_s=0.0)
    assert [entry.first_step for entry in whole.blocks] == list(range(0, 100, width))
    run.newest, before = 103, len(run.asked)
    grown = feed.read(0, 103, newest_step=103, budget_s=1.0)
    assert grown.blocks[-1].last_step == 103
    assert all(first >= 100 // width * width for first, _ in run.asked[before:]), "only what is new"
    assert feed.read(5, 3, newest_step=103, budget_s=0.0).blocks == ()


def test_a_feed_answers_any_range_as_if_it_had_read_it_whole() -> None:
    run, chance = Recorded(8), random.Random(4)
    feed = RateFeed(run.fetch, width=8, max_steps=24)
    for newest in range(0, 400, 7):
        run.newest = newest
        first = chance.randint(0, newest)
        last = chance.randint(first, newest)
        found = feed.read(first, last, newest_step=newest, budget_s=10.0)
        assert found.missing == 0
        assert found.blocks[0].first_step == first // 8 * 8
        assert [entry.first_step for entry in found.blocks] == list(range(first // 8 * 8, last + 1, 8))
        assert found.blocks[-1].last_step == min(last // 8 * 8 + 7, newest)


def chart(**options: Any) -> RateChart:
    values: dict[str, Any] = {
        "run": 7, "steps": (0, 99), "clock": StepClock([step(number, 1.0) for number in range(0, 100, 3)]),
        "axis": "step", "lines": rate_lines.lines_of([block(3, 0, 63, 9.0), block(3, 64, 99), block(4, 0, 99)]),
        "width": 64, "strip": [block(3, 0, 63, 9.0), block(3, 64, 99), block(4, 0, 63, known=0)], "strip_width": 64,
        "nodes": [[0, 1, 2, 3], [4, 5, 6, 7]], "chosen": (3,),
    }  # fmt: skip
    return RateChart(**(values | options))


def drawn(wanted: RateChart) -> dict[str, Any]:
    figure = rate_chart(wanted, LIGHT, revision="7")
    json.dumps(figure, allow_nan=False)  # the browser's JSON knows no NaN
    go.Figure(data=figure["data"], layout=figure["layout"])  # Plotly knows every property
    return figure


@pytest.mark.parametrize("axis", ["step", "time"])
def test_the_rows_share_one_axis(axis: str) -> None:
    figure = drawn(
        chart(
            axis=axis,
            shades=[Shade(first_step=5, last_step=60, text="slow", is_marked=True)],
            plans=[PlanSpan(version=1, first_step=0, stop_step=40), PlanSpan(version=2, first_step=40, stop_step=100)],
            switches=[SwitchMark(step=40, text="switched"), SwitchMark(step=70, text="refused", is_bad=True)],
        )
    )
    assert {trace["xaxis"] for trace in figure["data"]} == {"x"}
    assert "range" not in figure["layout"]["xaxis"], "one that grows with the run would win over a zoom"
    domains = [figure["layout"][name]["domain"] for name in ("yaxis", "yaxis2", "yaxis3")]
    assert domains[0][0] > domains[1][1] > domains[1][0] > domains[2][1]
    shade = next(shape for shape in figure["layout"]["shapes"] if shape.get("opacity") == 0.2)
    place = chart(axis=axis).place
    assert (shade["x0"], shade["x1"]) == (place(4.5), place(60.5))


def test_thinned_lines_show_the_peak_and_both_ends() -> None:
    line = next(trace for trace in drawn(chart())["data"] if trace.get("name") == "device 3")
    assert max(line["y"]) == 9.0
    assert min(line["y"]) == 1.0
    assert "device 3: 1.00x   " in plain(rate_lines.legend(chart().lines, LIGHT))
    assert "1 below 1.05x" in plain(rate_lines.legend(chart().lines, LIGHT))
    assert "device 3 up to 9.00x" in plain(description(chart()))


def test_a_gap_interrupts_a_line() -> None:
    lines = rate_lines.lines_of([block(0, 0, 3), block(0, 4, 7, known=0), block(0, 8, 11), block(0, 90, 93)])
    line = rate_lines.line_traces(lines, LIGHT, float, 4)[0]
    assert [None if value is None else round(value) for value in line["y"]] == [1, None, 1, None, 1]


def test_many_devices_are_a_range_with_the_slowest() -> None:
    blocks = [block(device, 0, 7, 1.01 + device / 20 * (device > 30)) for device in range(40)]
    lines = rate_lines.lines_of(blocks)
    traces = rate_lines.line_traces(lines, DARK, float, 8)
    assert [trace["name"] for trace in traces if "name" in trace] == [f"device {device}" for device in range(32, 40)]
    assert "lowest to highest of 40" in rate_lines.legend(lines, DARK)
    assert traces[0]["y"] == [pytest.approx(2.96)]


def test_failures_and_silence_in_the_strip() -> None:
    blocks = [block(0, 0, 3, math.inf), block(0, 4, 7), block(1, 0, 3, known=0), block(1, 4, 7, 2.5)]
    heat, crosses = heat_strip.strip_traces(blocks, 2, 4, LIGHT, float, "y3")
    assert heat["z"] == [[2 * rate_colors.SCALE_TOP, 1.0], [None, 2.5]]
    assert heat["x"] == [-0.5, 3.5, 7.5]
    assert (crosses["x"], crosses["y"]) == ([1.5], [0])
    assert heat_strip.strip_traces([], 2, 4, LIGHT, float, "y3") == []


def test_a_minute_that_is_longer_than_a_block_fills_its_columns() -> None:
    heat = heat_strip.strip_traces([block(0, 0, 9, 5.0), block(0, 10, 19, 2.0)], 1, 4, LIGHT, float, "y3")[0]
    assert heat["z"] == [[5.0, 5.0, 5.0, 2.0, 2.0]], "a peak is not painted over"


@pytest.mark.parametrize("rate", [1.06, 1.3, 2.57, 3.75, 5.42, 8.0, 12.5])
def test_the_strip_has_the_colours_of_the_grid(rate: float) -> None:
    place = (rate - 1) / (rate_colors.SCALE_TOP - 1)
    stops = heat_strip.color_scale(LIGHT)
    assert [stop[0] for stop in stops] == sorted(stop[0] for stop in stops)
    low, high = next(pair for pair in pairwise(stops[2:]) if pair[0][0] <= place <= pair[1][0])
    share = (place - low[0]) / (high[0] - low[0]) if high[0] > low[0] else 0.0
    wanted = rate_colors.fill(rate)
    assert wanted is not None
    for index in (1, 3, 5):
        one, other = int(low[1][index : index + 2], 16), int(high[1][index : index + 2], 16)
        assert one + share * (other - one) == pytest.approx(int(wanted[index : index + 2], 16), abs=3)


@pytest.mark.parametrize("num_devices", [1, 8, 64, 256])
@pytest.mark.parametrize("num_steps", [1, 500, 7_813, 1_000_000])
def test_widths_bound_what_is_drawn(num_devices: int, num_steps: int) -> None:
    assert num_steps / strip_width(num_steps, num_devices) <= heat_strip.MAX_COLUMNS
    assert num_devices * num_steps / strip_width(num_steps, num_devices) <= 1.1 * heat_strip.MAX_CELLS
    lines = min(num_devices, rate_lines.MAX_LINES)
    assert 2 * lines * num_steps / line_width(num_steps, lines) <= 16_000


@pytest.mark.parametrize(
    ("data", "steps", "options", "words"),
    [
        ("auto", (500, 900), {}, "Raw samples, every train step."),
        ("auto", (500, 900), {"width": 16, "wide": 4}, "lowest and highest of each 16 train steps; the strip by 4"),
        ("auto", (0, 900), {}, "Per minute (rolled up) before step 400, then raw samples"),
        ("auto", (0, 300), {}, "Per minute (rolled up): lowest, median, highest"),
        ("raw", (0, 300), {}, "No raw samples here: they were rolled up"),
        ("raw", (0, 900), {}, "those before step 400 were rolled up (choose automatic)"),
        ("minute", (0, 900), {}, "Per minute, up to step 399"),
        ("minute", (500, 900), {}, "Nothing of this range is rolled up yet"),
        ("auto", (500, 900), {"num_blocks": 0}, "no samples of train steps here"),
        ("auto", (500, 900), {"missing": 0.75}, "Older steps are being read: 25 % is there."),
    ],
)
def test_the_label_says_what_is_shown(data: str, steps: tuple[int, int], options: dict[str, Any], words: str) -> None:
    span = SampleSpan(raw=(400, 900), rolled_up=(1, 399))
    values: dict[str, Any] = {"width": 1, "wide": 1, "missing": 0.0, "num_blocks": 5}
    assert words in plain(data_label(span, data, steps, **(values | options)))
