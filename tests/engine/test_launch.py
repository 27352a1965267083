"""The launcher's exit status is its ranks': a launcher above it decides by that whether starting again may help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ENDING = """
import os, signal, sys
rank, ending = int(os.environ["RANK"]), sys.argv[1]
if ending == "killed" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit({"done": 0, "wrong": 2, "failed": 1, "killed": 0}[ending])
"""


@pytest.mark.parametrize(("ending", "status"), [("done", 0), ("wrong", 2), ("failed", 1), ("killed", 1)])
def test_exit_status(tmp_path: Path, ending: str, status: int) -> None:
    script = tmp_path / "rank.py"
    script.write_text(ENDING)
    argv = [sys.executable, "-m", "engine.launch", "--standalone", "--nproc-per-node", "2", str(script), ending]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == status, ended.stderr
    if ending == "killed":
        assert "rank      : 1" in ended.stderr
        assert "SIGKILL" in ended.stderr
