"""Exports of what a run has saved, and the line that shows how far it is."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.cli import main
from app.commands.progress import CLEAR_TO_END, PLAIN_S, Progress, progress_line
from app.local import commands as command_lines
from db import recorder, runs
from db.history import StepView
from db.messages import Checkpoint
from db.store import Store
from tests.app import seeded_store
from tests.app.seeded_run import SeededRun
from tests.app.story_rows import episode, step

EXPORTER = """
import pathlib, sys
values = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if pathlib.Path(values["--checkpoint"], "broken").exists():
    sys.exit("engine.export: the checkpoint misses\\nlayers.3.weight")
if pathlib.Path(values["--checkpoint"], "wrong").exists():
    print("expected a checkpoint, given a folder", file=sys.stderr)
    sys.exit(2)
out = pathlib.Path(values["--out"])
out.mkdir(exist_ok=True)
(out / "config.toml").write_text(pathlib.Path(values["--config"]).read_text())
(out / "from").write_text(values["--checkpoint"])
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    for name in ("MALLEUS_DATABASE_URL", "MALLEUS_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MALLEUS_HOME", str(tmp_path))
    monkeypatch.setattr(
        command_lines,
        "exporter",
        lambda checkpoint, config, out: [
            *(sys.executable, "-c", EXPORTER, "--checkpoint", str(checkpoint)),
            *("--config", str(config), "--out", str(out)),
        ],
    )
    with Store.open(seeded_store.database_url(tmp_path), migrate=True) as opened:
        yield opened


@pytest.fixture
def story(store: Store, tmp_path: Path) -> SeededRun:
    """A run with checkpoints of steps 20 and 40; their folders are there."""
    story = seeded_store.healthy_run(store, begin_at=datetime.now(UTC) - timedelta(minutes=30), num_steps=50)
    for number in (20, 40):
        save(story, tmp_path, number)
    return story


def save(story: SeededRun, folder: Path, number: int) -> Path:
    path = folder / f"step-{number}"
    path.mkdir()
    message = Checkpoint(**story._head(after_s=1.0), step=number, outcome="saved", path=str(path), num_bytes=1_234_567)
    recorder.record(story.store, story.id, [(f"{story.seq}-0", message)])
    return path


Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    def call(status: int, *arguments: str) -> str:
        assert main(arguments) == status
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        return captured.err

    return call


def test_checkpoints_as_a_table(story: SeededRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["40", "saved"], ["20", "saved"]]
    assert "1.23 MB" in lines[1]
    assert main(["checkpoints", "1", "--csv"]) == 0
    assert capsys.readouterr().out.startswith("id,step,status,path,num_bytes,pause_s,seconds,at,")
    assert main(["status", "1"]) == 0
    assert "checkpoint of step 40, saved " in capsys.readouterr().out


def test_without_checkpoints_it_says_how_to_get_one(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    seeded_store.healthy_run(store, begin_at=datetime.now(UTC) - timedelta(minutes=30), num_steps=5)
    assert main(["checkpoints", "1"]) == 0
    assert "`malleus checkpoint 1` asks for one" in capsys.readouterr().out


def test_the_newest_checkpoint_is_exported(
    story: SeededRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export-model", "1", "model", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"run": 1, "step": 40, "checkpoint": f"{tmp_path}/step-40", "out": f"{tmp_path}/model"}
    assert (tmp_path / "model" / "from").read_text() == f"{tmp_path}/step-40"
    assert 'name = "healthy"' in (tmp_path / "model" / "config.toml").read_text()
    assert main(["export-model", "1", "older", "--step", "20"]) == 0
    assert capsys.readouterr().out == f"run 1, step 20: exported to {tmp_path}/older\n"
    assert (tmp_path / "older" / "from").read_text() == f"{tmp_path}/step-20"


def test_an_export_writes_over_nothing(story: SeededRun, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine").touch()
    for path in (tmp_path / "model", tmp_path / "malleus.db"):
        assert refused(2, "export-model", "1", str(path)) == (
            f"malleus: the model needs a new or an empty folder, given {path}\n"
        )
    assert os.listdir(tmp_path / "model") == ["mine"]


def test_an_export_that_fails_says_what_the_exporter_said(story: SeededRun, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "step-40" / "broken").touch()
    out = str(tmp_path / "model")
    assert refused(1, "export-model", "1", out) == (
        f"malleus: the export of {tmp_path}/step-40 ended with status 1: "
        "engine.export: the checkpoint misses layers.3.weight\n"
    )
    (tmp_path / "step-20" / "wrong").touch()
    assert refused(2, "export-model", "1", out, "--step", "20") == (
        f"malleus: the export of {tmp_path}/step-20 ended with status 2: expected a checkpoint, given a folder\n"
    )


def test_what_cannot_be_exported(story: SeededRun, tmp_path: Path, refused: Refused) -> None:
    out = str(tmp_path / "model")
    assert "run 1 has no checkpoint of step 7, those it has: 40, 20" in refused(
        2, "export-model", "1", out, "--step", "7"
    )
    assert "unknown run 9" in refused(2, "export-model", "9", out)
    (tmp_path / "step-40").rmdir()
    assert "found nothing there" in refused(2, "export-model", "1", out, "--step", "40")
    assert not Path(out).exists()


def test_the_progress_line_says_all_that_is_known(story: SeededRun) -> None:
    run = runs.get(story.store, 1)
    last = StepView(**{name: getattr(step(49, 0.5), name) for name in StepView.__slots__} | {"mfu": 0.31})
    line = progress_line(run, last, [episode(3, start=10), episode(5, start=12, rate=math.nan)])
    assert line.startswith("run 1: training, step 50 of 2,000, loss ")
    assert ", grad norm -, " in line
    assert line.endswith(" a step, 2,048 tokens/s, MFU 31 %, plan v1, device 3 is the slowest at 2.57x")


def test_figures_of_the_attempt_before_are_not_shown_as_the_present(story: SeededRun) -> None:
    runs.watch_engine(story.store, 1, max_restarts=3)
    runs.engine_lost(story.store, 1, 137, delay_s=2.0)
    line = progress_line(runs.get(story.store, 1), step(49, 0.5), [])
    assert line == "run 1: lost (attempt 2), the engine exited with status 137; started again in 2 s (1 of 3)"


def test_in_a_terminal_one_line_is_rewritten(story: SeededRun) -> None:
    shown = Terminal()
    progress = Progress(story.store, shown)
    progress.say("run 1")
    for _ in range(3):
        progress.show(runs.get(story.store, 1))
        story.steps(1)
    progress.say("stopping")
    lines = shown.getvalue().split("\n")
    assert lines[0] == "run 1"
    assert lines[1].count("\r") == lines[1].count(CLEAR_TO_END) == 3
    assert max(len(part) for part in lines[1].split(CLEAR_TO_END)) <= 80 + len("\r…"), "it does not wrap"
    assert lines[2:] == ["stopping", ""]


def test_elsewhere_a_line_is_printed_now_and_then(story: SeededRun) -> None:
    shown, now = io.StringIO(), [0.0]
    progress = Progress(story.store, shown, clock=lambda: now[0])
    for _ in range(2 * int(PLAIN_S) + 1):
        progress.show(runs.get(story.store, 1))
        story.steps(1)
        now[0] += 1.0
    assert [line.split(", ")[1] for line in shown.getvalue().splitlines()] == [
        "step 50 of 2,000",
        "step 60 of 2,000",
        "step 70 of 2,000",
    ]
    runs.set_status(story.store, 1, "paused")
    progress.show(runs.get(story.store, 1))
    assert shown.getvalue().splitlines()[-1].startswith("run 1: paused, "), "a new state is said at once"
