"""The bench of situations: its configurations, its summary, and one situation with a scripted engine."""

from __future__ import annotations

import os
from typing import Any

import pytest

from app.local.trainer import first_plan
from bench.drift import drift_row
from bench.playing import STEADY_STEPS, busy_share
from bench.situations import configuration, measure
from bench.targets import steps_needed, summary
from planner.plan import Plan
from tests.app.local_world import scripted
from tests.app.story_rows import step


def _row(situation: str, variant: str, **fields: Any) -> dict[str, Any]:
    return {"devices": 8, "situation": situation, "variant": variant, **fields}


def _targets(rows: list[dict[str, Any]]) -> dict[str, tuple[float | None, bool | None]]:
    return {target["target"]: (target["value"], target["is_met"]) for target in summary(rows)["targets"]}


def test_targets_met_missed_and_missing() -> None:
    rows = [
        _row("S1", "a", step_s=4.0, efficiency=0.5),
        _row("S1", "b", step_s=2.0, efficiency=0.95),
        _row("S2", "a", step_s=6.0, efficiency=0.3),
        _row("S2", "b", step_s=2.0, efficiency=0.89),
        _row("S5", "b", step_s=2.0, efficiency=0.85),
        _row("drift", "a", total_s=200.0, steps_a_phase=40, last_step_s=[5.0]),
        _row("drift", "b", total_s=100.0, steps_a_phase=40, last_step_s=[2.0]),
        _row("drift", "c", total_s=149.0, steps_a_phase=40, last_step_s=[2.9]),
    ]
    targets = _targets(rows)
    assert targets["efficiency S1"] == (0.95, True)
    assert targets["efficiency S2"] == (0.89, False)
    assert targets["efficiency S3"] == (None, None)
    assert targets["efficiency S5"] == (0.85, True)
    assert targets["gain S1 over a"] == (2.0, True)
    assert targets["gain S2 over a"] == (3.0, False)
    assert targets["drift over a"] == (2.0, True)
    assert targets["drift over c"] == (1.49, False)
    assert summary(rows)["num_met"] == 4
    assert summary(rows)["num_missed"] == 3


def test_drifts_of_different_length_are_not_compared() -> None:
    rows = [
        _row("drift", "a", total_s=200.0, steps_a_phase=40, last_step_s=[5.0]),
        _row("drift", "b", total_s=50.0, steps_a_phase=20, last_step_s=[2.0]),
    ]
    assert _targets(rows)["drift over a"] == (None, None)


def test_sizes_are_summed_up_apart() -> None:
    rows = [_row("S1", "b", efficiency=0.95), _row("S1", "b", efficiency=0.5) | {"devices": 16}]
    found = [(target["devices"], target["is_met"]) for target in summary(rows)["targets"]]
    assert found[0] == (8, True)
    assert (16, False) in found


def test_a_drift_in_figures() -> None:
    steps = [step(number, 1.0 if number < 30 else 3.0) for number in range(60)]
    row = drift_row(10, [("S0", 0, 10.0), ("S1", 30, 31.5)], steps)
    assert row["total_s"] == 41.5
    assert row["last_step_s"] == [1.0, 3.0]
    assert row["steps_a_phase"] == 10
    assert drift_row(10, [("S0", 0, 10.0), ("S1", 55, None)], steps)["total_s"] is None


@pytest.mark.parametrize(
    ("under_s", "expected"),
    [
        ((40.0, 1.0), 20),  # 4 n >= 2 (20 + n): settling once costs 20
        ((50.0, 1.5), 40),  # 4 n >= 2 (20 + 1.5 n)
        ((20.0, 1.0), 1),  # nothing to settle
        ((40.0, 2.0), 1),  # settles in no time, twice as slow all along: the ratio is met anywhere
        ((60.0, 2.0), None),  # never
    ],
)
def test_how_long_a_drift_must_be(under_s: tuple[float, float], expected: int | None) -> None:
    """`under_s`: total seconds of 20 steps, seconds of a settled step."""
    over = {"total_s": 80.0, "last_step_s": [4.0], "steps_a_phase": 20}
    under = {"total_s": under_s[0], "last_step_s": [under_s[1]], "steps_a_phase": 20}
    assert steps_needed(over, under, 2.0) == expected


@pytest.mark.parametrize(("num_devices", "num_nodes"), [(8, 2), (16, 4)])
def test_the_run_of_each_size(num_devices: int, num_nodes: int) -> None:
    config = configuration(num_devices, mode="off", layer_s=0.5)
    assert (config.num_devices, len(config.nodes)) == (num_devices, num_nodes)
    assert config.control.mode == "off"
    assert config.device.layer_s == 0.5
    assert len(Plan.from_json(first_plan(config)).active) == num_devices


def test_busy_share() -> None:
    assert busy_share((10.0, 100.0), (40.0, 200.0)) == pytest.approx(0.3)
    assert busy_share(None, (40.0, 200.0)) is None
    assert busy_share((10.0, 100.0), (10.0, 100.0)) is None


@pytest.fixture
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MALLEUS_")]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("_clean")
def test_a_situation_from_start_to_end() -> None:
    """Real broker, worker and controller; a scripted engine that takes what the cost model says."""
    said: list[str] = []
    config = configuration(8, mode="automatic")
    row = measure(config, "S1", "b", drift_steps=10, say=said.append, engine=scripted())
    assert row["is_settled"] is True
    assert row["num_steps"] >= STEADY_STEPS
    assert row["step_s"] == pytest.approx(row["predicted_step_s"], rel=1e-3)
    assert row["straggling_step_s"] > row["step_s"] > row["healthy_step_s"] / row["first_over_best"]
    assert row["bound_s"] == pytest.approx(row["predicted_bound_s"], rel=1e-3)
    assert row["num_switches"] >= 1
    assert row["bytes_moved"] == 1000 * row["num_switches"]
    assert row["detect_steps"] >= config.control.patience_steps
    assert any(line.startswith("S1 from step ") for line in said)


@pytest.mark.usefixtures("_clean")
def test_the_drift_with_restarts() -> None:
    """Nodes are left out and come back, each time from a checkpoint; no step is missing."""
    config = configuration(8, mode="off")
    row = measure(config, "drift", "c", drift_steps=12, say=lambda line: None, engine=scripted())
    assert row["phases"] == ["S0", "S1", "S3", "S0", "S2"]
    assert row["num_restarts"] == 4
    assert row["restart_s"] > 0
    assert row["total_s"] == pytest.approx(sum(row["phase_s"]))
    assert row["phase_s"][1] > 12 * row["last_step_s"][1]  # the restart counts
