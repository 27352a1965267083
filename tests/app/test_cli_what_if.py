"""`malleus plan` as a what-if: files beside the result, the move from a current plan, limits, presets."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import highspy
import pytest

from app.cli import main
from app.dashboard import quantities as q
from app.plan_program import write_program
from app.plan_text import plan_text
from app.plan_timeline import MOST_EVENTS, figure, write_timeline
from planner import presets
from planner.cost import plan_step_s, timeline
from planner.plan import Pipeline, Plan, Stage, even_plan
from planner.spec import ModelProfile


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def demo_plan() -> Plan:
    """The uniform plan of the demo job: 2 pipelines of 2 stages of TP 2."""
    return even_plan(
        presets.cluster("demo").nodes,
        num_layers=16,
        num_micro_batches=16,
        micro_batch_size=1,
        dp_degree=2,
        tp_degree=2,
        pp_degree=2,
    )


def plan_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    main(["plan", *arguments, "--json"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.mark.parametrize(
    ("model", "cluster", "dp_degree"),
    [("32b", "32", 4), ("70b", "64", 2), ("110b", "64", 2)],
)
def test_the_papers_models_are_planned(
    capsys: pytest.CaptureFixture[str], model: str, cluster: str, dp_degree: int
) -> None:
    result = plan_json(capsys, "--model", model, "--cluster", cluster, "--rates", "0=5.42,8=3.75,16=2.57")
    plan = Plan.from_json(result["plans"][0]["plan"])
    assert result["status"] == "improved"
    assert len(plan.pipelines) == dp_degree
    assert len((*plan.active, *plan.standby)) == int(cluster)


def test_the_program_is_one_that_a_solver_reads(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = plan_json(capsys, "--rates", "3=2.57", "--write-lp", "plan.lp")
    best = result["plans"][0]
    plan = Plan.from_json(best["plan"])
    written = result["lp"]
    assert written["path"] == "plan.lp"
    assert written["step_s"] == best["step_s"]
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    assert solver.readModel("plan.lp") == highspy.HighsStatus.kOk
    assert solver.getNumCol() == written["num_variables"]
    assert solver.getNumRow() == written["num_rows"]
    solver.run()
    is_solved = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    assert is_solved or written["missed"]  # what keeps every row shows that there is a solution
    text = (home / "plan.lp").read_text()
    assert f"into {len(plan.pipelines)} pipelines" in text
    for pipeline in plan.pipelines:
        assert f"{pipeline.num_micro_batches} micro-batches" in text


def test_rows_that_the_plan_does_not_keep_are_named(home: Path) -> None:
    plan, cluster, (profile, _) = demo_plan(), presets.cluster("demo"), presets.model("demo")
    step_s = plan_step_s(plan, profile, {})
    tight = write_program(home / "tight.lp", plan, 0.5 * step_s, cluster=cluster, profile=profile, rates={})
    assert tight.missed == ("in_time_0", "in_time_1")
    assert "does not keep: in_time_0, in_time_1\n" in (home / "tight.lp").read_text()
    loose = write_program(home / "loose.lp", plan, 2 * step_s, cluster=cluster, profile=profile, rates={})
    assert loose.missed == ()


def test_the_search_says_what_it_did_and_what_came_second(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "110b", "--cluster", "64", "--rates", "0=5.42,8=3.75,16=2.57"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^search\n(  .*\n)*  [\d.]+ s: b 1, tp \d, dp 2: ", out, re.MULTILINE)
    assert re.search(r"^bound +\d+ s \(gap \d+\.\d %\)$", out, re.MULTILINE)
    assert re.search(r"^solved in +[\d.]+ m?s$", out, re.MULTILINE)
    assert main(["plan", "--model", "demo", "--cluster", "demo", "--rates", "3=2.57"]) == 0
    assert re.search(r"^runners-up\nplan +step +slower", capsys.readouterr().out, re.MULTILINE)


def test_the_timeline_is_one_page_that_fetches_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--rates", "3=2.57", "--timeline", "plan.html"]) == 0
    out = capsys.readouterr().out
    assert out.endswith("\nwrote plan.html\n")
    page = (home / "plan.html").read_text(encoding="utf-8")
    assert len(page) > 1e6  # plotly.js is in it
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=[\"'](?!data:)[^>]*>", page)
    assert "Timeline of a step: demo on demo" in page


def test_the_timeline_draws_every_event_and_every_wait() -> None:
    plan, (profile, _) = demo_plan(), presets.model("demo")
    events = timeline(plan, profile, {3: 2.57})
    chart = figure(plan, events, profile=profile, rates={3: 2.57}, shown=[0, 1])
    traces = {trace["name"]: trace for trace in chart["data"]}
    assert set(traces) == {"forward", "backward", "idle", "gradient sync and optimizer"}
    assert len(traces["forward"]["x"]) == len(traces["backward"]["x"]) == 16 * 2
    # Told apart by hatching and letter, not only by colour.
    assert len({trace["marker"]["pattern"]["shape"] for trace in chart["data"]}) == 4
    assert traces["forward"]["text"][0] == "F0"
    assert traces["backward"]["text"][0] == "B0"
    assert traces["backward"]["hovertext"][0].startswith("<b>backward of micro-batch 0</b><br>")
    # In every lane the bars fill the step without a hole.
    step_s = plan_step_s(plan, profile, {3: 2.57})
    filled: dict[str, float] = {}
    for trace in chart["data"]:
        for lane, length in zip(trace["y"], trace["x"], strict=True):
            assert length > 0
            filled[lane] = filled.get(lane, 0.0) + length
    assert len(filled) == 4
    assert list(filled.values()) == pytest.approx([step_s] * 4)
    assert any("device" in lane and f"(2.57{q.TIMES})" in lane for lane in filled)


def test_a_large_plan_is_drawn_in_part(home: Path) -> None:
    profile, _ = presets.model("demo")
    count = MOST_EVENTS // 4
    pipelines = tuple(
        Pipeline(num_micro_batches=number, stages=(Stage(devices=(device,), layers=(0, 16)),))
        for device, number in enumerate((count, count + 2, count + 1))
    )
    plan = Plan(num_layers=16, micro_batch_size=1, pipelines=pipelines)
    path = home / "plan.html"
    assert write_timeline(path, plan, 1.0, profile=profile, rates={}, title="a < b") == 1
    page = path.read_text(encoding="utf-8")
    assert "Drawn: the 1 slowest of 3 pipelines." in page
    assert "<title>a &lt; b</title>" in page


def test_a_move_that_pays(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "now.json").write_text(json.dumps(demo_plan().to_json()))
    arguments = ["--rates", "3=5.42", "--current", "now.json"]
    move = plan_json(capsys, *arguments)["move"]
    assert move["choice"] == "move"
    assert move["moved_bytes"] > 0
    assert move["pause_s"] > 0
    assert (
        move["gain_s"] * move["steps_to_pay_back"] > move["pause_s"] >= move["gain_s"] * (move["steps_to_pay_back"] - 1)
    )
    assert main(["plan", *arguments]) == 0
    out = capsys.readouterr().out
    assert "pays back   after " in out
    assert "pause " in out
    assert all(f"  {sentence}\n" in out for sentence in move["diff"]["sentences"][:3])
    assert "runners-up\n" in out


def test_staying_is_a_result(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "best.json").write_text(json.dumps(plan_json(capsys, "--rates", "3=2.57")))  # a result does as well
    assert main(["plan", "--rates", "3=2.57", "--current", "best.json"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("no-better-plan: ")
    assert "\nstay: " in out
    assert "nothing to gain" in out
    move = plan_json(capsys, "--rates", "3=2.57", "--current", "best.json")["move"]
    assert (move["choice"], move["steps_to_pay_back"]) == ("stay", None)
    assert move["diff"]["devices"] == []


def test_too_few_steps_are_no_reason_to_move(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "now.json").write_text(json.dumps(demo_plan().to_json()))
    move = plan_json(capsys, "--rates", "3=5.42", "--current", "now.json", "--steps", "0")["move"]
    assert (move["choice"], move["reason"]) == ("stay", "stay: no step is left to gain from")


def test_a_current_plan_that_cannot_run_pays_back_at_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "now.json").write_text(json.dumps(demo_plan().to_json()))
    arguments = ["--rates", "3=inf", "--current", "now.json"]
    move = plan_json(capsys, *arguments)["move"]
    assert (move["choice"], move["gain_s"], move["steps_to_pay_back"]) == ("move", "Infinity", 0)
    assert main(["plan", *arguments]) == 0
    out = capsys.readouterr().out
    assert "current     cannot run" in out
    assert "pays back   at once" in out


def test_limits_of_the_search(capsys: pytest.CaptureFixture[str]) -> None:
    result = plan_json(capsys, "--dp", "1-2", "--max-tp", "2", "--micro-batch", "1")
    for ranked in result["plans"]:
        plan = Plan.from_json(ranked["plan"])
        assert plan.dp_degree in (1, 2)
        assert max(stage.tp_degree for _, _, stage in plan.places()) <= 2
    assert {len(ranked["plan"]["pipelines"]) for ranked in plan_json(capsys, "--dp", "1")["plans"]} == {1}


def test_infeasible_names_the_constraint_and_what_would_help(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "32b", "--cluster", "32", "--dp", "4", "--max-tp", "1"]
    assert main(["plan", *arguments, "--write-lp", "plan.lp", "--timeline", "plan.html"]) == 1
    out = capsys.readouterr().out
    assert re.match(r"infeasible: memory: .* \d+ % more memory on every device would be enough\n", out)
    assert "would help  --max-tp 2" in out
    assert not any(home.iterdir())
    result = plan_json(capsys, *arguments)
    assert result["status"] == "infeasible"
    assert result["relaxed_by"][0] == "--max-tp 2"
    assert main(["plan", *arguments[:-1], "2"]) == 0  # and it does help


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_a_file_that_cannot_be_written_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--write-lp", "/dev/full"]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("improved: ")  # the result is not lost
    assert captured.err == "malleus: /dev/full cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--dp", "x"], "--dp must be a number such as 2 or a range such as 1-4, given 'x'"),
        (["--dp", "3-1"], "dp_range must be 1 <= low <= high, given (3, 1)"),
        (["--dp", "0"], "dp_range must be 1 <= low <= high, given (0, 0)"),
        (["--max-tp", "3"], "max_tp must be one of (1, 2, 4, 8), given 3"),
        (["--micro-batch", "one"], "--micro-batch must be numbers such as 1,2, given 'one'"),
        (["--micro-batch", "3"], "micro_batch_sizes must be divisors of global_batch 16, given [3]"),
        (["--micro-batch", "2"], "micro_batch_sizes must name one that the profile knows [1], given [2]"),
        (["--steps", "-1"], "--steps"),
        (["--write-lp", "nowhere/plan.lp"], "--write-lp must be a file in a folder that exists"),
        (["--timeline", "."], "--timeline must be a file in a folder that exists"),
        (["--write-lp", "x", "--timeline", "x"], "--write-lp and --timeline must be two files, given 'x' twice"),
        (["--current", "missing.json"], "--current missing.json is not readable JSON"),
        (["--current", "broken.json"], "--current broken.json is not readable JSON"),
        (["--current", "list.json"], "--current list.json: plan refused: a plan is a JSON object, given list"),
        (["--current", "none.json"], "--current none.json must hold a plan, given a result without any"),
        (["--current", "plan.json", "--cluster", "32"], "--current plan.json does not fit this cluster"),
        (["--current", "plan.json", "--global-batch", "8"], "must be the global batch 8, given 16 x 1 = 16"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    (home / "broken.json").write_text("{")
    (home / "list.json").write_text("[]")
    (home / "none.json").write_text('{"plans": []}')
    (home / "plan.json").write_text(json.dumps(demo_plan().to_json()))
    before = sorted(home.iterdir())
    assert main(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("malleus: ")
    assert captured.err.count("\n") == 1
    assert expected in captured.err
    assert sorted(home.iterdir()) == before


def test_the_narrowest_stage_is_still_drawn() -> None:
    stages = tuple(Stage(devices=(place,), layers=(first, first + 1)) for place, first in enumerate(range(80)))
    plan = Plan(num_layers=80, micro_batch_size=1, pipelines=(Pipeline(num_micro_batches=80, stages=stages),))
    lines = plan_text(plan).splitlines()[1:]
    assert all("#" in line for line in lines)
    assert len({len(line.split()[-1]) for line in lines}) == 1


def test_the_profile_of_a_preset_survives_its_file(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile, train = presets.model("32b")
    (home / "model.json").write_text(json.dumps({"profile": profile.to_json(), "train": train.to_json()}))
    assert ModelProfile.from_json(profile.to_json()) == profile
    arguments = ["--cluster", "32", "--rates", "0=2.57"]
    by_file = plan_json(capsys, "--model", "model.json", *arguments)
    assert by_file["plans"] == plan_json(capsys, "--model", "32b", *arguments)["plans"]
