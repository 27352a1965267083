"""A planning process that is killed at any moment leaves no solver process and no temporary file."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PLANNING = """
from planner.presets import cluster, model
from planner.solve import solve

profile, train = model("70b")
print("ready", flush=True)
for seed in range(1000):
    solve(cluster=cluster("64"), profile=profile, train=train, rates={3: 2.57, 17: 5.42, 40: 12.5}, seed=seed)
"""
DIVIDING = """
from planner.presets import cluster, model
from planner.solve import solve

profile, train = model("demo")
print("ready", flush=True)
for seed in range(1000):
    solve(cluster=cluster("demo"), profile=profile, train=train, rates={3: 2.57, 5: 5.42}, seed=seed)
"""


def _members(session: int) -> list[str]:
    """Command lines of the processes of a session that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads Linux's /proc to find what was left running")
@pytest.mark.parametrize("script", [PLANNING, DIVIDING], ids=["many devices", "few devices"])
def test_killing_the_planner_leaves_nothing(tmp_path: Path, script: str) -> None:
    draw = random.Random(1)
    temporary, folder = tmp_path / "tmp", tmp_path / "here"
    temporary.mkdir()
    folder.mkdir()
    root = str(Path(__file__).parents[2])
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=folder,
            env=os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(draw.uniform(0, 0.8))  # the moment of the kill is what is drawn
            assert process.poll() is None, "it was planning when it was killed"
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert _members(process.pid) == []
    assert list(temporary.iterdir()) == []
    assert list(folder.iterdir()) == []
