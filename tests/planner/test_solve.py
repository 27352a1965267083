"""The whole planner: against exhaustive search, its statuses, and what must hold for any input."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost import plan_step_s
from planner.errors import SpecError
from planner.plan import Plan, even_plan
from planner.presets import cluster, model, uniform_cluster
from planner.solve import SolveResult, solve
from planner.spec import ClusterSpec, ModelProfile, TrainSpec
from planner.validate import violations
from tests.planner.brute_force import best_step_s
from tests.planner.cases import SEARCHED, Case, random_case, tiny_profile

PROFILE, TRAIN = model("demo")
CLUSTER = cluster("demo")
START = even_plan(
    CLUSTER.nodes, num_layers=16, num_micro_batches=16, micro_batch_size=1, dp_degree=2, tp_degree=2, pp_degree=2
)
SITUATIONS: dict[str, dict[int, float]] = {
    "S0": {},
    "S1": {3: 2.57},
    "S2": {3: 5.42},
    "S3": {3: 2.57, 6: 5.42},
    "S5": dict.fromkeys(range(4), 2.57),
    "S6": {0: 3.75, 1: 12.53, 5: 2.57},
    "F1": {3: math.inf},
    "noise": {device: 1 + 0.004 * device for device in range(8)},
}


def _solve(case: Case, **changes: object) -> SolveResult:
    fields = {"cluster": case.cluster, "profile": case.profile, "train": case.train, "rates": case.rates}
    return solve(**(fields | changes))  # type: ignore[arg-type]


def _step_s(result: SolveResult) -> float:
    return result.best.step_s if result.best is not None else math.inf


@pytest.mark.parametrize("seed", range(60))
def test_equals_exhaustive_search(seed: int) -> None:
    case = random_case(seed, max_devices=6, max_layers=5, max_micro_batches=6)
    result = _solve(case)
    expected = best_step_s(case.cluster, case.profile, case.train, case.rates)
    assert _step_s(result) == pytest.approx(expected, rel=1e-6)
    assert (result.status == "infeasible") == math.isinf(expected)


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_situation_is_absorbed(name: str) -> None:
    rates = SITUATIONS[name]
    result = solve(cluster=CLUSTER, profile=PROFILE, train=TRAIN, rates=rates, current=START)
    assert result.status == ("improved" if rates else "no-better-plan"), "the demo starts with its best healthy plan"
    assert result.current_s == pytest.approx(plan_step_s(START, PROFILE, rates))
    assert result.gap < 0.25
    assert [ranked.step_s for ranked in result.plans] == sorted(ranked.step_s for ranked in result.plans)
    for ranked in result.plans:
        assert ranked.step_s == pytest.approx(plan_step_s(ranked.plan, PROFILE, rates))
        assert not violations(ranked.plan, cluster=CLUSTER, num_layers=16, global_batch=16, max_tp=4, profile=PROFILE)


def test_a_plan_may_be_below_the_capacity_bound() -> None:
    """Four layers divide by two devices, not by three: the third one's failure costs capacity that was not used."""
    result = solve(
        cluster=uniform_cluster(1, 3, memory_bytes=100.0),
        profile=tiny_profile(num_layers=4),
        train=TrainSpec(global_batch=6, micro_batch_sizes=(1,), dp_range=(1, 1), max_tp=1),
        rates={2: math.inf},
    )
    assert (result.healthy_s, _step_s(result), result.bound_s) == pytest.approx((12.0, 14.0, 18.0))
    assert result.gap == pytest.approx(14 / 18 - 1)


def test_equal_input_gives_an_equal_result() -> None:
    first, second = (
        solve(cluster=CLUSTER, profile=PROFILE, train=TRAIN, rates=SITUATIONS["S6"], current=START) for _ in range(2)
    )
    assert first == second
    assert json.loads(json.dumps(first.to_json(), allow_nan=False))["status"] == "improved"


def test_staying_is_a_result() -> None:
    best = solve(cluster=CLUSTER, profile=PROFILE, train=TRAIN, rates={}).best
    assert best is not None
    result = solve(cluster=CLUSTER, profile=PROFILE, train=TRAIN, rates={}, current=best.plan)
    assert result.status == "no-better-plan"
    assert result.best is not None
    assert result.best.is_current
    assert result.best.moved_bytes == 0


def test_the_reason_names_both_steps_to_the_millisecond() -> None:
    result = solve(cluster=CLUSTER, profile=PROFILE, train=TRAIN, rates=SITUATIONS["S1"], current=START)
    assert result.current_s is not None
    assert result.reason == f"predicted step {_step_s(result):.3f} s instead of {result.current_s:.3f} s"


def test_a_plan_that_cannot_run_any_more_takes_forever() -> None:
    result = solve(cluster=CLUSTER, profile=PROFILE, train=TRAIN, rates={0: math.inf}, current=START)
    assert result.current_s == math.inf
    assert result.status == "improved"
    assert json.loads(json.dumps(result.to_json(), allow_nan=False))["current_s"] == "Infinity"


def test_a_device_that_fails_while_standing_by_is_moved_to_failed() -> None:
    best = solve(cluster=CLUSTER, profile=PROFILE, train=TRAIN, rates={3: 12.53}).best
    assert best is not None
    assert best.plan.standby == (3,)
    result = solve(cluster=CLUSTER, profile=PROFILE, train=TRAIN, rates={3: math.inf}, current=best.plan)
    assert result.best is not None
    assert result.best.plan == replace(best.plan, standby=(), failed=(3,))
    assert result.best.moved_bytes == 0


def test_a_time_limit_returns_the_best_so_far() -> None:
    ticks = iter(range(10_000_000))
    result = solve(
        cluster=CLUSTER,
        profile=PROFILE,
        train=TRAIN,
        rates=SITUATIONS["S6"],
        current=START,
        time_limit_s=40.0,
        clock=lambda: float(next(ticks)),
    )
    assert result.status == "time-limited"
    assert result.best is not None
    assert result.best.step_s <= (result.current_s or 0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rates": dict.fromkeys(range(4), math.inf)}, "devices: at least 1 must be alive, given 0"),
        ({"profile": tiny_profile(memory_table=(100.0,) * 8)}, "memory: found no plan that fits; 500 % more"),
        ({"profile": tiny_profile(reserve_bytes=101.0)}, "memory: found no plan that fits"),
        (
            {"train": TrainSpec(global_batch=8, micro_batch_sizes=(1,), dp_range=(5, 8), max_tp=4)},
            "dp: at least 5 pipelines need 5 live devices, given 4",
        ),
        (
            {"train": TrainSpec(global_batch=2, micro_batch_sizes=(1,), dp_range=(3, 4), max_tp=4)},
            "dp: at least 3 pipelines need 3 micro-batches, given 2",
        ),
    ],
)
def test_infeasible_names_what_binds(changes: dict[str, object], expected: str) -> None:
    case = Case(
        cluster=uniform_cluster(1, 4, memory_bytes=100.0),
        profile=tiny_profile(),
        train=TrainSpec(global_batch=8, micro_batch_sizes=(1,), dp_range=(1, 4), max_tp=4),
        rates={},
    )
    result = _solve(case, **changes)
    assert result.status == "infeasible"
    assert result.plans == ()
    assert expected in result.reason
    json.dumps(result.to_json(), allow_nan=False)


def test_the_memory_relaxation_that_is_named_does_help() -> None:
    profile = tiny_profile(memory_table=(100.0,) * 8)
    train = TrainSpec(global_batch=8, micro_batch_sizes=(1,), dp_range=(1, 4), max_tp=4)
    for memory, status in ((595.0, "infeasible"), (606.0, "improved")):
        cluster_of_4 = uniform_cluster(1, 4, memory_bytes=memory)
        assert solve(cluster=cluster_of_4, profile=profile, train=train, rates={}).status == status


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({9: 2.0}, "device must be one of"),
        ({0: 0.0}, "must be positive"),
        ({0: -1.0}, "must be positive"),
        ({0: math.nan}, "must be positive"),
    ],
)
def test_bad_rates_are_refused(rates: dict[int, float], expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        solve(cluster=CLUSTER, profile=PROFILE, train=TRAIN, rates=rates)


def test_a_train_spec_that_the_profile_does_not_cover_is_refused() -> None:
    with pytest.raises(SpecError, match=r"the profile knows \[1\], given \[2\]"):
        solve(cluster=CLUSTER, profile=PROFILE, train=replace(TRAIN, micro_batch_sizes=(2,)), rates={})


@settings(max_examples=25, deadline=None, phases=SEARCHED)
@given(seed=st.integers(0, 10_000), device=st.integers(0, 7), factor=st.sampled_from([0.3, 0.7, 0.95]))
def test_a_faster_device_never_makes_the_result_worse(seed: int, device: int, factor: float) -> None:
    case = random_case(seed, max_devices=6, max_layers=5, max_micro_batches=6)
    device %= len(case.cluster.devices)
    before = case.rates.get(device, 1.0)
    rates = case.rates | {device: max(0.5, before * factor) if math.isfinite(before) else 3.0}
    assert _step_s(_solve(case, rates=rates)) <= _step_s(_solve(case)) * (1 + 1e-9)


@settings(max_examples=25, deadline=None, phases=SEARCHED)
@given(seed=st.integers(0, 10_000))
def test_a_device_more_never_makes_the_result_worse(seed: int) -> None:
    case = random_case(seed, max_devices=6, max_layers=5, max_micro_batches=6)
    new = len(case.cluster.devices)
    nodes = (*case.cluster.nodes[:-1], (*case.cluster.nodes[-1], new))
    larger = ClusterSpec(nodes=nodes, memory_bytes=dict(case.cluster.memory_bytes) | {new: 1e6})
    assert _step_s(_solve(case, cluster=larger)) <= _step_s(_solve(case)) * (1 + 1e-9)


@settings(max_examples=25, deadline=None, phases=SEARCHED)
@given(seed=st.integers(0, 10_000), factor=st.sampled_from([1e-3, 0.5, 7.0]))
def test_scaling_all_costs_scales_the_result(seed: int, factor: float) -> None:
    case = random_case(seed, max_devices=6, max_layers=5, max_micro_batches=6)
    scaled = _solve(case, profile=_scaled(case.profile, factor))
    assert _step_s(scaled) == pytest.approx(_step_s(_solve(case)) * factor, rel=1e-6)


@settings(max_examples=25, deadline=None, phases=SEARCHED)
@given(seed=st.integers(0, 10_000), order=st.randoms(use_true_random=False))
def test_relabelling_devices_changes_only_labels(seed: int, order: object) -> None:
    case = random_case(seed, max_devices=6, max_layers=5, max_micro_batches=6)
    labels = list(case.cluster.devices)
    order.shuffle(labels)  # type: ignore[attr-defined]
    new = dict(zip(case.cluster.devices, labels, strict=True))
    nodes = [tuple(sorted(new[device] for device in node)) for node in case.cluster.nodes]
    order.shuffle(nodes)  # type: ignore[attr-defined]
    relabelled = ClusterSpec(
        nodes=tuple(nodes), memory_bytes={new[device]: value for device, value in case.cluster.memory_bytes.items()}
    )
    rates = {new[device]: rate for device, rate in case.rates.items()}
    one, two = _solve(case), _solve(case, cluster=relabelled, rates=rates)
    assert _step_s(two) == pytest.approx(_step_s(one), rel=1e-9)
    assert _shape(one) == _shape(two)


def _shape(result: SolveResult) -> list[object]:
    """A plan without its labels."""
    plan: Plan | None = result.best.plan if result.best is not None else None
    if plan is None:
        return []
    return sorted(
        (pipeline.num_micro_batches, [(stage.tp_degree, stage.layers) for stage in pipeline.stages])
        for pipeline in plan.pipelines
    )


def _scaled(profile: ModelProfile, factor: float) -> ModelProfile:
    def table(rows: object) -> dict[int, dict[int, float]]:
        return {b: {n: value * factor for n, value in row.items()} for b, row in rows.items()}  # type: ignore[attr-defined]

    return replace(
        profile,
        compute_s=table(profile.compute_s),
        comm_s=table(profile.comm_s),
        embed_s=table(profile.embed_s),
        head_s=table(profile.head_s),
        send_s=profile.send_s * factor,
        sync_s=profile.sync_s * factor,
    )
