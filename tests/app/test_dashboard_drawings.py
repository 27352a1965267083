"""Device grid, plan map, table, plan comparison: HTML in all the states a device can have."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

import pytest

from app.dashboard import device_grid, plan_changes, plan_map
from app.dashboard.device_grid import Cell, cell_state, grid, legend, strip
from app.dashboard.links import link
from app.dashboard.table import Column, Row, Sorting, table
from planner.plan import Pipeline, Plan, Stage, even_plan
from tests.app.seeded_run import absorbing_plan, config_of, profile_of, standby_plan

NOW = datetime(2026, 3, 2, 14, 0, tzinfo=UTC)


def initial_plan() -> Plan:
    return even_plan(
        ((0, 1, 2, 3), (4, 5, 6, 7)),
        num_layers=16,
        num_micro_batches=16,
        micro_batch_size=1,
        dp_degree=2,
        tp_degree=2,
        pp_degree=2,
    )


@pytest.mark.parametrize(
    ("role", "rate", "is_heard", "state", "why"),
    [
        ("active", 1.0, True, "active", "computes"),
        ("standby", 1.0, True, "standby", "probes itself"),
        ("failed", None, False, "failed", "the plan says so"),
        ("active", math.inf, True, "failed", "an infinite rate is a failed device"),
        ("active", math.nan, True, "silent", "NaN is never healthy"),
        ("active", None, False, "silent", "nothing was ever measured"),
        ("standby", 1.0, False, "silent", "an old measurement says nothing"),
    ],
)
def test_cell_state(role: str, rate: float | None, is_heard: bool, state: str, why: str) -> None:
    assert cell_state(role=role, rate=rate, is_heard=is_heard) == state, why


def test_grid_tells_states_by_more_than_colour() -> None:
    html = grid(
        [
            Cell(device=0, node=0, state="active", rate=1.0),
            Cell(device=1, node=0, state="active", rate=2.57, is_injected=True),
            Cell(device=2, node=0, state="standby", rate=1.0),
            Cell(device=3, node=1, state="failed", rate=math.inf),
            Cell(device=4, node=1, state="silent", rate=math.nan, age_s=12.4),
        ],
        selected=[1],
    )
    cells = re.findall(r"<button.*?</button>", html)
    assert len(cells) == 5
    assert "--fill" not in cells[0]
    assert "--fill:#f39a3d" in cells[1]
    assert 'aria-pressed="true"' in cells[1]
    assert "injected" in cells[1]
    assert "an injection is active" in cells[1]
    assert "cell standby" in cells[2]
    assert 'class="cross"' in cells[3]
    assert "failed" in cells[3]
    assert "12" in cells[4]
    assert "silent, nothing measured" in cells[4]
    assert html.count('class="node-name"') == 2


def test_grid_of_no_devices_says_so() -> None:
    assert "No devices" in grid([])


def test_large_grid_is_compact_but_complete() -> None:
    html = grid([Cell(device=device, node=device // 8, state="active", rate=1.0) for device in range(256)])
    assert "grid compact" in html
    assert html.count("<button") == 256
    assert "cell-rate" not in html


def test_plain_grid_has_no_buttons() -> None:
    assert "<button" not in grid([Cell(device=0, node=0, state="active", rate=1.0)], is_selectable=False)


def test_legend_names_every_mark() -> None:
    for word in ("standby", "failed", "silent", "12.5", "linear-gradient"):
        assert word in legend()


def test_strip_of_a_large_cluster_has_one_mark_a_node() -> None:
    nodes = [tuple(range(8 * node, 8 * node + 8)) for node in range(32)]
    html = strip({17: 5.42}, nodes)
    assert html.count("<i ") == 32
    assert "node 2, worst of 8" in html
    assert strip({0: 1.0}, [(0, 1)]).count("<i ") == 2


def test_plan_map_is_to_scale() -> None:
    html = plan_map.plan_map(absorbing_plan(), rates={3: 2.57})
    widths = [float(width) for width in re.findall(r'class="stage" style="width:([\d.]+)%', html)]
    assert widths == pytest.approx([100 * layers / 16 for layers in (3, 9, 4, 8, 8)], abs=0.01)
    assert html.count('class="member') == 8, "height is TP degree: one strip a device"
    assert "--fill:#f39a3d" in html
    assert "layers 0\u20132" in html
    assert "7 micro-batches" in html


def test_plan_map_shows_standby_and_failed_apart() -> None:
    html = plan_map.plan_map(standby_plan(), rates={})
    assert 'class="spare-device standby" data-pick="3"' in html
    assert 'class="spare-device failed" data-pick="5"' in html


def test_busy_shares_come_from_the_profile() -> None:
    profile = profile_of(config_of("x"))
    busy = plan_map.busy_shares(absorbing_plan(), profile, {3: 2.57})
    assert busy is not None
    assert set(busy) == {(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)}
    assert all(0 < share <= 1 for share in busy.values())
    assert plan_map.busy_shares(absorbing_plan(), None, {}) is None
    assert plan_map.busy_shares(absorbing_plan(), profile, {3: math.inf}) is None
    large = Plan(num_layers=16, micro_batch_size=4, pipelines=absorbing_plan().pipelines)
    assert plan_map.busy_shares(large, profile, {}) is None, "the profile knows no micro-batches of 4"


def test_place_of_a_device() -> None:
    assert plan_map.place(absorbing_plan(), 1) == ("active", "pipeline 0, stage 1, layers 3\u201311, TP 2")
    assert plan_map.place(standby_plan(), 3)[0] == "standby"
    assert plan_map.place(standby_plan(), 5)[0] == "failed"


def test_summary_counts() -> None:
    assert plan_map.summary(standby_plan()) == "2 pipelines, 6 devices, 16 micro-batches of 1, 1 standby, 1 failed"


def test_comparison_outlines_what_moves() -> None:
    profile = profile_of(config_of("x"))
    changes = plan_changes.changes_of(initial_plan(), absorbing_plan(), profile)
    assert changes is not None
    old, new = plan_changes.change_maps(
        initial_plan(), absorbing_plan(), changes, names=("v1", "v2"), rates=({}, {3: 2.57})
    )
    assert 'class="moved old"' in old
    assert 'class="moved new"' in new
    assert "receives 3 layers" in new
    lines = plan_changes.change_lines(changes)
    assert "pipeline 0: 8" in lines
    assert "device 3 receives 3 layers" in lines
    assert "4 devices" in lines


def test_comparison_of_a_plan_with_itself_or_with_nothing() -> None:
    same = plan_changes.changes_of(initial_plan(), initial_plan(), None)
    assert same is not None
    assert "the same" in plan_changes.change_lines(same)
    assert plan_changes.changes_of(initial_plan(), None, None) is None
    other = Plan(
        num_layers=8,
        micro_batch_size=1,
        pipelines=(Pipeline(num_micro_batches=4, stages=(Stage(devices=(0,), layers=(0, 8)),)),),
    )
    assert plan_changes.changes_of(initial_plan(), other, None) is None


@pytest.mark.parametrize(
    ("stay_s", "move_s", "gain_s", "payback", "why"),
    [
        (4.0, 2.4, 1.6, 1, "half a second of pause"),
        (2.4, 2.4, 0.0, None, "nothing to gain, never pays"),
        (math.inf, 2.4, math.inf, 0, "the present plan cannot run"),
        (None, 2.4, None, None, "nothing is known without a profile"),
        (4.0, math.inf, None, None, "the new plan cannot run"),
    ],
)
def test_preview(
    stay_s: float | None, move_s: float | None, gain_s: float | None, payback: int | None, why: str
) -> None:
    changes = plan_changes.changes_of(initial_plan(), absorbing_plan(), profile_of(config_of("x")))
    assert changes is not None
    preview = plan_changes.move_preview(changes, [], stay_s=stay_s, move_s=move_s)
    assert preview.gain_s == pytest.approx(gain_s) if gain_s is not None else preview.gain_s is None, why
    assert preview.payback_steps == payback, why
    assert "Expected pause" in plan_changes.preview_facts(preview)


def test_table_escapes_labels_and_marks_its_sorting() -> None:
    columns = [Column(title="Name <b>", sort="name"), Column(title="Step", is_number=True)]
    html = table(
        columns,
        [Row(key="7", cells=["a", "1"], is_picked=True)],
        label="Runs",
        is_tickable=True,
        sorting=Sorting(column="name"),
    )
    assert "Name &lt;b&gt;" in html
    assert 'aria-sort="descending"' in html
    assert 'data-pick="7" aria-pressed="true"' in html
    assert '<td class="number">1</td>' in html
    assert "Nothing here" in table(columns, [], label="Runs")


def test_sorting_toggles() -> None:
    assert Sorting(column="a").toggled("a") == Sorting(column="a", is_descending=False)
    assert Sorting(column="a", is_descending=False).toggled("b") == Sorting(column="b")


def test_links_are_real_addresses() -> None:
    html = link('plan "v3"', "plans", {"run": 7, "version": 3})
    assert 'href="plans?run=7&amp;version=3"' in html
    assert "plan &quot;v3&quot;" in html


def test_description_is_for_ears() -> None:
    cell = Cell(device=3, node=0, state="active", rate=2.57, place="pipeline 0")
    assert device_grid.description(cell) == "device 3, node 0: 2.57\u00d7 of healthy time · pipeline 0"
