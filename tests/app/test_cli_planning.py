"""`plan` needs neither store nor broker; `plan-diff` reads two plans of a run."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.cli import main
from app.commands.planning import parse_rates
from app.plan_text import plan_text
from db.store import Store
from planner import presets
from planner.plan import Plan
from tests.app import seeded_store
from tests.app.seeded_run import standby_plan


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MALLEUS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MALLEUS_DATABASE_URL", f"sqlite:///{tmp_path / 'malleus.db'}")
    monkeypatch.setenv("MALLEUS_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_plan_is_drawn_with_its_figures(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    assert main(["plan", "--rates", "3=2.57"]) == 0
    out = capsys.readouterr().out
    assert "step time" in out
    assert "bound" in out
    assert "(2.57x)" in out
    assert "#" in out
    assert not any(home.iterdir())  # offline: nothing is written


def test_json_is_the_solve_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--rates", "3=2.57", "--json", "--seed", "1"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["status"] == "improved"
    best = Plan.from_json(result["plans"][0]["plan"])
    assert sorted((*best.active, *best.standby)) == list(range(8))
    assert result["bound_s"] <= result["plans"][0]["step_s"]


def test_a_failed_device_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--rates", "5=inf", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert Plan.from_json(result["plans"][0]["plan"]).failed == (5,)


def test_files_instead_of_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile, train = presets.model("demo")
    cluster = presets.uniform_cluster(1, 4, memory_bytes=1e9)
    (tmp_path / "model.json").write_text(json.dumps({"profile": profile.to_json(), "train": train.to_json()}))
    (tmp_path / "cluster.json").write_text(json.dumps(cluster.to_json()))
    assert main(["plan", "--model", "model.json", "--cluster", "cluster.json", "--global-batch", "8", "--json"]) == 0
    best = Plan.from_json(json.loads(capsys.readouterr().out)["plans"][0]["plan"])
    assert best.num_micro_batches == 8
    assert len(best.active) == 4


def test_no_plan_is_status_1_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = presets.uniform_cluster(1, 4, memory_bytes=1.0)  # nothing fits into a byte
    (tmp_path / "cluster.json").write_text(json.dumps(cluster.to_json()))
    assert main(["plan", "--cluster", "cluster.json"]) == 1
    assert capsys.readouterr().out.startswith("infeasible: ")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--rates", "3=nan"], "rate of device 3 must be positive"),
        (["--rates", "3=0"], "rate of device 3 must be positive"),
        (["--rates", "3=-1"], "rate of device 3 must be positive"),
        (["--rates", "8=2"], "device must be one of [0, 1, 2, 3, 4, 5, 6, 7], given 8"),
        (["--rates", "3"], "--rates must be device=rate pairs such as 3=2.57,9=inf, given '3'"),
        (["--rates", "3=2,3=4"], "--rates must name a device once, given 3 twice"),
        (["--model", "gpt"], "--model must be one of demo, "),
        (["--cluster", "moon"], "--cluster must be one of demo, "),
        (["--model", "broken.json"], "broken.json is not readable JSON"),
        (["--model", "list.json"], "list.json must hold a JSON object, given list"),
        (["--model", "half.json"], 'half.json must hold "profile" and "train", given profile'),
        (["--cluster", "half.json"], "a cluster needs nodes and memory_bytes"),
        (["--global-batch", "0"], "--global-batch"),
        (["--seed", "x"], "--seed"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    (home / "broken.json").write_text("{")
    (home / "list.json").write_text("[]")
    (home / "half.json").write_text('{"profile": {}}')
    assert main(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("malleus: ")
    assert captured.err.count("\n") == 1
    assert expected in captured.err


@pytest.mark.parametrize(
    ("text", "rates"),
    [("", {}), ("3=2.57,9=inf", {3: 2.57, 9: float("inf")}), (" 3 = 2 , ", {3: 2.0})],
)
def test_rates(text: str, rates: dict[int, float]) -> None:
    assert parse_rates(text) == rates


def test_plan_diff(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(seeded_store.database_url(home), migrate=True) as store:
        seeded_store.straggling_run(store, begin_at=datetime.now(UTC) - timedelta(minutes=30))
    assert main(["plan-diff", "1", "1", "2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("run 1, plan v1 -> v2\n")
    assert "device 3: " in out
    assert main(["plan-diff", "1", "1", "1"]) == 0
    assert capsys.readouterr().out.endswith("no change\n")
    assert main(["plan-diff", "1", "1", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["old"], document["new"]) == (1, 2)
    assert document["sentences"]
    assert main(["plan-diff", "1", "1", "9"]) == 2
    assert capsys.readouterr().err == "malleus: run 1 has no plan 9, known versions: 1, 2\n"


def test_the_drawing_shows_standby_and_failed_devices() -> None:
    drawn = plan_text(standby_plan(), {3: 5.42})
    assert "pipeline 0, 9 micro-batches of 1" in drawn
    assert "  devices 0 1  TP 2  layers  0-10  ###########....." in drawn
    assert "standby: device 3 (5.42x)" in drawn
    assert "failed: device 5" in drawn
