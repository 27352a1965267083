"""Measures switches of plan: many in a row between random plans, on real ranks.

    python bench/migration.py [--switches 50] [--ranks 8] [--hidden 64] [--bucket-mib 16] [--json]

For each switch: bytes sent against the fewest possible (counted from the layouts, apart from the code that makes
transfers), the pause and its phases, the most bytes held beyond the larger of before and after, and what was
prepared ahead of the pause. For all ranks: threads, open files and memory (PSS) at the first and last tenth.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from db.run_config import RunConfig


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--switches", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=8, help="a multiple of four: nodes have four devices")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--bucket-mib", type=float, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object; else a summary")
    arguments = parser.parse_args()
    rows = _world(arguments)
    figures = _figures(arguments, rows)
    print(json.dumps(figures) if arguments.json else json.dumps(figures["summary"], indent=2))
    return 0 if figures["summary"]["all_as_it_should_be"] else 1


def _figures(arguments: argparse.Namespace, rows: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    first = rows[0]
    tenth = max(1, len(first) // 10)
    switches = [
        {
            **{name: first[number][name] for name in ("bytes_moved", "bytes_fewest", "num_rounds")},
            **{
                name: max(ranks[number][name] for ranks in rows)
                for name in ("pause_s", "ahead_s", "prepare_s", "migrate_s", "verify_s", "extra_bytes")
            },
            "is_equal": all(ranks[number]["is_equal"] for ranks in rows),
        }
        for number in range(len(first))
    ]
    flat = {
        f"{name}_{when}": [statistics.median(row[name] for row in ranks[part]) for ranks in rows]
        for name in ("threads", "files", "groups", "pss_kb")
        for when, part in (("first", slice(tenth, 2 * tenth)), ("last", slice(-tenth, None)))
    }
    summary = {
        "num_switches": len(switches),
        **{
            f"{name}_{kind.__name__}": round(kind(switch[name] for switch in switches), 4)
            for name in ("pause_s", "ahead_s", "prepare_s", "migrate_s", "verify_s")
            for kind in (statistics.median, max)
        },
        "bytes_moved": sum(switch["bytes_moved"] for switch in switches),
        "bytes_fewest": sum(switch["bytes_fewest"] for switch in switches),
        "num_rounds_max": max(switch["num_rounds"] for switch in switches),
        "extra_over_bucket_max": max(row["extra_bytes"] / row["bucket_bytes"] for ranks in rows for row in ranks),
        **{name: max(values) for name, values in flat.items()},
        "all_as_it_should_be": all(
            switch["is_equal"] and switch["bytes_moved"] == switch["bytes_fewest"] for switch in switches
        ),
    }
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    return {"machine": machine, "arguments": vars(arguments), "summary": summary, "switches": switches, "ranks": flat}


def _world(arguments: argparse.Namespace) -> list[list[dict[str, Any]]]:
    """Rows of all ranks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["engine.migration"])
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(arguments.ranks):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_rank, args=(theirs, rank, f"{folder}/store", arguments), daemon=True)
            process.start()
            theirs.close()
            pipes.append(mine)
            processes.append(process)
        rows = [pipe.recv() for pipe in pipes]
        for process in processes:
            process.join()
    return rows


def _rank(pipe: Any, rank: int, store: str, arguments: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=arguments.ranks)
    pipe.send(_switches(rank, arguments))
    dist.destroy_process_group()


def _switches(rank: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    import torch
    import torch.distributed as dist

    from engine.groups import Groups
    from engine.layout import layout
    from engine.migration import migrate
    from engine.parameters import parameters
    from engine.preparation import ItemBytes, prepare
    from engine.shard import Shard
    from tests.engine.plans import random_plan

    config = RunConfig.model_validate(
        {
            "model": {
                "num_layers": arguments.layers,
                "hidden_size": arguments.hidden,
                "ffn_size": 2 * arguments.hidden,
            },
            "cluster": {"num_nodes": arguments.ranks // 4},
        }
    )
    held = parameters(config.model)

    def spread(number: int) -> Any:
        plan = random_plan(
            arguments.seed + number,
            nodes=config.nodes,
            num_layers=arguments.layers,
            num_micro_batches=16,
            max_tp=4,
        )
        return layout(plan, held, 4)

    def node_of(device: int) -> int:
        return device // 4

    size = ItemBytes(weight=4, gradient=4, state=4)
    groups, shard = Groups(is_used=False), Shard(spread(0), rank, torch.float32, torch.float32)
    shard.initialise(0)
    rows = []
    for number in range(1, arguments.switches + 1):
        began = time.perf_counter()
        ready = prepare(shard.layout, spread(number), node_of, size, int(arguments.bucket_mib * (1 << 20)))
        ahead_s = time.perf_counter() - began
        dist.barrier()
        started = time.perf_counter()
        outcome = migrate(shard, lambda ready=ready: ready, groups)
        dist.barrier()
        pause_s = time.perf_counter() - started
        assert not outcome.reason, outcome.reason
        rows.append(
            {
                "pause_s": pause_s,
                "ahead_s": ahead_s,
                **{f"{name}_s": seconds for name, seconds in outcome.phases.items()},
                "bytes_moved": outcome.bytes_moved,
                "bytes_fewest": _fewest(shard.layout, outcome.shard.layout, 4),
                "num_rounds": outcome.num_rounds,
                "extra_bytes": outcome.extra_bytes,
                "bucket_bytes": ready.itinerary.bucket_bytes,
                "is_equal": outcome.digests_before == outcome.digests_after,
                "groups": len(groups),
                **_counts(),
            }
        )
        shard = outcome.shard
        del outcome, ready
    return rows


def _fewest(old: Any, new: Any, item_bytes: int) -> int:
    """Bytes that must be sent: elements of new holders that they do not hold, by intersection of intervals."""
    total = 0
    for before, after, copies in ((old.weights, new.weights, 1), (old.states, new.states, 3)):
        for device, spans in after.items():
            held: dict[int, list[tuple[int, int]]] = {}
            for span in before.get(device, ()):
                held.setdefault(span.parameter, []).append((span.start, span.stop))
            for span in spans:
                there = sum(
                    max(0, min(stop, span.stop) - max(start, span.start))
                    for start, stop in held.get(span.parameter, ())
                )
                total += copies * item_bytes * (span.stop - span.start - there)
    return total


def _counts() -> dict[str, int]:
    gc.collect()  # ranks are forked: the collector's first walk makes their pages their own, later ones do not
    rollup = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")),
        "pss_kb": next(int(row.split()[1]) for row in rollup if row.startswith("Pss:")),
    }


if __name__ == "__main__":
    sys.exit(main())
