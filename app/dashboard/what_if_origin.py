"""What a what-if starts from: a run as it is now, a preset, or an earlier what-if. Plain data; reads nothing.

A run that was imported from a trace is a run like any other, except that it starts with the rates that the trace's
verdict names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from app.dashboard import quantities as q
from app.dashboard.headline import parsed
from app.dashboard.rate_colors import HEALTHY_BELOW
from app.dashboard.snapshot import Snapshot
from app.even_plans import fitting_plan
from db.errors import InputError
from db.what_if_request import MAX_LIMIT_S, WhatIfRequest
from planner import presets
from planner.cost import plan_step_s
from planner.decide import STEPS_BEFORE_SHIFT, expected_steps
from planner.plan import GROUP_SIZES, Plan
from planner.spec import ClusterSpec, ModelProfile, TrainSpec

PRESETS = {
    "demo": ("demo", "demo", "Demo model on 8 devices"),
    **{
        f"{model}-{cluster}": (model, cluster, f"{model.upper()} on {cluster} devices")
        for model in ("32b", "70b", "110b")
        for cluster in ("32", "64")
    },
}
"""Model and cluster of `planner.presets` by name, and what to call them."""

_RUN = "run-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A planning problem as it is before anything is changed.

    Args:
        name: in addresses (`run-7`, `70b-64`).
        title: in words, with the plan and the moment of the rates.
        rates: of devices that are not healthy.
        unknown: devices that measure nothing; assumed healthy.
        current: the plan in use; for a preset the fastest uniform plan, if one fits.
        moves: `(bytes, pause seconds)` of the run's switches.
        num_steps: steps that a gain is expected to last.
    """

    name: str
    title: str
    cluster: ClusterSpec
    profile: ModelProfile
    train: TrainSpec
    rates: Mapping[int, float]
    unknown: tuple[int, ...] = ()
    current: Plan | None = None
    run: int | None = None
    current_version: int | None = None
    moves: tuple[tuple[float, float], ...] = ()
    num_steps: int = STEPS_BEFORE_SHIFT
    time_limit_s: float = MAX_LIMIT_S


def run_of(name: str) -> int | None:
    """The run that an origin's name stands for; None for a preset."""
    number = name.removeprefix(_RUN)
    return int(number) if name.startswith(_RUN) and number.isdigit() else None


def run_name(run: int) -> str:
    """The name of a run as an origin."""
    return f"{_RUN}{run}"


@cache
def preset_origin(name: str) -> Origin:
    """A named model on a named cluster, healthy, under the fastest uniform plan.

    Raises:
        InputError: no such preset.
    """
    if name not in PRESETS:
        raise InputError(f"from must be a run such as run-7 or one of {', '.join(PRESETS)}, given {name!r}")
    model, cluster_name, title = PRESETS[name]
    cluster = presets.cluster(cluster_name)
    profile, train = presets.model(model)
    return Origin(
        name=name,
        title=title,
        cluster=cluster,
        profile=profile,
        train=train,
        rates={},
        current=uniform_plan(cluster, profile, train),
    )


def run_origin(snapshot: Snapshot) -> Origin:
    """A run as it is now.

    Raises:
        InputError: the run is not calibrated.
    """
    run, config = snapshot.run, snapshot.run.config
    if snapshot.profile is None:
        raise InputError(f"run {run.id} is not calibrated yet, so nothing is known about what a layer costs")
    moves = tuple(
        (float(switch.bytes_moved), switch.pause_s) for switch in snapshot.switches if switch.outcome == "applied"
    )
    done = 0 if run.step is None else run.step + 1
    remaining = expected_steps(num_remaining=config.train.num_steps - done, num_done=done, num_shifts=len(moves))
    rates, unknown = _rates_now(snapshot)
    return Origin(
        name=run_name(run.id),
        title=f"run {run.id} {run.name}, plan v{snapshot.active_version}, {q.clock(snapshot.now)}",
        cluster=ClusterSpec(
            nodes=tuple(tuple(node) for node in config.nodes),
            memory_bytes={device: config.cluster.memory_bytes for node in config.nodes for device in node},
        ),
        profile=snapshot.profile,
        train=TrainSpec(
            global_batch=config.train.global_batch,
            micro_batch_sizes=tuple(config.train.micro_batch_sizes),
            dp_range=(1, config.parallel.max_dp),
            max_tp=config.parallel.max_tp,
        ),
        rates=rates,
        unknown=unknown,
        current=snapshot.active_plan,
        run=run.id,
        current_version=snapshot.active_version,
        moves=moves,
        num_steps=remaining if run.is_open else STEPS_BEFORE_SHIFT,
        time_limit_s=min(config.control.plan_time_limit_s, MAX_LIMIT_S),
    )


def request_origin(request: WhatIfRequest, run: int | None) -> Origin:
    """What an earlier what-if started from, as it was then; its rates are those that were asked about.

    Raises:
        PlannerError: the request cannot be read any more.
    """
    return Origin(
        name=request.origin,
        title=request.title,
        cluster=ClusterSpec.from_json(request.cluster),
        profile=ModelProfile.from_json(request.profile),
        train=TrainSpec.from_json(request.train),
        rates=dict(request.rates),
        current=parsed(request.current),
        run=run,
        current_version=request.current_version,
        moves=request.moves,
        num_steps=request.num_steps,
        time_limit_s=request.time_limit_s,
    )


def uniform_plan(cluster: ClusterSpec, profile: ModelProfile, train: TrainSpec) -> Plan | None:
    """The fastest plan of equal groups and pipelines that fits a healthy cluster; None if none does."""
    size = train.micro_batch_sizes[0]
    degrees = [degree for degree in GROUP_SIZES if degree <= train.max_tp and degree in profile.compute_s[size]]
    found: list[tuple[float, Plan]] = []
    for dp in range(train.dp_range[0], train.dp_range[1] + 1):
        for tp in degrees:
            for pp in range(len(cluster.devices) // (dp * tp), 0, -1):
                plan = fitting_plan(
                    cluster,
                    profile,
                    global_batch=train.global_batch,
                    micro_batch_size=size,
                    max_tp=train.max_tp,
                    degrees=(dp, tp, pp),
                )
                if plan is not None:  # a shallower one leaves more devices idle
                    found.append((plan_step_s(plan, profile, {}), plan))
                    break
    return min(found, key=lambda entry: entry[0])[1] if found else None


def as_request(origin: Origin, train: TrainSpec, rates: Mapping[int, float]) -> WhatIfRequest:
    """The question: this problem, with other settings and rates."""
    return WhatIfRequest(
        origin=origin.name,
        title=origin.title[:200],
        cluster=origin.cluster.to_json(),
        profile=origin.profile.to_json(),
        train=train.to_json(),
        rates={device: rate for device, rate in sorted(rates.items()) if rate != 1.0},
        current=None if origin.current is None else origin.current.to_json(),
        current_version=origin.current_version,
        moves=origin.moves,
        num_steps=origin.num_steps,
        time_limit_s=origin.time_limit_s,
    )


def _rates_now(snapshot: Snapshot) -> tuple[dict[int, float], tuple[int, ...]]:
    """Rates of devices that are not healthy, to two decimals, and the devices of which nothing is known."""
    traced = next((plan for plan in snapshot.plans if plan.trigger == "trace"), None)
    measured: Mapping[int, float] = traced.rates if traced is not None else snapshot.rates
    gone: Sequence[int] = snapshot.active_plan.failed if snapshot.active_plan is not None else ()
    every = [device for node in snapshot.run.config.nodes for device in node]
    known = {device: rate for device, rate in measured.items() if rate == rate} | dict.fromkeys(gone, float("inf"))
    unknown = () if traced is not None else tuple(device for device in every if device not in known)
    return {device: round(rate, 2) for device, rate in known.items() if rate >= HEALTHY_BELOW}, unknown
