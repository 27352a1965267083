"""What is said about a trace: replayed, judged, and planned anew; as JSON or as text."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from app.commands.output import plain, seconds
from app.plan_text import plan_text
from planner.replay import replayed_step_s
from planner.solve import SolveResult
from planner.trace import Trace
from planner.trace_cause import TraceVerdict, judge
from planner.trace_model import TraceModel, better_plan, trace_model


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReport:
    """All of it.

    Args:
        replayed_s: median seconds of a step in the event model, for the plan that ran.
    """

    trace: Trace
    replayed_s: float
    verdict: TraceVerdict
    model: TraceModel
    result: SolveResult

    @property
    def replay_error(self) -> float:
        """Relative; negative where the event model is too fast."""
        return self.replayed_s / self.trace.measured_s - 1

    def to_json(self) -> dict[str, Any]:
        shape, best = self.trace.shape, self.result.best
        document: dict[str, Any] = {
            "dp": shape.dp,
            "pp": shape.pp,
            "tp": shape.tp,
            "num_steps": len(self.trace.steps),
            "num_micro_batches": self.trace.num_micro_batches,
            "measured_step_s": self.trace.measured_s,
            "replayed_step_s": self.replayed_s,
            "replay_error": self.replay_error,
            "cause": self.verdict.cause,
            "reason": self.verdict.reason,
            "slow": [
                {
                    "dp": worker.dp,
                    "stage": worker.stage,
                    "rate": worker.rate,
                    "devices": list(worker.devices),
                    "first_step": self.trace.steps[worker.span[0]],
                    "last_step": self.trace.steps[worker.span[1] - 1],
                    "share_of_steps": worker.share_of_steps,
                }
                for worker in self.verdict.slow
            ],
            "evidence": self.verdict.evidence,
            "profile": self.model.profile.to_json(),
            "original_plan": self.model.plan.to_json(),
            "status": self.result.status,
            "original_step_s": self.result.current_s,
            "plan": None if best is None else best.plan.to_json(),
            "plan_step_s": None if best is None else best.step_s,
            "bound_s": self.result.bound_s,
            "gap": self.result.gap,
            "solve_s": self.result.seconds,
        }
        found: dict[str, Any] = plain(document)
        return found

    def to_text(self) -> str:
        shape, result, best = self.trace.shape, self.result, self.result.best
        lines = [
            f"job         DP {shape.dp} x PP {shape.pp} x TP {shape.tp} on {shape.num_devices} devices, "
            f"{self.trace.num_micro_batches} micro-batches a pipeline, {len(self.trace.steps)} steps",
            f"measured    {seconds(self.trace.measured_s)} (median step)",
            f"replayed    {seconds(self.replayed_s)} ({100 * self.replay_error:+.1f} %)",
            f"cause       {self.verdict.cause}: {self.verdict.reason}",
        ]
        lines += [
            f"slow        dp {worker.dp}, stage {worker.stage}: {worker.rate:.2f}x, "
            f"devices {' '.join(str(device) for device in worker.devices)}"
            for worker in self.verdict.slow
        ]
        lines.append(f"{result.status}: {result.reason}")
        if best is not None:
            lines += [
                f"step time   {seconds(best.step_s)} (predicted)",
                f"bound       {seconds(result.bound_s)} (gap {100 * result.gap:.1f} %)",
                f"A trace names neither layers nor memory: {self.model.profile.num_layers} layers and room for "
                f"{self.model.cluster.memory_bytes[0]:g} on a device are assumed.",
                "",
                plan_text(best.plan, self.model.rates),
            ]
        return "\n".join(lines)


def report_on(trace: Trace, *, layers_per_stage: int = 8, seed: int = 0, time_limit_s: float = 30.0) -> TraceReport:
    """Replays, judges and plans.

    Args:
        layers_per_stage: layers that a stage of usual weight counts as.
    """
    verdict = judge(trace)
    model = trace_model(trace, verdict, layers_per_stage=layers_per_stage)
    return TraceReport(
        trace=trace,
        replayed_s=replayed_step_s(trace),
        verdict=verdict,
        model=model,
        result=better_plan(model, seed=seed, time_limit_s=time_limit_s, clock=time.monotonic),
    )
