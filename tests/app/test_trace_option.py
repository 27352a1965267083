"""`malleus train --trace-step`: what the engine is told, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import app
from app.local import commands


def test_the_engine_is_told_the_step_and_a_path_in_the_runs_folder() -> None:
    asked = (3, 8, Path("/data/runs/3/run.toml"), Path("/data/runs/3/checkpoints"))
    argv = commands.torchrun_with_trace(12)(*asked)
    plain = commands.torchrun(*asked)
    assert argv == [*plain, "--trace-step", "12", "--trace-out", "/data/runs/3/step-12-trace.json"]


def test_a_trace_of_a_detached_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLEUS_HOME", str(tmp_path))
    config = tmp_path / "run.toml"
    config.write_text('name = "traced"\n', encoding="utf-8")
    result = CliRunner().invoke(app, ["train", str(config), "--detach", "--trace-step", "2"])
    assert result.exit_code != 0
    assert "--trace-step needs --follow" in f"{result.output} {result.exception}"
