"""Commands about plans as such: `plan` searches for one offline, `plan-diff` compares two of a run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.commands.output import JsonOption, RunArgument, print_json, rate, seconds
from app.commands.surroundings import open_store
from db.errors import InputError

if TYPE_CHECKING:
    from db.plans import PlanView
    from planner.solve import SolveResult
    from planner.spec import ClusterSpec, ModelProfile, TrainSpec

Version = Annotated[int, typer.Argument(help="Version of a plan of the run.", show_default=False)]


def plan(
    model: Annotated[
        str, typer.Option(help='Name of a model, or a JSON file with its "profile" and "train" settings.')
    ] = "demo",
    cluster: Annotated[str, typer.Option(help="Name of a cluster, or a JSON file.")] = "demo",
    rates: Annotated[
        str, typer.Option(help="Straggling rates by device, such as 3=2.57,9=inf.", show_default="all healthy")
    ] = "",
    global_batch: Annotated[
        int | None, typer.Option(min=1, help="Sequences in a step.", show_default="the model's")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    time_limit: Annotated[float, typer.Option(min=0.1, help="Seconds the search may take.")] = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Search for a plan offline: no run, no broker, no store."""
    from planner.solve import solve
    from planner.spec import check_rates

    spec = _cluster(cluster)
    profile, train = _model(model, global_batch)
    slow = parse_rates(rates)
    check_rates(slow, spec)
    result = solve(
        cluster=spec,
        profile=profile,
        train=train,
        rates=slow,
        seed=seed,
        time_limit_s=time_limit,
        clock=time.monotonic,
    )
    if as_json:
        print_json(result.to_json())
    else:
        _print_result(result, slow)
    if result.best is None:
        raise typer.Exit(1)


def plan_diff(run: RunArgument, old: Version, new: Version, as_json: JsonOption = False) -> None:
    """Show what changes between two plans of a run, device by device."""
    from db import plans, runs
    from planner.diff import diff
    from planner.plan import Plan
    from planner.spec import ModelProfile

    with open_store() as store:
        view = runs.get(store, run)
        first, second = (_document(plans.get(store, run, version)) for version in (old, new))
    profile = None if view.profile is None else ModelProfile.from_json(view.profile)
    changes = diff(Plan.from_json(first), Plan.from_json(second), profile)
    if as_json:
        print_json({"run": run, "old": old, "new": new, **changes.to_json()})
    else:
        print(f"run {run}, plan v{old} -> v{new}")
        for sentence in changes.sentences() or ["no change"]:
            print(f"  {sentence}")


def parse_rates(text: str) -> dict[int, float]:
    """`{device: x}` of `3=2.57,9=inf`.

    Raises:
        InputError: malformed, or a device that is named twice. Values are checked by the planner.
    """
    found: dict[int, float] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        device, _, value = item.partition("=")
        try:
            key, number = int(device), float(value)
        except ValueError:
            raise InputError(f"--rates must be device=rate pairs such as 3=2.57,9=inf, given {item!r}") from None
        if key in found:
            raise InputError(f"--rates must name a device once, given {key} twice")
        found[key] = number
    return found


def _cluster(name: str) -> ClusterSpec:
    from planner import presets
    from planner.spec import ClusterSpec

    document = _file(name, presets.CLUSTERS, "--cluster")
    return presets.cluster(name) if document is None else ClusterSpec.from_json(document)


def _model(name: str, global_batch: int | None) -> tuple[ModelProfile, TrainSpec]:
    from planner import presets
    from planner.spec import ModelProfile, TrainSpec

    document = _file(name, presets.MODELS, "--model")
    if document is None:
        profile, train = presets.model(name)
    else:
        unknown = sorted(set(document) ^ {"profile", "train"})
        if unknown:
            raise InputError(
                f'{name} must hold "profile" and "train", given {", ".join(sorted(document)) or "nothing"}'
            )
        profile, train = ModelProfile.from_json(document["profile"]), TrainSpec.from_json(document["train"])
    if global_batch is not None:
        train = TrainSpec.from_json(train.to_json() | {"global_batch": global_batch})
    return profile, train


def _file(name: str, presets: tuple[str, ...], option: str) -> dict[str, Any] | None:
    """The JSON object in a file; None if the name is that of a preset."""
    if name in presets:
        return None
    path = Path(name)
    if not path.is_file():
        raise InputError(f"{option} must be one of {', '.join(presets)} or a JSON file, given {name!r}")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{name} is not readable JSON: {error}") from None
    if not isinstance(document, dict):
        raise InputError(f"{name} must hold a JSON object, given {type(document).__name__}")
    return document


def _document(plan: PlanView) -> dict[str, Any]:
    if plan.document is None:
        raise InputError(f"plan {plan.version} of run {plan.run} has no document: it is {plan.status}")
    return plan.document


def _print_result(result: SolveResult, rates: dict[int, float]) -> None:
    from app.plan_text import plan_text

    print(f"{result.status}: {result.reason}")
    if result.best is not None:
        print(f"step time   {seconds(result.best.step_s)}")
        print(f"bound       {seconds(result.bound_s)} (gap {100 * result.gap:.1f} %)")
        print(f"healthy     {seconds(result.healthy_s)}")
        if rates:
            print(
                "rates       " + ", ".join(f"device {device} {rate(value)}" for device, value in sorted(rates.items()))
            )
    print(f"solved in   {seconds(result.seconds)}")
    if result.best is not None:
        print()
        print(plan_text(result.best.plan, rates))
