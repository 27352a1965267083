"""A judged trace in the store, as a finished run like any other.

Goes through the store's own API: the run with the plan that ran, its profile, one message a step, an episode
for each device that is blamed, and the proposed plan. Steps count from 0 and lie back to back, so that
the run ends now: a trace has no dates, and its step numbers have gaps. It has no losses either (NaN).
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.trace_report import TraceReport
from db import audit, episodes, plans, recorder, runs
from db.messages import DeviceInfo, Hello, Profile, State, Step, Telemetry, utc_now
from db.run_config import (
    ClusterConfig,
    ControlConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    RunConfig,
    TrainConfig,
)
from planner.trace_cause import worker_rates

if TYPE_CHECKING:
    from db.store import Store

ACTOR = "trace"


def import_trace(store: Store, report: TraceReport, *, source: Path, actor: str) -> int:
    """Writes the run.

    Args:
        source: the trace's file; its name becomes the run's.

    Returns:
        The number of the run.
    """
    run = runs.create(store, run_config(report, name=source.stem), plan=report.model.plan.to_json(), actor=actor)
    messages = list(_messages(report, run.id, end_at=utc_now()))
    recorder.record(store, run.id, [(f"{message.seq}-0", message) for message in messages])
    plans.move(store, run.id, 1, "active", actor=ACTOR, reason="the plan that the trace shows")
    plans.set_measured(store, run.id, 1, report.trace.measured_s)
    _add_episodes(store, run.id, report, [message for message in messages if isinstance(message, Step)])
    _add_plan(store, run.id, report, actor=actor)
    audit.record(
        store,
        actor=actor,
        action="trace.import",
        run=run.id,
        target=source.name,
        result=report.verdict.cause,
        detail=report.to_json(),
    )
    return run.id


def run_config(report: TraceReport, *, name: str = "trace") -> RunConfig:
    """A configuration of the trace's shape. What a trace does not say keeps its default."""
    trace, model = report.trace, report.model
    shape, profile = trace.shape, model.profile
    layer_s, head_s = profile.compute_s[1][shape.tp], profile.head_s[1][shape.tp]
    return RunConfig(
        name=re.sub(r"[^\w .:+-]", "-", name)[:100] or "trace",
        model=ModelConfig(num_layers=profile.num_layers, num_kv_heads=8),
        train=TrainConfig(num_steps=len(trace.steps), global_batch=model.train.global_batch),
        cluster=ClusterConfig(
            num_nodes=len(model.cluster.nodes),
            devices_per_node=len(model.cluster.nodes[0]),
            memory_bytes=model.cluster.memory_bytes[0],
        ),
        parallel=ParallelConfig.model_validate(
            {"dp": shape.dp, "tp": shape.tp, "pp": shape.pp, "max_tp": shape.tp, "max_dp": shape.dp}
        ),
        device=DeviceConfig(layer_s=layer_s * shape.tp, head_layers=head_s / layer_s),
        control=ControlConfig(mode="off"),
    )


def _messages(report: TraceReport, run: int, *, end_at: datetime) -> Iterator[Telemetry]:
    trace, model = report.trace, report.model
    at = end_at - timedelta(seconds=float(trace.step_s.sum()))
    head: dict[str, Any] = {"run": run, "attempt": f"trace-{uuid.uuid4().hex}", "desired_version": 1}
    devices = tuple(
        DeviceInfo(device=device, node=node, rank=device, pid=0, host=f"node {node}", backend="trace")
        for node, members in enumerate(model.cluster.nodes)
        for device in members
    )
    yield Hello(**head, seq=0, at=at, devices=devices, num_parameters=0, torch_version="")
    yield Profile(**head, seq=1, at=at, profile=model.profile.to_json(), seconds=0.0)
    yield State(**head, seq=2, at=at, state="training", step=0)
    rates, compute, batch = worker_rates(trace), trace.compute_s, model.train.global_batch
    for index, step_s in enumerate(trace.step_s.tolist()):
        at += timedelta(seconds=step_s)
        rate_of = dict.fromkeys(model.cluster.devices, math.nan)
        compute_of = dict(rate_of)
        for dp in range(trace.shape.dp):
            for stage in range(trace.shape.pp):
                for device in trace.group(dp, stage):
                    # Without a peer nobody knows whether a worker is slow.
                    rate_of[device] = float(rates[index, dp, stage]) if trace.shape.dp > 1 else math.nan
                    compute_of[device] = float(compute[index, dp, stage])
        yield Step(
            **head,
            seq=3 + index,
            at=at,
            step=index,
            plan_version=1,
            phase="train",
            step_s=step_s,
            loss=math.nan,
            num_tokens=0,
            samples=(index * batch, (index + 1) * batch),
            rates=tuple(rate_of.values()),
            compute_s=tuple(compute_of.values()),
        )
    yield State(
        **head,
        seq=3 + len(trace.steps),
        at=end_at,
        state="finished",
        step=len(trace.steps),
        reason=f"imported from a trace; cause {report.verdict.cause}: {report.verdict.reason}",
    )


def _add_episodes(store: Store, run: int, report: TraceReport, steps: Sequence[Step]) -> None:
    rates = worker_rates(report.trace)
    for worker in report.verdict.slow:
        first, last = steps[worker.span[0]], steps[worker.span[1] - 1]
        evidence = {
            "dp": worker.dp,
            "stage": worker.stage,
            "share_of_steps": worker.share_of_steps,
            "trace_steps": [report.trace.steps[first.step], report.trace.steps[last.step]],
            "reason": report.verdict.reason,
        }
        peak = float(rates[slice(*worker.span), worker.dp, worker.stage].max())
        for device in worker.devices:
            episodes.open_episode(
                store,
                run,
                device,
                start_step=first.step,
                start_at=first.at,
                rate=worker.rate,
                cause=report.verdict.cause,
                evidence=evidence,
            )
            episodes.update_peak(store, run, device, rate=peak)
            episodes.close(store, run, device, end_step=last.step, end_at=last.at)


def _add_plan(store: Store, run: int, report: TraceReport, *, actor: str) -> None:
    """The proposed plan: through the same steps as one that a worker solves, so that all its figures are kept."""
    result = report.result
    asked = plans.request(
        store, run, trigger="trace", rates=report.model.rates, parent=1, requested_by=actor, key="trace"
    )
    plans.claim(store, run, asked.version, worker=ACTOR)
    best = result.best
    is_better = best is not None and not best.is_current
    plans.solved(
        store,
        run,
        asked.version,
        document=best.plan.to_json() if best is not None and is_better else None,
        status="ready" if is_better else "rejected",
        reason=f"{report.verdict.cause}: {result.reason}",
        predicted_s=None if best is None else best.step_s,
        current_s=result.current_s,
        bound_s=result.bound_s,
        gap=result.gap,
        solve_s=result.seconds,
        solver="search",
        details={"log": list(result.log)},
    )
