"""Bundles: what `export` writes is enough for `replay` to find the same plan, on a machine without the store."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli import main
from app.plan_bundle import Bundle, bundle_of
from app.plan_replay import replay
from db import plans
from db.errors import InputError
from db.store import Store
from planner.worker import solve_plan
from tests.app import seeded_store
from tests.app.seeded_run import SeededRun
from tests.app.seeded_store import database_url, tell_until_now


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("MALLEUS_HOME", str(tmp_path))
    monkeypatch.delenv("MALLEUS_DATABASE_URL", raising=False)
    with Store.open(database_url(tmp_path), migrate=True) as opened:
        yield opened


@pytest.fixture
def story(store: Store) -> SeededRun:
    """Version 2 of this run was searched for by the real planner."""
    told = tell_until_now(store, seeded_store.healthy_run)
    searched(told, {3: 2.57})
    return told


def searched(story: SeededRun, rates: dict[int, float]) -> int:
    asked = plans.request(
        story.store, story.id, trigger="shift", rates=rates, parent=1, requested_by="controller", key=str(rates)
    )
    solve_plan(story.store, story.id, asked.version, worker="w")
    return asked.version


def bundle(story: SeededRun, version: int) -> Bundle:
    return bundle_of(plans.get(story.store, story.id, version), plans.job(story.store, story.id, version))


@pytest.mark.parametrize("rates", [{3: 2.57}, {5: math.inf}, {}])
def test_the_same_plan_comes_out_again(story: SeededRun, rates: dict[int, float]) -> None:
    written = bundle(story, searched(story, rates)).to_text()
    json.loads(written, parse_constant=pytest.fail)  # strict JSON
    outcome = replay(Bundle.from_text(written))
    assert outcome.is_same, outcome.sentences()
    assert not outcome.is_cut_short
    assert outcome.sentences()[0].startswith("same: plan ")


def test_another_question_has_another_answer(story: SeededRun) -> None:
    document = json.loads(bundle(story, 2).to_text())
    document["job"]["rates"]["3"] = 12.53
    outcome = replay(Bundle.from_text(json.dumps(document)))
    assert {"plan", "bound", "step of staying"} <= {entry.what for entry in outcome.differences}
    assert "in the bundle" in outcome.sentences()[1]


def test_a_forged_answer_is_noticed(story: SeededRun) -> None:
    document = json.loads(bundle(story, 2).to_text())
    document["answer"]["runners_up"] = document["answer"]["runners_up"][:-1]
    document["answer"]["predicted_s"] *= 1.001
    outcome = replay(Bundle.from_text(json.dumps(document)))
    assert [entry.what for entry in outcome.differences] == ["predicted step", "runners-up"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "a bundle is JSON, given something else"),
        ("[]", "has the kind 'malleus plan' .*, given 'list'"),
        ('{"kind": "x"}', "given 'x'"),
        ('{"kind": "malleus plan", "schema": 9}', "a bundle has schema 1, given 9"),
        ('{"kind": "malleus plan", "schema": 1, "job": {}}', "missing or unknown: about, answer"),
        ("[" * 100_000, "a bundle is JSON"),
    ],
)
def test_what_is_no_bundle_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Bundle.from_text(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rates", {"x": 1}),
        ("rates", {"3": -1}),
        ("rates", None),
        ("cluster", {}),
        ("profile", []),
        ("current", "p"),
        ("time_limit_s", "x"),
    ],
)
def test_a_malformed_job_is_refused_and_not_a_traceback(story: SeededRun, field: str, value: object) -> None:
    document = json.loads(bundle(story, 2).to_text())
    document["job"][field] = value
    with pytest.raises(InputError, match="cannot be searched"):
        replay(Bundle.from_text(json.dumps(document)))


def test_plans_without_a_search_have_no_bundle(story: SeededRun) -> None:
    with pytest.raises(InputError, match="plan 1 of run 1 was not searched for: the run was created with it"):
        bundle(story, 1)
    asked = plans.request(
        story.store, story.id, trigger="shift", rates={}, parent=1, requested_by="controller", key="q"
    )
    with pytest.raises(InputError, match="no worker took it up"):
        bundle(story, asked.version)
    plans.claim(story.store, story.id, asked.version, worker="w")
    with pytest.raises(InputError, match="has no answer yet: it is solving"):
        bundle(story, asked.version)


def test_export_and_replay_from_the_command_line(
    story: SeededRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["export", "1", "2"]) == 0
    text = capsys.readouterr().out
    file = tmp_path / "bundle.json"
    assert main(["export", "1", "2", "--out", str(file)]) == 0
    assert file.read_text() == text
    assert main(["replay", str(file)]) == 0
    assert capsys.readouterr().out.startswith("same: plan 2 of run 1 comes out again")
    document = json.loads(text)
    document["answer"]["bound_s"] *= 2
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(document)))
    assert main(["replay", "-", "--json"]) == 1
    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["same"], [entry["what"] for entry in outcome["differences"]]) == (False, ["bound"])
    assert main(["replay", str(tmp_path / "nothing.json")]) == 2
    assert main(["export", "1", "1"]) == 2
    assert main(["export", "1", "2", "--out", str(tmp_path)]) == 1
