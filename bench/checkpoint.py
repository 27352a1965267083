"""Measures checkpoints: the pause, the whole save, its memory, the steps meanwhile, and the load.

    python bench/checkpoint.py [--model demo|200m] [--ranks 4] [--saves 3] [--json]

Real ranks on this machine; between two boundaries of a save they sleep, as ranks that wait for a GPU do.
Memory is the growth of the largest rank's peak over its resident memory before the first save.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

MODELS: dict[str, dict[str, Any]] = {
    "demo": {},
    "200m": {
        "num_layers": 12,
        "hidden_size": 1024,
        "num_heads": 16,
        "num_kv_heads": 8,
        "ffn_size": 2816,
        "vocab_size": 32_000,
        "seq_len": 128,
    },
}
STEP_S = 0.02


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="demo")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--saves", type=int, default=3)
    parser.add_argument("--folder", default=None, help="where to write (default: the temporary folder)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--world", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        _rank(arguments)
        return 0
    with tempfile.TemporaryDirectory(dir=arguments.folder) as world:
        command = [sys.executable, __file__, "--world", world, *_options(arguments)]
        ranks = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(arguments.ranks)]
        statuses = [process.wait() for process in ranks]
        if any(statuses):
            return 1
        figures = [json.loads((Path(world) / f"figures-{rank}").read_text()) for rank in range(arguments.ranks)]
    result = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "model": arguments.model,
        "ranks": arguments.ranks,
        **figures[0],
        "state_bytes_a_rank": max(row["state_bytes_a_rank"] for row in figures),
        "extra_peak_bytes_a_rank": max(row["extra_peak_bytes_a_rank"] for row in figures),
    }
    if arguments.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:28} {value}")
    return 0


def _options(arguments: argparse.Namespace) -> list[str]:
    return ["--model", arguments.model, "--ranks", str(arguments.ranks), "--saves", str(arguments.saves)]


def _rank(arguments: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    from db.run_config import RunConfig
    from engine.checkpoint.folder import complete
    from engine.checkpoint.saver import Saver
    from engine.checkpoint.start import load
    from engine.layout import layout
    from engine.parameters import parameters
    from engine.shard import Shard
    from planner.plan import even_plan

    torch.set_num_threads(1)
    rank, ranks, world = arguments.rank, arguments.ranks, Path(arguments.world)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{world / 'store'}", rank=rank, world_size=ranks)
    config = RunConfig.model_validate(
        {
            "model": MODELS[arguments.model],
            "cluster": {"num_nodes": 1, "devices_per_node": ranks},
            "parallel": {"dp": 1, "tp": 1, "pp": 1, "max_tp": min(4, ranks)},
        }
    )

    def shard(dp: int, pp: int) -> Shard:
        plan = even_plan(
            config.nodes,
            num_layers=config.model.num_layers,
            num_micro_batches=16,
            micro_batch_size=1,
            dp_degree=dp,
            tp_degree=ranks // dp // pp,
            pp_degree=pp,
        )
        spread = layout(plan, parameters(config.model), config.parallel.max_tp)
        return Shard(spread, rank, torch.float32, torch.float32)

    state = shard(dp=2, pp=ranks // 2)
    state.initialise(0)
    for store in state.states.values():
        for tensor in store.tensors:
            tensor.add_(1e-9)  # touches the memory, as a first step does
    before = _resident_bytes()
    saver = Saver(config, world / "checkpoints")
    saves, idle, busy = [], [], []
    for step in range(1, arguments.saves + 1):
        idle += [_step() for _ in range(20)]
        dist.barrier()
        assert saver.begin(state, step=step, request=0) is None
        while not (ended := saver.poll()):
            busy.append(_step())
        assert not ended.reason, ended.reason
        saves.append(ended)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    figures = {
        "parameters": sum(parameter.num_elements for parameter in parameters(config.model)),
        "bytes_saved": saves[-1].num_bytes,
        "pause_s": [round(saved.pause_s, 4) for saved in saves],
        "total_s": [round(saved.seconds, 3) for saved in saves],
        "step_s_idle": round(statistics.median(idle), 4),
        "step_s_while_writing": round(statistics.median(busy), 4),
        "state_bytes_a_rank": sum(x.nbytes for store in state.states.values() for x in store.tensors),
        "extra_peak_bytes_a_rank": max(0, peak - before),
    }
    del state
    other = shard(dp=1, pp=1)
    loads = []
    for _ in range(2):
        dist.barrier()
        started = time.perf_counter()
        load(other, config, complete(world / "checkpoints")[-1])
        loads.append(round(time.perf_counter() - started, 3))
    (world / f"figures-{rank}").write_text(json.dumps({**figures, "resume_s": loads}))
    dist.barrier()
    dist.destroy_process_group()


def _step() -> float:
    """A stand-in for a step: a rank that mostly waits, and one small collective at its end."""
    import torch
    import torch.distributed as dist

    started = time.perf_counter()
    time.sleep(STEP_S)
    dist.all_reduce(torch.zeros(16))
    return time.perf_counter() - started


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
