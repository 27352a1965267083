"""The start of a run, as command line and page share it: registered once, handed to a trainer, never lost."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.errors import LocalError
from app.local import detached
from app.local.run_start import prepared, register
from db import audit, plans, runs
from db.errors import ConfigError, InputError
from db.run_config import ModelConfig, RunConfig
from db.settings import Settings
from db.store import Store
from engine.parameters import parameters
from planner.errors import PlanError
from tests.app.local_world import wait_for
from tests.app.seeded_store import database_url


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_env({"MALLEUS_HOME": str(tmp_path)})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(database_url(tmp_path), migrate=True) as opened:
        yield opened


def test_a_run_is_registered_once(store: Store, tmp_path: Path) -> None:
    start = prepared(RunConfig(name="once"), tmp_path)
    first = register(store, start, actor="ann", source="dashboard", key="form-1")
    assert register(store, start, actor="bob", source="dashboard", key="form-1") == first
    assert register(store, start, actor="bob", source="dashboard", key="form-2").id != first.id
    assert len(runs.all_runs(store)) == 2
    told = audit.entries(store, first.id)[-1]
    assert (told.action, told.actor, told.source) == ("run.create", "ann", "dashboard")
    assert plans.get(store, first.id, 1).requested_by == "ann"


def test_what_cannot_start_is_refused_before(store: Store, tmp_path: Path) -> None:
    with pytest.raises(PlanError):
        prepared(RunConfig.from_toml("[parallel]\npp = 4\n"), tmp_path)
    with pytest.raises(InputError, match=r"data\.source must be"):
        prepared(RunConfig.from_toml('[data]\nsource = "nowhere"\n'), tmp_path)
    with pytest.raises(InputError, match=r"checkpoint\.start_from must be a folder"):
        prepared(RunConfig(), tmp_path).starting_from(tmp_path / "nowhere")


def test_problems_of_a_configuration_come_by_field() -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_toml('name = "?"\n[train]\nnum_steps = 0\nsteps = 3\n')
    assert [field for field, _ in caught.value.problems] == ["name", "train.num_steps", "train.steps"]
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_toml("[model]\nhidden_size = 100\n")
    assert [field for field, _ in caught.value.problems] == [""]


@pytest.mark.parametrize("is_tied", [False, True])
def test_parameters_are_counted_as_the_engine_has_them(is_tied: bool) -> None:
    model = ModelConfig(num_layers=3, hidden_size=96, num_heads=6, num_kv_heads=2, ffn_size=80, tie_embeddings=is_tied)
    assert model.num_parameters == sum(parameter.num_elements for parameter in parameters(model))


def test_a_trainer_that_cannot_be_started_fails_the_run(
    store: Store, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = register(store, prepared(RunConfig(), tmp_path), actor="ann", source="cli")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(LocalError, match="cannot start the trainer"):
        detached.start(store, settings, run.id, max_restarts=3)
    ended = runs.get(store, run.id)
    assert ended.status == "failed"
    assert "its trainer could not be started" in ended.reason


def test_a_trainer_that_dies_at_once_fails_the_run_and_leaves_no_zombie(
    store: Store, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = register(store, prepared(RunConfig(), tmp_path), actor="ann", source="dashboard")
    monkeypatch.setattr(detached, "MODULE", "app.local.no_such_module")
    pid = detached.start(store, settings, run.id, max_restarts=3)
    detached.attend(store, run.id, pid).join(60)
    ended = runs.get(store, run.id)
    assert (ended.status, ended.reason) == (
        "failed",
        "the engine exited with status 1; its trainer ended before it",
    )
    assert "no_such_module" in (settings.home / "runs" / str(run.id) / "trainer.log").read_text()
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the process is gone")
    assert os.getpid() != pid
