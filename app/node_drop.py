"""What is done today about a slow device: leave its node out, and restart evenly on the others.

Pure. It gives that answer its best: of all numbers of nodes to leave out (the slowest first), none included,
and of all even plans on the rest, the one that the cost model calls fastest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from app.even_plans import fitting_plan
from db.run_config import RunConfig
from planner.cost import plan_step_s
from planner.plan import GROUP_SIZES, Plan
from planner.spec import ClusterSpec, ModelProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """The nodes that stay, and the even plan on them.

    Args:
        nodes: indices of the nodes.
        devices: their device ids; the restarted run counts them from 0 in this order.
        step_s: predicted seconds of a step.
    """

    nodes: tuple[int, ...]
    devices: tuple[int, ...]
    dp: int
    tp: int
    pp: int
    step_s: float

    def local(self, rates: Mapping[int, float]) -> dict[int, float]:
        """Rates by the restarted run's device ids, of the devices that stay."""
        return {index: rates[device] for index, device in enumerate(self.devices) if device in rates}


def remaining(config: RunConfig, profile: ModelProfile, rates: Mapping[int, float]) -> Remaining:
    """The fastest even plan with the slowest nodes left out.

    Args:
        config: of the run on all nodes; its own degrees stand for leaving none out.
        rates: of the slow devices.
    """
    slowest = {
        index: max(rates.get(device, 1.0) for device in node)
        for index, node in enumerate(config.nodes)
        if any(device in rates for device in node)
    }
    order = sorted(slowest, key=lambda index: -slowest[index])
    candidates = [
        found
        for number in range(min(len(order), len(config.nodes) - 1) + 1)
        for found in _even(
            config, profile, rates, tuple(index for index in range(len(config.nodes)) if index not in order[:number])
        )
    ]
    return min(candidates, key=lambda found: (found.step_s, len(found.nodes)))


def reduced(config: RunConfig, stays: Remaining, *, start_from: str) -> RunConfig:
    """The configuration of the restarted run.

    Args:
        start_from: checkpoint to go on from.
    """
    document = config.model_dump(mode="json")
    document["cluster"]["num_nodes"] = len(stays.nodes)
    document["parallel"] |= {"dp": stays.dp, "tp": stays.tp, "pp": stays.pp}
    document["checkpoint"]["start_from"] = start_from
    return RunConfig.model_validate(document)


def _even(
    config: RunConfig, profile: ModelProfile, rates: Mapping[int, float], nodes: tuple[int, ...]
) -> Iterator[Remaining]:
    devices = tuple(device for index in nodes for device in config.nodes[index])
    own = config.parallel
    is_whole = len(nodes) == len(config.nodes)
    for tp in GROUP_SIZES:
        for dp in range(1, own.max_dp + 1):
            pp, rest = divmod(len(devices), tp * dp)
            if rest or pp < 1 or tp > own.max_tp or (is_whole and (dp, tp, pp) != (own.dp, own.tp, own.pp)):
                continue
            plan = _plan(config, profile, nodes, devices, dp=dp, tp=tp, pp=pp)
            if plan is not None:
                step_s = plan_step_s(plan, profile, rates)
                yield Remaining(nodes=nodes, devices=devices, dp=dp, tp=tp, pp=pp, step_s=step_s)


def _plan(
    config: RunConfig,
    profile: ModelProfile,
    nodes: tuple[int, ...],
    devices: tuple[int, ...],
    *,
    dp: int,
    tp: int,
    pp: int,
) -> Plan | None:
    """The even plan, unless it breaks a rule, does not fit, or would give pipelines unequal work."""
    size = config.train.micro_batch_sizes[0]
    if config.train.global_batch // size % dp:
        return None
    kept = tuple(config.nodes[index] for index in nodes)
    return fitting_plan(
        ClusterSpec(nodes=kept, memory_bytes=dict.fromkeys(devices, config.cluster.memory_bytes)),
        profile,
        global_batch=config.train.global_batch,
        micro_batch_size=size,
        max_tp=config.parallel.max_tp,
        degrees=(dp, tp, pp),
    )
