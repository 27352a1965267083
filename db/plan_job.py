"""The job that a planning worker is handed: plain documents, complete, kept with the plan for a replay.

`db.plans.claim` builds and stores it. The documents have the JSON forms of `planner.spec`; this
package only fills them from the run's configuration and does not interpret them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from db.models import PlanRow, RunRow
from db.run_config import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanJob:
    """Everything that solving needs, as it was when the plan was claimed: same job, same plan.

    Args:
        cluster, profile, train: `planner.spec` documents.
        current: document of the active plan (else of the parent), or None.
    """

    run: int
    version: int
    cluster: dict[str, Any]
    profile: dict[str, Any]
    train: dict[str, Any]
    rates: dict[int, float]
    current: dict[str, Any] | None
    seed: int
    time_limit_s: float

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "rates": rates_to_json(self.rates)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(**{**document, "rates": rates_from_json(document["rates"])})


def build(run: RunRow, plan: PlanRow, current: PlanRow | None) -> PlanJob:
    """The job of a plan row. `current` is the plan that a switch would start from. For `db/` only."""
    config = RunConfig.model_validate(run.config)
    assert run.profile is not None
    return PlanJob(
        run=run.id,
        version=plan.version,
        cluster={
            "nodes": [list(node) for node in config.nodes],
            "memory_bytes": {str(device): config.cluster.memory_bytes for node in config.nodes for device in node},
        },
        profile=run.profile,
        train={
            "global_batch": config.train.global_batch,
            "micro_batch_sizes": list(config.train.micro_batch_sizes),
            "dp_range": [1, config.parallel.max_dp],
            "max_tp": config.parallel.max_tp,
        },
        rates=rates_from_json(plan.rates),
        current=None if current is None else current.document,
        seed=plan.seed,
        time_limit_s=config.control.plan_time_limit_s,
    )


def rates_to_json(rates: Mapping[int, float]) -> dict[str, float]:
    """`{device: x}` with the text keys that JSON has."""
    return {str(device): float(rate) for device, rate in rates.items()}


def rates_from_json(document: Mapping[str, float]) -> dict[int, float]:
    """`{device: x}` from its JSON form."""
    return {int(device): float(rate) for device, rate in document.items()}
