"""Commands that ask: they write one row, wait for what comes of it, and refuse bad input before that."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.cli import main
from app.commands.control import parse_duration
from db import commands, runs
from db.errors import InputError
from db.store import Store
from tests.app import seeded_store
from tests.app.seeded_run import absorbing_plan

Answer = Callable[[Store, commands.CommandView], None]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a training run, run 2 with a plan that waits for a decision, and an ended run 3."""
    folder = tmp_path_factory.mktemp("template")
    with Store.open(seeded_store.database_url(folder), migrate=True) as store:
        begin_at = datetime.now(UTC) - timedelta(minutes=30)
        seeded_store.straggling_run(store, begin_at=begin_at)
        seeded_store.manual_run(store, begin_at=begin_at)
        seeded_store.finished_run(store, begin_at=begin_at)
    return folder


@pytest.fixture
def store(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    for name in ("MALLEUS_DATABASE_URL", "MALLEUS_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MALLEUS_HOME", str(tmp_path))
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    with Store.open(seeded_store.database_url(tmp_path)) as opened:
        yield opened


@pytest.fixture
def answered(store: Store) -> Iterator[Callable[[Answer], None]]:
    """Answers every command as a controller would, in the background."""
    is_over = threading.Event()
    threads: list[threading.Thread] = []

    def start(answer: Answer) -> None:
        def work() -> None:
            while not is_over.wait(0.02):
                for command in commands.pending(store):
                    answer(store, command)

        threads.append(threading.Thread(target=work))
        threads[-1].start()

    yield start
    is_over.set()
    for thread in threads:
        thread.join()


def _apply(store: Store, command: commands.CommandView) -> None:
    version = runs.change(store, command.run)
    commands.accept(store, command.id, desired_version=version)
    commands.apply_observed(store, command.run, version, 321)


def _fail(store: Store, command: commands.CommandView) -> None:
    commands.finish(store, command.id, ok=False, result="the engine is gone")


@pytest.mark.parametrize(
    ("arguments", "kind", "expected"),
    [
        (["inject", "1", "--device", "3", "--rate", "2.57"], "inject", {"devices": [3], "rate": 2.57, "for_s": None}),
        (
            ["inject", "1", "--device", "5", "--device", "3", "--rate", "12.53", "--for", "1.5m"],
            "inject",
            {"devices": [3, 5], "rate": 12.53, "for_s": 90.0},
        ),
        (["clear", "1"], "clear", {"devices": None}),
        (["clear", "1", "--device", "3"], "clear", {"devices": [3]}),
        (["pause", "1"], "pause", {}),
        (["resume", "1"], "resume", {}),
        (["stop", "1"], "stop", {}),
        (["approve", "2"], "approve", {"version": 2, "reason": ""}),  # the one that is ready
        (["reject", "2", "2", "--reason", "too risky"], "reject", {"version": 2, "reason": "too risky"}),
        (["rollback", "1"], "rollback", {"version": 1, "reason": ""}),  # the one before the active one
        (["replan", "1"], "replan", {}),
        (["mode", "1", "manual"], "set_mode", {"mode": "manual"}),
    ],
)
def test_a_command_is_submitted_and_its_step_reported(
    store: Store,
    answered: Callable[[Answer], None],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    kind: str,
    expected: dict[str, object],
) -> None:
    answered(_apply)
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{kind}: applied at step 321\n"
    newest = commands.recent(store, int(arguments[1]), 1)[0]
    assert (newest.kind, newest.arguments, newest.source) == (kind, expected, "cli")
    assert newest.actor


def test_a_failure_says_first_what_it_leads_to(
    store: Store, answered: Callable[[Answer], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def die(store: Store, command: commands.CommandView) -> None:
        version = runs.change(store, command.run)
        commands.accept(store, command.id, desired_version=version)
        commands.apply_observed(store, command.run, version, 321, attempt=command.arguments["attempt"])

    assert main(["fail", "2", "--device", "3", "--no-wait"]) == 0
    outlook, answer = capsys.readouterr().out.splitlines()
    assert outlook == "The engine ends and no restart is left (0 allowed): the run ends as failed."
    assert answer.startswith("fail: submitted (command ")
    answered(die)
    runs.watch_engine(store, 1, max_restarts=3)
    assert main(["fail", "1", "--device", "3"]) == 0
    outlook, answer = capsys.readouterr().out.splitlines()
    assert outlook == (
        "The engine ends and is started again (restart 1 of 3) from step 0: there is no checkpoint yet. "
        "155 steps are repeated."
    )
    assert answer == "fail: applied at step 321"
    assert commands.recent(store, 1, 1)[0].arguments == {"device": 3, "attempt": "first"}


def test_json_is_the_row(store: Store, answered: Callable[[Answer], None], capsys: pytest.CaptureFixture[str]) -> None:
    answered(_apply)
    assert main(["clear", "1", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["kind"], row["status"], row["applied_step"]) == ("clear", "applied", 321)


def test_a_command_that_fails_gives_its_reason_and_status_1(
    store: Store, answered: Callable[[Answer], None], capsys: pytest.CaptureFixture[str]
) -> None:
    answered(_fail)
    assert main(["pause", "1"]) == 1
    assert capsys.readouterr().err.endswith("failed: the engine is gone\n")


def test_nobody_takes_it_up(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pause", "1", "--timeout", "0.2"]) == 1
    error = capsys.readouterr().err
    assert "is still pending after 0.2 s; the controller was last heard never" in error
    assert error.count("\n") == 1


def test_without_waiting_it_only_submits(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pause", "1", "--no-wait"]) == 0
    assert capsys.readouterr().out.startswith("pause: submitted (command ")
    assert [command.kind for command in commands.pending(store)] == ["pause"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["inject", "1", "--device", "3", "--rate", "nan"], "rate must be a positive finite number, given nan"),
        (["inject", "1", "--device", "3", "--rate", "0"], "rate must be a positive finite number, given 0.0"),
        (["inject", "1", "--device", "3", "--rate=-2.5"], "rate must be a positive finite number, given -2.5"),
        (["inject", "1", "--device", "3", "--rate", "inf"], "rate must be a positive finite number, given inf"),
        (["inject", "1", "--device", "3", "--rate", "fast"], "--rate"),
        (["inject", "1", "--device", "8", "--rate", "2"], "device must be 0..7, given 8"),
        (["inject", "1", "--device", "-1", "--rate", "2"], "device must be 0..7, given -1"),
        (["inject", "1", "--device", "3", "--rate", "2", "--for", "soon"], "--for must be a positive time"),
        (["inject", "1", "--device", "3", "--rate", "2", "--for", "0s"], "--for must be a positive time"),
        (["inject", "1", "--rate", "2"], "Missing option '--device'"),
        (["inject", "99", "--device", "3", "--rate", "2"], "unknown run 99, known runs: 1, 2, 3"),
        (["inject", "3", "--device", "3", "--rate", "2"], "run 3 has ended (finished)"),
        (["clear", "1", "--device", "77"], "device must be 0..7, given 77"),
        (["fail", "1", "--device", "8"], "device must be 0..7, given 8"),
        (["fail", "1"], "Missing option '--device'"),
        (["fail", "3", "--device", "3"], "run 3 has ended (finished)"),
        (["fail", "99", "--device", "3"], "unknown run 99"),
        (["pause", "one"], "run"),
        (["pause", "1", "--timeout", "0"], "--timeout"),
        (["approve", "1"], "run 1 has no plan that is ready"),
        (["approve", "1", "7"], "run 1 has no plan 7, known versions: 1, 2"),
        (["rollback", "2"], "run 2 has no plan that is superseded"),
        (["rollback", "1", "2"], "plan 2 is active, expected one that is superseded"),
    ],
)
def test_bad_input_is_one_line_status_2_and_nothing_written(
    store: Store, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    before = [len(commands.recent(store, run, 100)) for run in (1, 2, 3)]
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("malleus: ")
    assert captured.err.count("\n") == 1
    assert expected in captured.err
    assert [len(commands.recent(store, run, 100)) for run in (1, 2, 3)] == before


@pytest.mark.parametrize(("text", "seconds"), [("60s", 60), ("5m", 300), ("1.5h", 5400), ("90", 90), (" 2 m ", 120)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-5s", "nan", "inf", "1d", "1e9s"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(InputError, match="positive time"):
        parse_duration(text)


def test_play_submits_a_situation_or_a_schedule(
    store: Store, answered: Callable[[Answer], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["play", "1", "--situation", "S3", "--no-wait", "--json"]) == 0
    asked = json.loads(capsys.readouterr().out)
    assert asked["arguments"]["name"] == "S3"
    assert [(entry["device"], entry["rate"]) for entry in asked["arguments"]["entries"]] == [(3, 2.57), (7, 5.42)]
    commands.finish(store, asked["id"], ok=False, result="ended")
    file = tmp_path / "drill.csv"
    file.write_text("second,device,rate,for_s\n0,3,2.57,10\n", encoding="utf-8")
    answered(lambda store, command: commands.finish(store, command.id, ok=True, result="1 injections played", step=9))
    assert main(["play", "1", "--schedule", str(file)]) == 0
    assert "play: applied at step 9" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "given neither"),
        (["--situation", "S1", "--schedule", "x.csv"], "given both"),
        (["--situation", "S9"], "situation must be one of"),
        (["--situation", "S0"], "nothing to play"),
        (["--schedule", "missing.csv"], "cannot read missing.csv"),
        (["--schedule", "bad.csv"], "bad.csv: line 1: device must be 0..7, given 9; line 2: rate must be a number"),
    ],
)
def test_play_refuses(
    store: Store,
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.csv").write_text("0,9,2\n0,1,x\n", encoding="utf-8")
    known = len(commands.recent(store, 1))
    assert main(["play", "1", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert len(commands.recent(store, 1)) == known


def test_propose_brings_the_plan_of_a_file(
    store: Store, answered: Callable[[Answer], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answered(lambda store, command: commands.finish(store, command.id, ok=True, result="plan 3 is ready") and None)
    plan = absorbing_plan().to_json()
    for document in (plan, {"plans": [{"plan": plan}]}):
        file = tmp_path / "plan.json"
        file.write_text(json.dumps(document))
        assert main(["propose", "1", str(file), "--reason", "a test"]) == 0
        assert "propose: plan 3 is ready" in capsys.readouterr().out
        command = commands.recent(store, 1)[0]
        assert command.arguments == {"document": plan, "reason": "a test", "what_if": None}


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "is not readable JSON"), ("{}", "schema must be 1, given None"), ('{"plans": []}', "must hold a plan")],
)
def test_propose_refuses_what_is_no_plan(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)
    before = commands.recent(store, 1)
    assert main(["propose", "1", str(file)]) == 2
    assert said in capsys.readouterr().err
    assert commands.recent(store, 1) == before
