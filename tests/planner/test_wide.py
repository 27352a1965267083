"""Clusters too large to try everything: valid, deterministic, close to the bound, and in time."""

from __future__ import annotations

import math
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import search
from planner.cost import plan_step_s
from planner.plan import Plan, even_plan
from planner.presets import cluster, model, uniform_cluster
from planner.solve import SolveResult, solve
from planner.spec import ClusterSpec, TrainSpec
from planner.validate import violations
from tests.planner.brute_force import best_step_s
from tests.planner.cases import SEARCHED, Case, random_case

PROFILE, TRAIN = model("demo")
CLUSTER = uniform_cluster(4, 4, memory_bytes=1e9)


def _solve(rates: dict[int, float], current: Plan | None = None, **changes: object) -> SolveResult:
    fields: dict[str, object] = {"cluster": CLUSTER, "profile": PROFILE, "train": TRAIN, "rates": rates}
    return solve(current=current, **(fields | changes))  # type: ignore[arg-type]


def _valid(result: SolveResult, cluster_spec: ClusterSpec, train: TrainSpec, rates: dict[int, float]) -> None:
    for ranked in result.plans:
        assert not violations(
            ranked.plan,
            cluster=cluster_spec,
            num_layers=PROFILE.num_layers,
            global_batch=train.global_batch,
            max_tp=train.max_tp,
            profile=PROFILE,
        )
        assert ranked.step_s == pytest.approx(plan_step_s(ranked.plan, PROFILE, rates))


RATES = st.dictionaries(st.integers(0, 15), st.sampled_from([1.1, 2.57, 5.42, math.inf]), max_size=4)


@settings(max_examples=6, deadline=None, phases=SEARCHED)
@given(rates=RATES)
def test_sixteen_devices(rates: dict[int, float]) -> None:
    result = _solve(rates)
    assert result.status == "improved"
    assert result.gap < 0.35, "16 micro-batches on 16 devices are lumpy"
    _valid(result, CLUSTER, TRAIN, rates)
    assert result == _solve(rates), "equal input, equal result"


def test_small_problems_come_out_nearly_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for large clusters, made to solve small ones, against exhaustive search."""
    monkeypatch.setattr(search, "EXHAUSTIVE_DEVICES", 0)
    excess = []
    for seed in range(40):
        case = random_case(seed, max_devices=6, max_layers=5, max_micro_batches=6)
        expected = best_step_s(case.cluster, case.profile, case.train, case.rates)
        found = _best_s(case)
        assert found >= expected * (1 - 1e-9)
        if math.isfinite(expected):
            excess.append(found / expected - 1)
    assert sum(value < 0.02 for value in excess) >= 0.85 * len(excess), sorted(excess)


def _best_s(case: Case) -> float:
    result = solve(cluster=case.cluster, profile=case.profile, train=case.train, rates=case.rates)
    return result.best.step_s if result.best is not None else math.inf


def test_the_current_plan_is_kept_or_beaten() -> None:
    start = even_plan(
        CLUSTER.nodes, num_layers=16, num_micro_batches=16, micro_batch_size=1, dp_degree=4, tp_degree=4, pp_degree=1
    )
    healthy = _solve({}, start)
    assert healthy.best is not None
    assert healthy.best.step_s <= plan_step_s(start, PROFILE, {})
    slow = _solve({5: 5.42}, start)
    assert slow.status == "improved"
    assert slow.current_s == pytest.approx(plan_step_s(start, PROFILE, {5: 5.42}))
    _valid(slow, CLUSTER, TRAIN, {5: 5.42})


def test_a_time_limit_returns_the_best_so_far() -> None:
    ticks = iter(range(10_000_000))
    start = even_plan(
        CLUSTER.nodes, num_layers=16, num_micro_batches=16, micro_batch_size=1, dp_degree=2, tp_degree=4, pp_degree=2
    )
    result = _solve({5: 5.42}, start, time_limit_s=3.0, clock=lambda: float(next(ticks)))
    assert result.status == "time-limited"
    assert result.best is not None
    assert result.best.step_s <= (result.current_s or 0.0)


def test_no_process_is_started_and_no_file_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The solver runs inside this process, so nothing outlives it if it is killed."""

    def refuse(*arguments: object, **_: object) -> None:
        raise AssertionError(f"started {arguments}")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr("tempfile.mkstemp", refuse)
    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    assert _solve({3: 2.57}).status == "improved"


def test_nodes_of_different_size_and_memory() -> None:
    mixed = ClusterSpec(
        nodes=((0, 1, 2, 3), (4, 5), (6, 7, 8, 9, 10, 11), (12,)),
        memory_bytes={device: 1e9 if device < 6 else 5e6 for device in range(13)},
    )
    result = _solve({1: 2.57, 7: math.inf}, cluster=mixed)
    assert result.status == "improved"
    _valid(result, mixed, TRAIN, {1: 2.57, 7: math.inf})


def test_several_micro_batch_sizes() -> None:
    def twice(rows: object) -> dict[int, dict[int, float]]:
        (row,) = rows.values()  # type: ignore[attr-defined]
        return {1: dict(row), 2: {degree: 1.7 * value for degree, value in row.items()}}

    profile = replace(
        PROFILE,
        compute_s=twice(PROFILE.compute_s),
        comm_s=twice(PROFILE.comm_s),
        embed_s=twice(PROFILE.embed_s),
        head_s=twice(PROFILE.head_s),
        layer_bytes={1: PROFILE.layer_bytes[1], 2: PROFILE.layer_bytes[1]},
    )
    train = TrainSpec(global_batch=64, micro_batch_sizes=(1, 2), dp_range=(1, 4), max_tp=4)
    result = _solve({3: 2.57}, profile=profile, train=train)
    assert result.best is not None
    assert result.best.plan.micro_batch_size == 2, "two at once take 1.7 times as long as one"


def test_a_straggler_in_every_node_of_64_devices() -> None:
    profile, train = model("70b")
    rates = {8 * node + node: 1.3 + 0.7 * node for node in range(8)}
    result = solve(cluster=cluster("64"), profile=profile, train=train, rates=rates)
    assert result.status == "improved"
    assert result.gap < 0.35, "at most 16 groups fit into the memory table's 8 stages, so singles stand by"


def test_too_little_memory_is_explained() -> None:
    profile, train = model("110b")
    small = uniform_cluster(4, 8, memory_bytes=30e9)
    result = solve(cluster=small, profile=profile, train=train, rates={})
    assert result.status == "infeasible"
    assert "memory" in result.reason


@pytest.mark.parametrize("name", ["32b", "70b", "110b"])
@pytest.mark.parametrize("num_pipelines", [1, 2, 8])
def test_a_straggler_or_a_failure_in_every_node(name: str, num_pipelines: int) -> None:
    """Standby devices everywhere, and pipelines that would like to be deeper than the memory table."""
    profile, train = model(name)
    train = replace(train, dp_range=(num_pipelines, num_pipelines))
    rates = {8 * node + node: [1.3, 2.57, 5.42, math.inf][node % 4] for node in range(8)}
    result = solve(cluster=cluster("64"), profile=profile, train=train, rates=rates)
    assert result.plans or (result.status == "infeasible" and "memory" in result.reason), result.reason
    for ranked in result.plans:
        assert not violations(
            ranked.plan,
            cluster=cluster("64"),
            num_layers=profile.num_layers,
            global_batch=train.global_batch,
            max_tp=train.max_tp,
            profile=profile,
        )
        assert max(len(pipeline.stages) for pipeline in ranked.plan.pipelines) <= len(profile.layer_bytes[1])
