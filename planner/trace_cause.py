"""Why the steps of a trace take as long as they do: one slow device, a heavy stage, heavy data, or not known.

Each possible cause names what stands out against its peers, and the event model says how much faster
the steps would have been without it; the cause that explains most is the verdict. Peers are the workers
of the same stage in the other pipelines: they do equal work, so they tell a slow device from a stage that
is heavy by design. `planner.cause` judges a running job in the same words, from rates alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from planner.replay import replay_s
from planner.trace import Floats, Trace

TraceCause = Literal["device", "stage", "data", "unknown"]

MIN_STEPS = 3
MIN_GAIN = 0.03  # a cause that explains less of the step time explains nothing
_SLOW = 1.05  # a worker this far above its peers stands out (the threshold of detection)
_LASTING = 0.75  # in at least this share of the steps from the first slow one to the last
_LEAST_SHARE = 0.25  # and in this share of all
_AT_TIMES = 0.1
_HEAVY_STAGE = 1.10
_HEAVY_DATA = 1.15


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowWorker:
    """A worker that is slow for equal work.

    Args:
        rate: median over the span of its compute over that of its peers.
        span: indices of the first slow step and one past the last.
        share_of_steps: in how many of them it was slow.
    """

    dp: int
    stage: int
    rate: float
    devices: tuple[int, ...]
    span: tuple[int, int]
    share_of_steps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceVerdict:
    """The cause and what it rests on.

    Args:
        slow: the workers that are blamed, slowest first; only with `device`.
        reason: one sentence.
        evidence: figures, ready for JSON.
    """

    cause: TraceCause
    slow: tuple[SlowWorker, ...]
    reason: str
    evidence: dict[str, Any]


def judge(trace: Trace) -> TraceVerdict:
    """Names the cause."""
    num_steps = len(trace.steps)
    base = replay_s(trace)
    slow = _slow_workers(trace)
    stages = stage_reference_s(trace)
    heaviest = int(np.argmax(stages))
    over = float(stages[heaviest] / np.median(np.delete(stages, heaviest))) if trace.shape.pp > 1 else 1.0
    heavy = _heavy_micro_batches(trace)
    gains = {
        "device": _gain(trace, base, _device_factor(trace, slow)) if slow else 0.0,
        "stage": _gain(trace, base, _stage_factor(trace, stages)) if over > _HEAVY_STAGE else 0.0,
        "data": _gain(trace, base, np.maximum(heavy, 1.0)[:, :, None, :]) if _is_data(heavy) else 0.0,
    }
    has_heavy = np.flatnonzero((heavy > _HEAVY_DATA).reshape(num_steps, -1).any(axis=1))
    evidence: dict[str, Any] = {
        "num_steps": num_steps,
        "num_peers": trace.shape.dp - 1,
        "gain_without": gains,
        "rates": [[round(float(value), 4) for value in row] for row in np.median(worker_rates(trace), axis=0)],
        "stage_s": [float(value) for value in stages],
        "heaviest_stage": heaviest,
        "heaviest_over_others": over,
        "heavy_micro_batches": int((heavy > _HEAVY_DATA).sum()),
        "steps_with_heavy_micro_batches": [trace.steps[int(index)] for index in has_heavy],
    }
    if num_steps < MIN_STEPS:
        return _unknown(f"at least {MIN_STEPS} steps are needed to tell, given {num_steps}", evidence)
    cause = max(gains, key=lambda name: gains[name])
    if gains[cause] < MIN_GAIN:
        at_times = _slow_at_times(trace)
        if at_times:
            dp, stage, share = at_times[0]
            return _unknown(
                f"dp {dp}, stage {stage} is slow against its peers in {100 * share:.0f} % of the steps only", evidence
            )
        return _unknown(f"nothing stands out that would shorten the steps by {100 * MIN_GAIN:.0f} %", evidence)
    without = f"without that the steps take {100 * gains[cause]:.1f} % less"
    if cause == "device":
        first = slow[0]
        reason = (
            f"dp {first.dp}, stage {first.stage} computes {first.rate:.2f}x as long as its {_peers(trace)} "
            f"for equal work, in {100 * first.share_of_steps:.0f} % of the steps; {without}"
        )
        return TraceVerdict(cause="device", slow=slow, reason=reason, evidence=evidence)
    if cause == "stage":
        if trace.shape.dp < 2:
            return _unknown(f"stage {heaviest} is {over:.2f}x the others, but has no peers to compare with", evidence)
        reason = f"stage {heaviest} takes {over:.2f}x the others in all {trace.shape.dp} pipelines alike; {without}"
        return TraceVerdict(cause="stage", slow=(), reason=reason, evidence=evidence)
    reason = (
        f"{evidence['heavy_micro_batches']} micro-batches are heavy on every worker that runs them, "
        f"in {len(evidence['steps_with_heavy_micro_batches'])} of {num_steps} steps; {without}"
    )
    return TraceVerdict(cause="data", slow=(), reason=reason, evidence=evidence)


def stage_reference_s(trace: Trace) -> Floats:
    """Seconds of one micro-batch, forward + backward, on a healthy worker of each stage: `(stage,)`.

    The lower median over the pipelines, so that one slow of two does not count.
    """
    each = np.median(trace.forward, axis=(0, 3)) + np.median(trace.backward, axis=(0, 3))
    return np.asarray(np.sort(each, axis=0)[(trace.shape.dp - 1) // 2])


def worker_rates(trace: Trace) -> Floats:
    """Compute of every worker over that of its stage's healthy peers in the same step: `(step, dp, stage)`."""
    compute = trace.compute_s
    reference = np.sort(compute, axis=1)[:, (trace.shape.dp - 1) // 2]
    return np.asarray(compute / reference[:, None, :])


def _slow_workers(trace: Trace) -> tuple[SlowWorker, ...]:
    """The workers that are slow from their first slow step to their last, nearly without a break."""
    rates = worker_rates(trace)
    is_slow = rates > _SLOW
    least = max(MIN_STEPS, math.ceil(_LEAST_SHARE * len(trace.steps)))
    found = []
    for dp in range(trace.shape.dp):
        for stage in range(trace.shape.pp):
            at = np.flatnonzero(is_slow[:, dp, stage])
            if len(at) < least or len(at) < _LASTING * (at[-1] - at[0] + 1):
                continue
            span = (int(at[0]), int(at[-1]) + 1)
            found.append(
                SlowWorker(
                    dp=dp,
                    stage=stage,
                    rate=float(np.median(rates[span[0] : span[1], dp, stage])),
                    devices=trace.group(dp, stage),
                    span=span,
                    share_of_steps=len(at) / len(trace.steps),
                )
            )
    return tuple(sorted(found, key=lambda worker: -worker.rate))


def _slow_at_times(trace: Trace) -> list[tuple[int, int, float]]:
    """Workers that are slow in some steps, not in most: `(dp, stage, share of the steps)`, the most often first."""
    share = (worker_rates(trace) > _SLOW).mean(axis=0)
    found = [(int(dp), int(stage), float(share[dp, stage])) for dp, stage in np.argwhere(share >= _AT_TIMES)]
    return sorted(found, key=lambda item: -item[2])


def _heavy_micro_batches(trace: Trace) -> Floats:
    """How heavy each micro-batch is, `(step, dp, micro_batch)`: the least any worker that ran it shows.

    A single slow device raises one stage only; heavy data raises all. Where a pipeline has one stage, the
    other pipelines must be slow in the same step too.
    """
    seconds = trace.forward + trace.backward
    usual = np.median(seconds, axis=(0, 3), keepdims=True)
    heavy: Floats = (seconds / usual).min(axis=2)
    if trace.shape.pp == 1:
        common = heavy.max(axis=2).min(axis=1)
        heavy = np.where(common[:, None, None] > _HEAVY_DATA, heavy, 1.0)
    return heavy


def _is_data(heavy: Floats) -> bool:
    """Whether it is the micro-batches: they differ within the slow steps, or slow steps come and go.

    One unbroken spell in which everything is slow alike may have any reason.
    """
    slow = np.flatnonzero((heavy > _HEAVY_DATA).any(axis=(1, 2)))
    if not len(slow):
        return False
    flat = heavy[slow].reshape(len(slow), -1)
    differ = np.median(flat.max(axis=1) / flat.min(axis=1)) > _HEAVY_DATA
    return bool(differ or len(slow) < slow[-1] - slow[0] + 1)


def _device_factor(trace: Trace, slow: tuple[SlowWorker, ...]) -> Floats:
    factor = np.ones((len(trace.steps), trace.shape.dp, trace.shape.pp, 1))
    for worker in slow:
        factor[slice(*worker.span), worker.dp, worker.stage, 0] = worker.rate
    return factor


def _stage_factor(trace: Trace, stages: Floats) -> Floats:
    """Every stage at the mean of all: the work stays, its division is even."""
    return np.asarray((stages / stages.mean())[None, None, :, None])


def _gain(trace: Trace, base: Floats, factor: Floats) -> float:
    return float(1 - replay_s(trace, factor=factor).mean() / base.mean())


def _peers(trace: Trace) -> str:
    return "one peer" if trace.shape.dp == 2 else f"{trace.shape.dp - 1} peers"


def _unknown(reason: str, evidence: dict[str, Any]) -> TraceVerdict:
    return TraceVerdict(cause="unknown", slow=(), reason=reason, evidence=evidence)
