"""Quality and speed of the planner's search.

    python bench/planner.py --cases FILE --json     cases in the form of the paper's released planner, with its
                                                    restrictions; --free lets the search choose dp and TP too
    python bench/planner.py --scale [N ...]         1 % of the devices straggling, 64 to 16,384 devices
    python bench/planner.py --brute 300             small random problems against exhaustive search

Prints one JSON object a line with --json, else a table. Timing lives here and never in a test.
"""

from __future__ import annotations

# ruff: noqa: E402 (imports follow the change of sys.path)
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
if (
    sys.path and Path(sys.path[0]).resolve() == _HERE
):  # run as a program; it shares its name with the package it measures
    sys.path[0] = str(_HERE.parent)

import argparse
import json
import math
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from planner.kinds import Instance
from planner.placement import place
from planner.plan import Plan
from planner.presets import model, uniform_cluster
from planner.problem import problem_of
from planner.search import find_drafts
from planner.solve import solve
from planner.spec import ModelProfile, TrainSpec, check_rates
from planner.validate import violations

_MB = 1e6
_HEALTHY_BELOW = 1.2  # the reference counts a layer time below this as 1.0


class ReferenceInstance(Instance):
    """The reference's cost model: no pipeline bubble, and slightly slow groups count as healthy."""

    def layer_s(self, tp_degree: int, rate: float) -> float:
        return reference_layer_s(self.profile, tp_degree, rate)

    @property
    def has_bubble(self) -> bool:
        return False

    def pipeline_s(self, stage_seconds: Sequence[float], num_micro_batches: int) -> float:
        return max(stage_seconds) * num_micro_batches


def reference_layer_s(profile: ModelProfile, tp_degree: int, rate: float) -> float:
    seconds = profile.compute_s[1][tp_degree] * rate
    return 1.0 if seconds < _HEALTHY_BELOW else seconds


def reference_objective(plan: Plan, profile: ModelProfile, rates: Mapping[int, float]) -> float:
    """Max over pipelines of micro-batches * max over stages of (layer time * layers)."""
    return max(
        pipeline.num_micro_batches
        * max(
            stage.num_layers
            * reference_layer_s(profile, stage.tp_degree, max(rates.get(device, 1.0) for device in stage.devices))
            for stage in pipeline.stages
        )
        for pipeline in plan.pipelines
    )


def run_cases(path: Path, *, is_free: bool) -> Iterator[dict[str, Any]]:
    document = json.loads(path.read_text(encoding="utf-8"))
    for case in document["cases"]:
        yield run_case(document["profiles"][case["profile"]], case, is_free=is_free)


def run_case(numbers: Mapping[str, Any], case: Mapping[str, Any], *, is_free: bool) -> dict[str, Any]:
    """One case of the reference, solved and checked."""
    profile = reference_profile(numbers)
    cluster = uniform_cluster(
        numbers["gpus"] // numbers["gpus_per_node"], numbers["gpus_per_node"], memory_bytes=numbers["memory_mb"] * _MB
    )
    total = numbers["micro_batches_total"]
    dp_range = (1, min(numbers["gpus"], total)) if is_free else (numbers["dp"], numbers["dp"])
    train = TrainSpec(global_batch=total, micro_batch_sizes=(1,), dp_range=dp_range, max_tp=numbers["max_tp"])
    given = {int(device): math.inf if rate is None else float(rate) for device, rate in case["rates"].items()}
    started = time.perf_counter()
    rates = check_rates(given, cluster)
    problem = problem_of(cluster, profile, train, rates)
    live = [rate for rate in rates.values() if math.isfinite(rate)]
    instance = ReferenceInstance(profile, micro_batch_size=1, num_micro_batches=total, rates=live)
    problem = replace(problem, instances=(instance,))
    drafts = list(find_drafts(problem, limit_s=math.inf, seed=0, is_over=lambda: False, log=[]))
    plan = place(drafts[-1], cluster=cluster, rates=rates, current=None) if drafts else None
    seconds = time.perf_counter() - started
    objective = None
    if plan is not None:
        broken = violations(
            plan,
            cluster=cluster,
            num_layers=profile.num_layers,
            global_batch=total,
            max_tp=train.max_tp,
            profile=profile,
        )
        assert not broken, broken
        objective = reference_objective(plan, profile, rates)
        assert objective <= drafts[-1].step_s * (1 + 1e-9)
    return {
        "profile": case["profile"],
        "case": case["case"],
        "objective": objective,
        "seconds": round(seconds, 4),
        "reference_objective": case.get("reference_objective"),
        "reference_seconds": case.get("reference_seconds"),
        "capacity_bound": case.get("capacity_bound"),
        "plan": plan.to_json() if plan is not None else None,
    }


def reference_profile(numbers: Mapping[str, Any]) -> ModelProfile:
    times = {int(degree): float(value) for degree, value in numbers["tp_coefficient"].items()}
    table = sorted((int(number), float(value)) for number, value in numbers["layer_mb_by_inflight"].items())
    nothing = dict.fromkeys(times, 0.0)
    return ModelProfile(
        num_layers=numbers["num_layers"],
        compute_s={1: times},
        comm_s={1: nothing},
        forward_share=0.5,
        embed_s={1: nothing},
        head_s={1: nothing},
        send_s=0.0,
        sync_s=0.0,
        max_tp=numbers["max_tp"],
        layer_bytes={1: tuple(value * _MB for _, value in table)},
        first_extra_bytes=numbers["first_last_stage_mb"] * _MB,
        last_extra_bytes=numbers["first_last_stage_mb"] * _MB,
        reserve_bytes=numbers["reserve_mb"] * _MB,
    )


def run_scale(num_devices: int, *, seed: int = 1) -> dict[str, Any]:
    """1 % of the devices at random rates; the search chooses dp and TP."""
    draw = Random(seed)
    profile, _ = model("110b")
    table = [*profile.layer_bytes[1], *(profile.layer_bytes[1][-1] + 310 * _MB * step for step in range(1, 9))]
    times = profile.compute_s[1]
    profile = replace(
        profile,
        compute_s={1: {degree: 0.08 * value for degree, value in times.items()}},
        comm_s={1: dict.fromkeys(times, 0.02) | {1: 0.0}},
        head_s={1: {degree: 0.1 * value for degree, value in times.items()}},
        send_s=0.001,
        sync_s=0.5,
        layer_bytes={1: tuple(table)},
    )
    cluster = uniform_cluster(num_devices // 8, 8, memory_bytes=77_156 * _MB)
    slow = draw.sample(range(num_devices), max(1, num_devices // 100))
    rates = {device: draw.uniform(1.1, 12.5) for device in slow}
    train = TrainSpec(
        global_batch=num_devices, micro_batch_sizes=(1,), dp_range=(1, max(2, num_devices // 8)), max_tp=8
    )
    started = time.perf_counter()
    result = solve(cluster=cluster, profile=profile, train=train, rates=rates, clock=time.monotonic, time_limit_s=300)
    seconds = time.perf_counter() - started
    return {
        "devices": num_devices,
        "stragglers": len(slow),
        "status": result.status,
        "seconds": round(seconds, 3),
        "step_s": result.best.step_s if result.best else None,
        "bound_s": result.bound_s,
        "gap": round(result.gap, 5),
        "rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def run_brute(num_seeds: int) -> dict[str, Any]:
    """Small random problems: how many are solved to the optimum of exhaustive search."""
    from tests.planner.brute_force import best_step_s
    from tests.planner.cases import random_case

    num_equal, worst, seconds, slowest = 0, 0.0, 0.0, 0.0
    for seed in range(num_seeds):
        case = random_case(seed)
        started = time.perf_counter()
        result = solve(cluster=case.cluster, profile=case.profile, train=case.train, rates=case.rates)
        took = time.perf_counter() - started
        seconds, slowest = seconds + took, max(slowest, took)
        expected = best_step_s(case.cluster, case.profile, case.train, case.rates)
        found = result.best.step_s if result.best is not None else math.inf
        if found == expected or found <= expected * (1 + 1e-6):
            num_equal += 1
        else:
            worst = max(worst, found / expected - 1)
    return {
        "seeds": num_seeds,
        "equal": num_equal,
        "worst_excess": worst,
        "seconds": round(seconds, 2),
        "slowest_s": round(slowest, 3),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, metavar="FILE", help="cases of the reference planner")
    parser.add_argument("--free", action="store_true", help="let the search choose dp, TP and micro-batch size too")
    parser.add_argument("--scale", type=int, nargs="*", metavar="N", help="numbers of devices")
    parser.add_argument("--brute", type=int, metavar="SEEDS", help="small random problems")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args(arguments)
    if options.cases is None and options.scale is None and options.brute is None:
        parser.error("one of --cases, --scale and --brute is needed")
    rows: list[Iterator[dict[str, Any]]] = []
    if options.cases is not None:
        if not options.cases.is_file():
            parser.error(f"--cases must be a file, given {options.cases}")
        rows.append(run_cases(options.cases, is_free=options.free))
    if options.scale is not None:
        rows.append(run_scale(number) for number in options.scale or (64, 1_024, 8_192, 16_384))
    if options.brute is not None:
        rows.append(run_brute(number) for number in (options.brute,))
    for part in rows:
        for row in part:
            if options.json:
                print(json.dumps(row), flush=True)
            else:
                print("  ".join(f"{key}={value}" for key, value in row.items() if key != "plan"), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
