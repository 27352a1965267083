"""Measures what control costs a healthy step, and how well the event model predicts random plans.

    python bench/overhead.py [--json] [--repetitions 6] [--steps 3]
    python bench/overhead.py --model [--json] [--plans 20] [--first 0] [--steps 5] [--straggling]

The first form compares, in one world of emulated devices, steps of the real trainer (uplink to an embedded
broker, step exchange, report) with the bare loop (same pipelines and optimizer), in turns. The second
trains under random valid plans and compares the median step with `planner.cost.plan_step_s`
of the profile that the same world has calibrated.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from db.broker import EmbeddedBroker
from db.messages import Desired, Injection
from db.run_config import RunConfig
from planner.cost import plan_step_s
from planner.plan import Plan, even_plan
from planner.spec import ModelProfile
from tests.engine.plans import random_plan
from tests.engine.world import ScriptedUplink, run_world

RATES = (2.57, 3.75, 5.42)
FAR = 10**6


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.add_argument("--model", action="store_true", help="compare random plans with the event model")
    parser.add_argument("--layer-s", type=float, default=None, help="emulated seconds of a layer")
    parser.add_argument("--steps", type=int, default=3, help="steps of a block, or of a plan")
    parser.add_argument("--repetitions", type=int, default=6, help="pairs of blocks")
    parser.add_argument("--plans", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="seed of the first plan")
    parser.add_argument("--straggling", action="store_true", help="one to three random stragglers in each plan")
    arguments = parser.parse_args()
    figures = _model(arguments) if arguments.model else _overhead(arguments)
    figures["machine"] = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:22} {value}" if not isinstance(value, list) else "\n".join(str(row) for row in value))
    return 0


def _config(layer_s: float | None) -> RunConfig:
    device = {} if layer_s is None else {"layer_s": layer_s}
    return RunConfig.model_validate({"name": "overhead", "train": {"num_steps": FAR}, "device": device})


def _first_plan(config: RunConfig) -> Plan:
    return even_plan(
        config.nodes,
        num_layers=config.model.num_layers,
        num_micro_batches=config.train.global_batch,
        micro_batch_size=1,
        dp_degree=config.parallel.dp,
        tp_degree=config.parallel.tp,
        pp_degree=config.parallel.pp,
    )


def _document(version: int, plan: Plan, rates: dict[int, float] | None = None) -> Desired:
    injections = tuple(Injection(id=device, device=device, rate=rate) for device, rate in (rates or {}).items())
    return Desired(run=1, version=version, plan_version=version, plan=plan.to_json(), injections=injections)


def _overhead(arguments: argparse.Namespace) -> dict[str, Any]:
    config = _config(arguments.layer_s)
    with tempfile.TemporaryDirectory() as home, EmbeddedBroker(home) as broker:
        url = broker.url
        ranks = run_world(config.num_devices, _overhead_rank, url, arguments)
    controlled, bare = ranks[0]["controlled"], ranks[0]["bare"]
    return {
        "controlled_step_s": statistics.median(controlled),
        "bare_step_s": statistics.median(bare),
        "overhead": statistics.median(controlled) / statistics.median(bare) - 1,
        "overhead_of_pairs": sorted(one / other - 1 for one, other in zip(controlled, bare, strict=True)),
        "cpu_s": sorted(rank["cpu_s"] for rank in ranks),
    }


def _overhead_rank(rank: int, url: str, arguments: argparse.Namespace) -> dict[str, Any]:
    import torch.distributed as dist

    from engine.bus_uplink import BusUplink
    from engine.trainer import Trainer

    config = _config(arguments.layer_s)
    uplink = BusUplink(lambda: url, 1) if rank == 0 else None
    trainer = Trainer(config, uplink)
    first = _document(1, _first_plan(config))
    trainer._start(first, Plan.from_json(first.plan))
    num_tokens = config.train.global_batch * config.model.seq_len

    def controlled() -> None:
        trainer._obey(0)
        trainer._step()

    def bare() -> None:
        trainer._runner.run_step(trainer.step * config.train.global_batch, num_tokens, trainer._optimizer.sync)
        trainer._optimizer.step(config.train.learning_rate)
        trainer.step += 1

    seconds: dict[str, list[float]] = {"controlled": [], "bare": []}
    controlled()
    bare()
    cpu = time.process_time()
    for repetition in range(arguments.repetitions):
        pair = [("controlled", controlled), ("bare", bare)]
        for name, step in pair if repetition % 2 else reversed(pair):
            dist.barrier()
            started = time.perf_counter()
            for _ in range(arguments.steps):
                step()
            dist.barrier()
            seconds[name].append((time.perf_counter() - started) / arguments.steps)
    cpu = (time.process_time() - cpu) / (2 * arguments.repetitions * arguments.steps)
    if uplink:
        uplink.close()
    return {**seconds, "cpu_s": cpu}


def _model(arguments: argparse.Namespace) -> dict[str, Any]:
    config = _config(arguments.layer_s or 0.02)
    seeds = range(arguments.first, arguments.first + arguments.plans)
    plans = [_random_plan(config, seed) for seed in seeds]
    rates = [_random_rates(config, seed) if arguments.straggling else {} for seed in seeds]
    measured = run_world(config.num_devices, _model_rank, config.device.layer_s, plans, rates, arguments.steps)[0]
    profile = ModelProfile.from_json(measured["profile"])
    rows = []
    for seed, plan, slow, steps in zip(seeds, plans, rates, measured["steps"], strict=True):
        predicted, median = plan_step_s(plan, profile, slow), statistics.median(steps[1:])
        rows.append(
            {
                "seed": seed,
                "predicted_s": round(predicted, 4),
                "measured_s": round(median, 4),
                "error": round(predicted / median - 1, 4),
                "plan": _brief(plan),
                "rates": slow,
            }
        )
    errors = sorted(abs(row["error"]) for row in rows)
    return {
        "plans": rows,
        "median_error": statistics.median(errors),
        "worst_error": errors[-1],
        "profile": measured["profile"],
    }


def _model_rank(rank: int, layer_s: float, plans: list[Plan], rates: list[dict[int, float]], num_steps: int) -> Any:
    from engine.trainer import Trainer

    uplink = ScriptedUplink({}) if rank == 0 else None
    trainer = Trainer(_config(layer_s), uplink)
    documents = [
        _document(number, plan, slow) for number, (plan, slow) in enumerate(zip(plans, rates, strict=True), start=1)
    ]
    trainer._start(documents[0], plans[0])
    seconds: list[list[float]] = []
    for document in documents:
        trainer._apply_document(document)
        first = len(uplink.sent) if uplink else 0
        for _ in range(num_steps + 1):
            trainer._step()
        if uplink:
            seconds.append([message.step_s for message in uplink.sent[first:] if message.kind == "step"])
    profile = trainer._profile.to_json() if trainer._profile else {}
    return {"steps": seconds, "profile": profile}


def _random_plan(config: RunConfig, seed: int) -> Plan:
    return random_plan(
        seed,
        nodes=config.nodes,
        num_layers=config.model.num_layers,
        num_micro_batches=config.train.global_batch,
        max_tp=config.parallel.max_tp,
    )


def _random_rates(config: RunConfig, seed: int) -> dict[int, float]:
    rng = random.Random(seed)
    return {device: rng.choice(RATES) for device in rng.sample(range(config.num_devices), rng.randint(1, 3))}


def _brief(plan: Plan) -> str:
    return " | ".join(
        f"{pipeline.num_micro_batches}x["
        + " ".join(f"tp{stage.tp_degree}:{stage.num_layers}" for stage in pipeline.stages)
        + "]"
        for pipeline in plan.pipelines
    )


if __name__ == "__main__":
    sys.exit(main())
