"""The even plan of given degrees, where there is one. Pure."""

from __future__ import annotations

from planner.errors import PlanError
from planner.plan import Plan, even_plan
from planner.spec import ClusterSpec, ModelProfile
from planner.validate import violations


def fitting_plan(
    cluster: ClusterSpec,
    profile: ModelProfile,
    *,
    global_batch: int,
    micro_batch_size: int,
    max_tp: int,
    degrees: tuple[int, int, int],
) -> Plan | None:
    """The even plan of these DP, TP and PP degrees; None if it breaks a rule or does not fit in memory."""
    dp, tp, pp = degrees
    try:
        plan = even_plan(
            cluster.nodes,
            num_layers=profile.num_layers,
            num_micro_batches=global_batch // micro_batch_size,
            micro_batch_size=micro_batch_size,
            dp_degree=dp,
            tp_degree=tp,
            pp_degree=pp,
        )
    except PlanError:
        return None
    broken = violations(
        plan,
        cluster=cluster,
        num_layers=profile.num_layers,
        global_batch=global_batch,
        max_tp=max_tp,
        profile=profile,
    )
    return None if broken else plan
