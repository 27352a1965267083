"""Situations S0 to S6 and the drift, on 8 and on 16 emulated devices, three ways.

    python bench/situations.py --json                                   everything: takes hours
    python bench/situations.py --devices 8 --situations S1 S2 --variants a b
    python bench/situations.py --situations drift --drift-steps 40 --add earlier.jsonl

Variants: (a) the even plan that the run starts with, (b) re-planning with live switches, (c) what is done
today: save, stop, leave the slow devices' nodes out, restart with an even plan on the others. Each is the real
system: broker, Celery worker, controller and the engine's ranks, in a data folder that is gone afterwards.

Every phase waits for conditions in the store, then measures. One JSON object a line for each (devices, situation,
variant), medians where there are several runs, then one with the targets. The drift ends when a device fails; it
gives every phase the same number of steps in each variant, and counts the wall time of exactly those.
"""

from __future__ import annotations

# ruff: noqa: E402 (imports follow the change of sys.path)
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
if sys.path and Path(sys.path[0]).resolve() == _HERE:  # run as a program; bench/planner.py hides the package
    sys.path[0] = str(_HERE.parent)

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator

from app.local.commands import EngineArgv, torchrun
from app.local.stop_signals import StopSignals
from app.local.system import LocalSystem
from app.node_drop import Remaining, reduced, remaining
from app.phase_figures import medians
from app.phases import Phases
from app.situations import DESCRIPTIONS, rates
from bench.drift import live_drift, restarting_drift
from bench.playing import Playing, Row
from bench.targets import summary
from db import history
from db.run_config import RunConfig
from db.settings import Settings

VARIANTS = {"a": "the even plan", "b": "re-planning", "c": "restart without the slow nodes"}


def configuration(num_devices: int, *, mode: str, layer_s: float | None = None) -> RunConfig:
    """The run of the bench: on 8 devices the demo's, on 16 with twice the batch, so that the even plan DP 4 x TP 2 x
    PP 2 is the planner's best healthy plan too; a layer takes longer, so that 16 ranks still mostly wait.
    """
    document: Row = {"name": f"situations-{num_devices}", "control": {"mode": mode}}
    if num_devices == 16:
        document |= {
            "cluster": {"num_nodes": 4},
            "train": {"global_batch": 32, "num_steps": 1_000},
            "parallel": {"dp": 4, "max_dp": 8},
            "device": {"layer_s": 0.08},
        }
    if layer_s is not None:
        document.setdefault("device", {})["layer_s"] = layer_s
    return RunConfig.model_validate(document)


def measure(
    config: RunConfig,
    situation: str,
    variant: str,
    *,
    drift_steps: int,
    say: Callable[[str], None],
    engine: EngineArgv = torchrun,
) -> Row:
    """One situation, or the drift, in one way, in a system of its own."""
    with tempfile.TemporaryDirectory(prefix="malleus-bench-") as home, StopSignals() as signals:
        settings = Settings.from_env({"MALLEUS_HOME": home})
        with LocalSystem(settings, has_dashboard=False, say=say, wait=signals.wait) as system:
            playing = Playing(system, signals, config, is_replanning=variant == "b", say=say, engine=engine)
            if situation != "drift":
                return one_situation(playing, situation, is_dropping=variant == "c")
            if variant == "c":
                return restarting_drift(playing, drift_steps)
            return live_drift(playing, drift_steps, has_failure=variant == "b")


def one_situation(playing: Playing, name: str, *, is_dropping: bool) -> Row:
    """A healthy phase, and one with the situation's stragglers."""
    slow = rates(name, playing.config.nodes)
    stays: Remaining | None = None

    def tale(phases: Phases) -> Iterator[None]:
        nonlocal stays
        yield from playing.measured(phases, "S0", {})
        if name == "S0":
            return
        yield from phases.begin(name, slow)
        if is_dropping:
            yield from phases.noticed()
            stays = remaining(playing.config, playing.profile(phases.run), slow)
            if len(stays.nodes) < len(playing.config.nodes):
                yield from playing.save(phases)
                return
        yield from phases.settle()
        yield from playing.steady(phases)

    run, phases = playing.follow(playing.config, {}, tale)
    reference, facts = playing.reference(run, phases.past[0])
    figures = playing.figures(run, phases.past[-1], reference)
    row = figures.to_json() | facts | {"cpu_busy": playing.busy}
    if stays is None:
        return row
    row |= {"nodes_left": list(stays.nodes), "restart_s": None}
    if playing.saved is None:
        return row
    smaller = reduced(playing.config, stays, start_from=playing.saved)
    run, phases = playing.follow(
        smaller, stays.local(slow), lambda phases: playing.measured(phases, name, stays.local(slow))
    )
    after = playing.figures(run, phases.past[-1], playing.reference(run, phases.past[-1])[0])
    first = history.steps(playing.store, run.id)[0]
    assert after.step_s is not None
    taken = ("step_s", "min_step_s", "max_step_s", "num_steps", "predicted_step_s", "plan")
    return (
        row
        | {field: getattr(after, field) for field in taken}
        | {
            "is_settled": True,
            "straggling_step_s": row["step_s"],
            "efficiency": row["bound_s"] / after.step_s,
            "restart_s": first.at.timestamp() - playing.asked_at,
            "cpu_busy": playing.busy,
        }
    )


def main(arguments: list[str] | None = None) -> int:
    names = [*DESCRIPTIONS, "drift"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", choices=(8, 16), default=[8, 16])
    parser.add_argument("--situations", nargs="+", choices=names, default=names, metavar="S")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--runs", type=int, default=3, help="of each; medians are shown")
    parser.add_argument("--drift-steps", type=int, default=50, help="steps of each phase of the drift")
    parser.add_argument("--layer-s", type=float, help="emulated seconds of a layer, instead of 0.04 and 0.08")
    parser.add_argument("--add", type=Path, metavar="FILE", help="lines of an earlier run, which count too")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args(arguments)
    for name in [name for name in os.environ if name.startswith("MALLEUS_")]:
        del os.environ[name]  # nobody's servers and data are to be touched
    rows: list[Row] = []
    if options.add is not None:
        earlier = [json.loads(text) for text in options.add.read_text(encoding="utf-8").splitlines() if text]
        rows += [row for row in earlier if "variant" in row]
    for devices in options.devices:
        for situation in options.situations:
            measured: dict[str, list[Row]] = {variant: [] for variant in options.variants}
            for _ in range(options.runs):  # the variants side by side in time: a noisy machine hits all
                for variant in options.variants:
                    config = configuration(
                        devices, mode="automatic" if variant == "b" else "off", layer_s=options.layer_s
                    )
                    measured[variant].append(
                        measure(config, situation, variant, drift_steps=options.drift_steps, say=_whisper)
                    )
            for variant, found in measured.items():
                row = {"devices": devices, "situation": situation, "variant": variant, "runs": len(found)}
                rows.append(row | {key: value for key, value in medians(found).items() if key not in row})
                print(json.dumps(rows[-1]) if options.json else _line(rows[-1]), flush=True)
    total = summary(rows)
    print(json.dumps(total) if options.json else "\n".join(_line(target) for target in total["targets"]), flush=True)
    return 0


def _line(row: Row) -> str:
    """A row for people."""
    return "  ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in row.items()
    )


def _whisper(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
