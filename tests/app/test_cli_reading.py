"""Commands that read: tables for people, strict JSON and CSV for programs, one line for errors."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.cli import main
from db.store import Store
from tests.app import seeded_store

Run = Callable[..., str]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    for name in ("MALLEUS_DATABASE_URL", "MALLEUS_REDIS_URL", "MALLEUS_HOST", "MALLEUS_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MALLEUS_HOME", str(tmp_path))
    with Store.open(seeded_store.database_url(tmp_path), migrate=True) as opened:
        yield opened


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command that succeeds and returns what it prints."""

    def call(*arguments: str) -> str:
        capsys.readouterr()
        status = main(arguments)
        captured = capsys.readouterr()
        assert (status, captured.err) == (0, "")
        return captured.out

    return call


def _begin_at() -> datetime:
    return datetime.now(UTC) - timedelta(minutes=30)


def test_without_runs_it_says_what_to_do_next(store: Store, run: Run) -> None:
    assert "malleus train CONFIG.toml" in run("runs")
    assert json.loads(run("runs", "--json")) == []
    assert run("runs", "--csv").startswith("run,name,status")


def test_runs(store: Store, run: Run) -> None:
    seeded_store.healthy_run(store, begin_at=_begin_at())
    seeded_store.straggling_run(store, begin_at=_begin_at())
    lines = run("runs").splitlines()
    assert lines[0].split()[:3] == ["run", "name", "status"]
    assert [line.split()[0] for line in lines[1:]] == ["2", "1"]  # newest first
    listed = json.loads(run("runs", "--json", "--limit", "1"))
    assert [(entry["id"], entry["status"], entry["active_plan_version"]) for entry in listed] == [(2, "training", 2)]
    rows = list(csv.DictReader(io.StringIO(run("runs", "--csv", "--offset", "1"))))
    assert [(row["id"], row["name"]) for row in rows] == [("1", "healthy")]
    assert json.loads(rows[0]["config"])["cluster"]["num_nodes"] == 2


def test_status_names_the_straggler_the_plan_and_the_injection(store: Store, run: Run) -> None:
    seeded_store.straggling_run(store, begin_at=_begin_at())
    shown = run("status", "1")
    assert "run 1  llama-16L  training  plan v2 (automatic)" in shown
    assert "! device 3 is 2.57x slow since" in shown
    assert "injected: device 3 at 2.57x (active)" in shown
    assert "grad norm 0.725  learning rate 0.003  " in shown
    assert "tokens/s  MFU 16.3 %" in shown
    assert "evaluation before step 80: loss " in shown
    assert "attempt" not in shown, "it was started once"
    assert "devices 0 1" in shown
    assert "...#########...." in shown  # layers 3-11 of 16, to scale
    document = json.loads(run("status", "1", "--json"))
    assert document["run"]["id"] == 1
    assert len(document["devices"]) == 8
    assert document["plan"]["version"] == 2
    assert [episode["device"] for episode in document["episodes"]] == [3]


def test_status_of_a_plan_that_waits(store: Store, run: Run) -> None:
    seeded_store.manual_run(store, begin_at=_begin_at())
    assert "plan v2 waits for a decision: `malleus approve 1 2`" in run("status", "1")


def test_what_was_not_measured_is_unknown_never_healthy(store: Store, run: Run) -> None:
    seeded_store.odd_run(store, begin_at=_begin_at())
    devices = {line.split()[0]: line.split() for line in run("status", "1").splitlines() if line.strip()}
    assert devices["2"][2] == "unknown"
    assert devices["5"][2] == "failed"
    document = json.loads(run("status", "1", "--json"), parse_constant=_no_constant)
    assert [entry["rate"] for entry in document["devices"]][2] == "NaN"
    assert document["devices"][5]["rate"] == "Infinity"


def test_samples_filter_and_page(store: Store, run: Run) -> None:
    seeded_store.odd_run(store, begin_at=_begin_at())
    rows = json.loads(run("samples", "1", "--json", "--device", "2", "--device", "5"), parse_constant=_no_constant)
    assert {row["device"] for row in rows} == {2, 5}
    assert "NaN" in {row["rate"] for row in rows}
    rows = json.loads(run("samples", "1", "--json", "--since-step", "3", "--until-step", "4", "--limit", "10"))
    assert [(row["step"], row["device"]) for row in rows][:2] == [(3, 0), (3, 1)]
    assert len(rows) == 10
    assert "has no samples in this range" in run("samples", "1", "--since-step", "1000")
    headings = "step,device,rate,compute_s,phase,grad_norm,learning_rate,tokens_per_s,mfu"
    assert run("samples", "1", "--csv", "--limit", "2").splitlines()[0] == headings
    assert (rows[0]["learning_rate"], rows[0]["mfu"]) == (3e-3, 0.42)
    assert rows[0]["tokens_per_s"] == pytest.approx(1024 / 2.0, rel=0.6)
    assert rows[0]["grad_norm"] == rows[1]["grad_norm"] > 1.0


def test_plans_and_their_rates(store: Store, run: Run) -> None:
    seeded_store.drifting_run(store, begin_at=_begin_at())
    lines = run("plans", "1").splitlines()
    assert "shift" in lines[1]
    assert "rejected" in "\n".join(lines)
    listed = json.loads(run("plans", "1", "--json"))
    assert [plan["version"] for plan in listed] == [4, 3, 2, 1]
    assert listed[2]["rates"]["3"] == 2.57


def test_audit_of_one_run_and_of_all(store: Store, run: Run) -> None:
    seeded_store.healthy_run(store, begin_at=_begin_at())
    seeded_store.straggling_run(store, begin_at=_begin_at())
    assert "command.inject" in run("audit")
    actions = {entry["action"] for entry in json.loads(run("audit", "--run", "1", "--json"))}
    assert "run.create" in actions
    assert "command.inject" not in actions


@pytest.mark.parametrize("command", ["status", "samples", "plans", "plan-diff", "audit"])
def test_an_unknown_run_names_the_known_ones(store: Store, capsys: pytest.CaptureFixture[str], command: str) -> None:
    seeded_store.healthy_run(store, begin_at=_begin_at())
    arguments = {"audit": ["--run", "7"], "plan-diff": ["7", "1", "2"]}.get(command, ["7"])
    assert main([command, *arguments]) == 2
    assert capsys.readouterr().err == "malleus: unknown run 7, known runs: 1\n"


def test_both_forms_at_once_are_refused(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--json", "--csv"]) == 2
    assert capsys.readouterr().err == "malleus: expected --json or --csv, given both\n"


def _no_constant(name: str) -> object:
    raise AssertionError(f"not strict JSON: {name}")
