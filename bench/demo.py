"""Measures the whole loop: the headless demo, several times, with and without re-planning.

    python bench/demo.py [--situation S1] [--runs 3]

Prints one JSON object: every run's own figures, the medians, and the ratios that matter. Each pair
(with and without re-planning) runs side by side in time, so a noisy machine hits both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NUMBERS = (
    "healthy_step_s",
    "straggling_step_s",
    "recovered_step_s",
    "bound_step_s",
    "efficiency",
    "detect_s",
    "plan_s",
    "switch_s",
    "bytes_moved",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--situation", default="S1")
    parser.add_argument("--runs", type=int, default=3, help="pairs of runs")
    arguments = parser.parse_args()
    with_plan, without = [], []
    for _ in range(arguments.runs):
        with_plan.append(_demo(arguments.situation))
        without.append(_demo(arguments.situation, "--no-replan"))
    medians = {name: _median(run[name] for run in with_plan) for name in NUMBERS}
    print(
        json.dumps(
            {
                "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
                "situation": arguments.situation,
                "runs": with_plan,
                "runs_without_replan": without,
                "medians": medians,
                "recovered_over_bound": _median(run["recovered_step_s"] / run["bound_step_s"] for run in with_plan),
                "cost_without_replan": _median(run["straggling_step_s"] / run["healthy_step_s"] for run in without),
            }
        )
    )
    return 0


def _demo(situation: str, *options: str) -> dict[str, Any]:
    """One demo in a data folder of its own; fails loudly if it does."""
    with tempfile.TemporaryDirectory() as home:
        command = [str(Path(sys.executable).parent / "malleus"), "demo", "--headless", "--json"]
        done = subprocess.run(
            [*command, "--situation", situation, *options],
            env={**os.environ, "MALLEUS_HOME": home},
            stdout=subprocess.PIPE,
            check=False,
            text=True,
        )
    figures: dict[str, Any] = json.loads(done.stdout)
    return {**figures, "exit_status": done.returncode}


def _median(values: Any) -> float:
    return statistics.median(list(values))


if __name__ == "__main__":
    sys.exit(main())
