"""The charts' figures: one time axis, gaps where nothing is known, marks that say who and why."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go
import pytest

from app.dashboard import charts
from app.dashboard.charts import EvaluationPoint, RatePoint, StepPoint
from app.dashboard.event_lanes import MAX_LINES, Mark
from app.dashboard.palette import LIGHT

BEGIN = datetime(2026, 3, 2, 14, 0, tzinfo=UTC)


def point(
    step: int, *, step_s: float = 1.4, loss: float = 2.0, phase: str = "train", bound_s: float | None = 1.3
) -> StepPoint:
    at = BEGIN + timedelta(seconds=2 * step)
    return StepPoint(step=step, at=at, step_s=step_s, loss=loss, plan_version=1, phase=phase, bound_s=bound_s)


def figure(points: list[StepPoint], marks: list[Mark] | None = None, **options: Any) -> dict[str, Any]:
    drawn = charts.run_chart(points, marks or [], palette=LIGHT, revision="7", **options)
    json.dumps(drawn, allow_nan=False)  # the browser's JSON knows no NaN
    go.Figure(data=drawn["data"], layout=drawn["layout"])  # Plotly knows every property
    return drawn


def test_rows_share_one_time_axis() -> None:
    drawn = figure([point(step) for step in range(5)], device=3, rates=[RatePoint(step=0, at=BEGIN, rate=1.0)])
    assert {trace["xaxis"] for trace in drawn["data"]} == {"x"}
    assert [name for name in drawn["layout"] if name.startswith("xaxis")] == ["xaxis"]
    domains = [drawn["layout"][name]["domain"] for name in ("yaxis", "yaxis2", "yaxis3", "yaxis4")]
    assert all(low > below_high for (low, _), (_, below_high) in pairwise(domains)), "no overlap"
    assert drawn["layout"]["uirevision"] == "7"


def test_evaluations_are_points_over_the_loss() -> None:
    evaluations = [
        EvaluationPoint(step=step, at=BEGIN + timedelta(seconds=2 * step), loss=loss)
        for step, loss in ((2, 2.1), (4, math.nan))
    ]
    drawn = figure([point(step) for step in range(5)], evaluations=evaluations)
    *_, points, line = drawn["data"]
    assert (points["mode"], points["y"], points["customdata"]) == ("markers", [2.1, None], [2, 4])
    assert points["yaxis"] == line["yaxis"] == "y3"
    assert "evaluation" in drawn["layout"]["annotations"][-1]["text"]
    assert "evaluation" not in figure([point(0)])["layout"]["annotations"][-1]["text"]
    assert figure([point(0), point(1)], evaluations=evaluations, has_loss=False)["data"][-1]["yaxis"] == "y2"


def test_odd_values_are_gaps() -> None:
    points = [point(0), point(1, step_s=math.nan, loss=math.nan), point(2, step_s=math.inf, bound_s=None), point(3)]
    drawn = figure(points)
    measured = next(trace for trace in drawn["data"] if trace.get("customdata"))
    assert measured["y"] == [1.4, None, None, 1.4]
    assert drawn["data"][-1]["y"][1] is None
    assert "NaN since step 1" in json.dumps(drawn["layout"]["annotations"])


@pytest.mark.parametrize("points", [[], [point(0)], [point(0, step_s=math.nan)]], ids=["none", "one", "only NaN"])
def test_few_points_still_draw(points: list[StepPoint]) -> None:
    drawn = figure(points)
    low, high = drawn["layout"]["yaxis2"]["range"]
    assert low == 0
    assert high > 0


def test_an_end_is_drawn_hollow() -> None:
    marks = [
        Mark(kind="injected", at=BEGIN, text="device 3 injected"),
        Mark(kind="injected", at=BEGIN + timedelta(seconds=4), text="injection on device 3 cleared", is_end=True),
    ]
    lane = next(trace for trace in figure([point(0), point(3)], marks)["data"] if trace["mode"] == "markers")
    assert lane["marker"]["symbol"] == ["triangle-down", "triangle-down-open"]


def test_a_slow_first_step_does_not_flatten_the_line() -> None:
    points = [point(0, step_s=90.0, phase="first"), *(point(step) for step in range(1, 20))]
    assert figure(points)["layout"]["yaxis2"]["range"][1] < 2


def test_marks_have_lanes_lines_and_words() -> None:
    marks = [
        Mark(kind="injected", at=BEGIN, text="device 3 injected"),
        Mark(kind="switched", at=BEGIN + timedelta(seconds=9), text="refused: out of memory", is_bad=True),
    ]
    drawn = figure([point(step) for step in range(9)], marks)
    lanes = {trace["text"][0]: trace["y"][0] for trace in drawn["data"] if trace.get("text")}
    assert lanes == {"device 3 injected": 0, "refused: out of memory": 3}
    assert len(drawn["layout"]["shapes"]) == 2
    assert drawn["layout"]["shapes"][1]["line"]["color"] == LIGHT.bad


def test_what_went_wrong_is_a_cross_and_a_restart_has_a_lane_of_its_own() -> None:
    def lanes(marks: list[Mark]) -> dict[str, list[str]]:
        drawn = figure([point(0), point(3)], marks)
        symbols = [trace["marker"]["symbol"] for trace in drawn["data"] if trace["mode"] == "markers"]
        return dict(zip(drawn["layout"]["yaxis"]["ticktext"], symbols, strict=True))

    plans = [Mark(kind="plan", at=BEGIN, text="ready"), Mark(kind="plan", at=BEGIN, text="rejected", is_bad=True)]
    usual = lanes(plans)
    assert usual == {"injected": [], "shift": [], "plan": ["circle-open", "x"], "switched": []}
    assert lanes([*plans, Mark(kind="restart", at=BEGIN, text="again", is_bad=True)]) == usual | {"restart": ["x"]}


def test_many_marks_keep_their_symbols_but_not_all_lines() -> None:
    marks = [Mark(kind="plan", at=BEGIN + timedelta(seconds=step), text=str(step)) for step in range(500)]
    drawn = figure([point(0)], marks)
    assert len(drawn["layout"]["shapes"]) == MAX_LINES
    assert max(len(trace["x"]) for trace in drawn["data"]) == 500


def test_infinite_rates_are_crosses_on_a_log_axis() -> None:
    rates = [RatePoint(step=step, at=BEGIN, rate=rate) for step, rate in enumerate((1.0, 2.57, math.inf, math.nan))]
    drawn = figure([point(0)], device=3, rates=rates)
    assert drawn["layout"]["yaxis3"]["type"] == "log"
    crosses = next(trace for trace in drawn["data"] if trace.get("marker", {}).get("symbol") == "x-thin")
    assert len(crosses["x"]) == 1


def test_without_loss_step_time_is_the_last_row() -> None:
    drawn = figure([point(0), point(1)], has_loss=False)
    assert "yaxis3" not in drawn["layout"]
    assert drawn["layout"]["xaxis"]["anchor"] == "y2"


def test_description_in_words() -> None:
    assert charts.description([], []) == "No steps yet."
    assert "from step 0 to 1" in charts.description([point(0), point(1)], [])
