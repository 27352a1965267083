"""A run before it is started: fields over a text, and problems at their fields and lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.run_draft import Problem, draft, line_of, origin_problem, preset_names, preset_text, usual_values
from db.errors import InputError
from db.run_config import ModelConfig, RunConfig

TEXT = """name = "mine"

[train]
num_steps = 50
global_batch = 32  # sequences

[cluster]
num_nodes = 2
"""


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_can_start(name: str, tmp_path: Path) -> None:
    found = draft(preset_text(name), {}, folder=tmp_path)
    assert found.problems == ()
    assert found.plan is not None
    assert len(found.plan.active) == found.config.num_devices
    assert found.config.name == name


def test_the_demo_is_the_first_preset_and_an_unknown_one_is_refused() -> None:
    assert preset_names()[0] == "demo"
    with pytest.raises(InputError, match="preset must be one of demo, "):
        preset_text("../demo")


def test_fields_are_laid_over_the_text(tmp_path: Path) -> None:
    values = usual_values(TEXT)
    assert values == {"name": "mine", "num_steps": 50, "num_nodes": 2, "devices_per_node": 4, "every_steps": 0}
    found = draft(TEXT, values | {"num_steps": 70, "every_steps": 10}, folder=tmp_path)
    assert found.config.train.num_steps == 70
    assert found.config.train.global_batch == 32, "the text's own"
    assert found.config.checkpoint.every_steps == 10


def test_pipelines_follow_the_devices(tmp_path: Path) -> None:
    found = draft(TEXT, {"num_nodes": 8}, folder=tmp_path)
    assert (found.config.parallel.dp, found.config.parallel.max_dp) == (8, 8)
    assert found.start is not None
    same = draft(TEXT, {"num_nodes": 2}, folder=tmp_path)
    assert same.config.parallel == RunConfig().parallel


@pytest.mark.parametrize(
    ("text", "field", "line", "said"),
    [
        ("name = 'x'\n[train\nnum_steps = 3", "", 2, "not valid TOML"),
        ("[train]\nnum_steps = 0", "train.num_steps", 2, "greater than or equal to 1, given 0"),
        ("[train]\nseed = 1\n[trane]\nx = 1", "trane", 3, "Extra inputs"),
        ("name = '?'", "name", 1, "String should match"),
        ("\n[model]\nhidden_size = 100", "model.hidden_size", 3, "hidden_size must be num_heads times"),
        ("[train]\nglobal_batch = 7\nmicro_batch_sizes = [2]", "train.micro_batch_sizes", 3, "must divide"),
        ("[data]\nsource = 'nowhere'", "data.source", 2, "existing file or folder"),
        ("[parallel]\npp = 4", "plan", None, "needs 8 groups of 2 devices"),
        ("[parallel]\ntp = 3", "parallel.tp", 2, "Input should be 1, 2, 4 or 8"),
    ],
)
def test_a_problem_stands_at_its_field_and_line(
    text: str, field: str, line: int | None, said: str, tmp_path: Path
) -> None:
    found = draft(text, {}, folder=tmp_path)
    assert found.start is None
    problem = found.problems[0]
    assert (problem.field, problem.line) == (field, line)
    assert said in problem.text
    assert found.at(field)


def test_a_field_of_the_form_has_its_own_problem(tmp_path: Path) -> None:
    found = draft(TEXT, {"name": ""}, folder=tmp_path)
    assert found.at("name") == ["String should have at least 1 character, given ''"]
    assert isinstance(usual_values("="), Problem)


def test_lines() -> None:
    assert line_of(TEXT, "train.global_batch") == 5
    assert line_of(TEXT, "train.seed") == 3, "its section"
    assert line_of(TEXT, "model.num_layers") is None


def test_a_checkpoint_of_another_model_is_no_origin() -> None:
    other = RunConfig(model=ModelConfig(num_layers=8))
    assert origin_problem(RunConfig(), RunConfig(name="other")) == ""
    assert origin_problem(RunConfig(), other) == "its model is another one: num_layers 8, here 16"
