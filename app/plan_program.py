"""The integer program behind a plan, as an LP file that any solver reads and a person can check.

`malleus plan --write-lp` calls it. It is the program of `planner.program` for the groups and the number of
pipelines of one plan, at that plan's step time. It does not solve: it says which rows the plan itself keeps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.kinds import Instance
from planner.plan import Plan
from planner.program import DivisionProgram
from planner.spec import ClusterSpec, ModelProfile

_SLACK = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenProgram:
    """What is in the file.

    Args:
        step_s: the step time that the program asks for.
        missed: rows that the plan itself does not keep. They may exist: the program takes layers as divisible
            and every pipeline as balanced, the plan's step time comes from the exact events.
    """

    path: Path
    step_s: float
    num_variables: int
    num_rows: int
    missed: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "step_s": self.step_s,
            "num_variables": self.num_variables,
            "num_rows": self.num_rows,
            "missed": list(self.missed),
        }


def write_program(
    path: Path, plan: Plan, step_s: float, *, cluster: ClusterSpec, profile: ModelProfile, rates: Mapping[int, float]
) -> WrittenProgram:
    """Writes the program for the groups of a plan.

    Args:
        step_s: predicted seconds of the plan's step.
        rates: straggling rate by device; devices not named are healthy.

    Raises:
        OSError: the file cannot be written.
    """
    live = [rate for rate in (rates.get(device, 1.0) for device in cluster.devices) if math.isfinite(rate)]
    instance = Instance(
        profile, micro_batch_size=plan.micro_batch_size, num_micro_batches=plan.num_micro_batches, rates=live
    )
    # The program numbers pipelines by falling micro-batches.
    pipelines = sorted(plan.pipelines, key=lambda pipeline: -pipeline.num_micro_batches)
    kinds = [
        Counter(
            instance.kind(
                stage.tp_degree,
                max(rates.get(device, 1.0) for device in stage.devices),
                min(cluster.memory_bytes[device] for device in stage.devices),
            )
            for stage in pipeline.stages
        )
        for pipeline in pipelines
    ]
    counts = sum(kinds, Counter[int]())
    program, groups, micro_batches = DivisionProgram(instance, counts, plan.dp_degree).problem(step_s)
    for place, pipeline in enumerate(pipelines):
        micro_batches[place].varValue = pipeline.num_micro_batches
        for kind, variable in groups[place].items():
            variable.varValue = kinds[place][kind]
    rows = program.constraints()
    missed = tuple(row.name for row in rows if not row.valid(_SLACK))
    program.writeLP(str(path))
    legend = [
        f"Division of {counts.total()} groups into {plan.dp_degree} pipelines within {step_s:.9g} s a step.",
        "groups_p_k: groups of kind k in pipeline p; micro_batches_p: micro-batches of pipeline p.",
        *(
            f"kind {index}: TP {kind.tp_degree}, rate {kind.rate:g}, {kind.layer_s:.9g} s a layer, "
            f"{counts[index]} groups"
            for index, kind in enumerate(instance.kinds)
        ),
        *(
            f"the plan's pipeline {place}: {pipeline.num_micro_batches} micro-batches, "
            + " + ".join(f"{number} x kind {kind}" for kind, number in sorted(kinds[place].items()))
            for place, pipeline in enumerate(pipelines)
        ),
        "rows that the plan itself does not keep: " + (", ".join(missed) or "none"),
    ]
    text = path.read_text(encoding="utf-8")
    path.write_text("".join(f"\\ {line}\n" for line in legend) + text, encoding="utf-8")
    return WrittenProgram(
        path=path,
        step_s=step_s,
        num_variables=len(program.variables()),
        num_rows=len(rows),
        missed=missed,
    )
