"""Whether a plan that a person proposes could run in a run as it is now.

The rules are those of `planner.validate`; on top of them it may not count on a device that has failed, nor
write one off that is alive. Whether it is any good is the person's to judge, who has to approve it too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from db.errors import InputError
from db.runs import RunView
from planner.errors import PlannerError
from planner.plan import Plan
from planner.spec import ClusterSpec, ModelProfile
from planner.validate import violations


def checked_proposal(document: Mapping[str, Any], view: RunView, *, rates: Mapping[int, float], current: Plan) -> Plan:
    """The plan of a proposal.

    Args:
        rates: straggling rate of the run's devices as they are now.
        current: the active plan.

    Raises:
        InputError: no plan, or one that breaks a rule; every violation is named.
    """
    assert view.profile is not None, "checked by who calls"
    config = view.config
    try:
        plan = Plan.from_json(document)
        broken = violations(
            plan,
            cluster=ClusterSpec(
                nodes=tuple(tuple(node) for node in config.nodes),
                memory_bytes={device: config.cluster.memory_bytes for node in config.nodes for device in node},
            ),
            num_layers=config.model.num_layers,
            global_batch=config.train.global_batch,
            max_tp=config.parallel.max_tp,
            profile=ModelProfile.from_json(view.profile),
        )
    except PlannerError as error:
        raise InputError(str(error)) from None
    gone = {device for device, rate in rates.items() if math.isinf(rate)} | set(current.failed)
    lost = sorted(set(plan.active) & gone)
    if lost:
        broken.append(f"devices that have failed cannot be active, given {lost}")
    alive = sorted(set(plan.failed) - gone)
    if alive:
        broken.append(f"devices that are alive may stand by instead of being failed, given {alive}")
    if broken:
        raise InputError("plan refused: " + "; ".join(broken))
    return plan
