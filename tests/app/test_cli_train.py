"""`malleus train` on a local system, with a scripted engine in torchrun's place."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.cli import main
from app.local import trainer
from app.local.run_paths import with_absolute_source, with_checkpoint_paths
from app.local.system import LocalSystem
from app.local.trainer import Trainer, first_plan
from db import audit, checkpoints, commands, history, runs
from db.errors import InputError
from db.run_config import RunConfig
from db.settings import Settings
from db.store import Store
from planner.errors import PlanError
from tests.app.local_world import free_port, processes_of, scripted, wait_for

SHORT = "[train]\nnum_steps = 6\n"
ENDLESS = "[train]\nnum_steps = 1000000\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def settings(home: Path) -> Settings:
    return Settings.from_env({"MALLEUS_HOME": str(home), "MALLEUS_PORT": str(free_port())})


@pytest.fixture(scope="module")
def system(settings: Settings) -> Iterator[LocalSystem]:
    """Broker, worker and controller."""
    said: list[str] = []
    with LocalSystem(settings, has_dashboard=False, say=said.append, wait=_wait) as running:
        yield running
    assert not said
    assert not processes_of(settings.home)


@pytest.fixture
def environment(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """This process's environment points to the system; returns the working directory."""
    for name in [name for name in os.environ if name.startswith("MALLEUS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MALLEUS_HOME", str(settings.home))
    monkeypatch.setenv("MALLEUS_PORT", str(settings.port))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def choose(*options: str) -> None:
        made = functools.partial(Trainer, engine=scripted(*options), first_delay_s=0.05)
        monkeypatch.setattr(trainer, "Trainer", made)

    choose()
    return choose


def test_a_run_is_followed_to_its_end(
    system: LocalSystem, environment: Path, engine: object, capsys: pytest.CaptureFixture[str]
) -> None:
    (environment / "config.toml").write_text(f'name = "short"\n{SHORT}')
    assert main(["train", "config.toml"]) == 0
    out = capsys.readouterr().out
    run = runs.all_runs(system.store)[0]
    assert out.startswith(f"run {run.id}\n")
    assert out.endswith(f"run {run.id}: finished\n")
    assert (run.name, run.status, run.step) == ("short", "finished", 5)
    assert [step.samples for step in history.steps(system.store, run.id)][-1] == (80, 96)
    folder = system.settings.home / "runs" / str(run.id)
    assert RunConfig.from_file(folder / "run.toml") == run.config
    assert not _engines(system.settings)


def test_json_prints_one_object(
    system: LocalSystem, environment: Path, engine: object, capsys: pytest.CaptureFixture[str]
) -> None:
    (environment / "config.toml").write_text(SHORT)
    assert main(["train", "config.toml", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["status"], document["step"]) == ("finished", 5)


def test_an_engine_that_fails_fails_the_run(
    system: LocalSystem, environment: Path, engine: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    engine("exit=7")
    (environment / "config.toml").write_text(SHORT)
    assert main(["train", "config.toml", "--max-restarts", "0"]) == 1
    run = runs.all_runs(system.store)[0]
    assert (run.status, run.reason) == ("failed", "the engine exited with status 7")
    assert run.num_attempts == 1
    assert f"log: {system.settings.home}/runs/{run.id}/engine.log" in capsys.readouterr().out


def test_an_engine_that_dies_is_started_again_and_goes_on_from_its_checkpoint(
    system: LocalSystem, environment: Path, engine: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    engine("exit=137", "deaths=7,11")
    (environment / "config.toml").write_text("[train]\nnum_steps = 14\n[checkpoint]\nevery_steps = 4\n")
    assert main(["train", "config.toml"]) == 0
    run = runs.all_runs(system.store)[0]
    assert (run.status, run.step, run.num_attempts, run.num_restarts) == ("finished", 13, 3, 2)
    steps = history.steps(system.store, run.id)
    assert [step.step for step in steps] == list(range(14))
    attempts = [step.attempt for step in steps]
    borders = [index for index in range(1, 14) if attempts[index] != attempts[index - 1]]
    assert borders == [4, 8], "the steps after the checkpoint are those of the attempt that ran them last"
    assert [step.samples[0] for step in steps] == [16 * index for index in range(14)]
    saved = [(entry.step, entry.status) for entry in checkpoints.all_checkpoints(system.store, run.id)]
    assert saved == [(12, "saved"), (8, "saved"), (4, "removed")]
    folder = system.settings.home / "runs" / str(run.id) / "checkpoints"
    assert checkpoints.saved(system.store, run.id)[0].path == str(folder / "step-12")
    restarts = [entry for entry in audit.entries(system.store, run.id) if entry.action == "run.restart"]
    assert [(entry.target, entry.detail["exit_code"]) for entry in restarts] == [("attempt 3", 137), ("attempt 2", 137)]
    assert "lost (attempt 2), the engine exited with status 137; started again in " in capsys.readouterr().out
    assert main(["status", str(run.id)]) == 0
    assert "attempt 3, started again 2 of 3 times" in capsys.readouterr().out


def test_a_device_that_is_asked_to_fail_kills_one_attempt(
    system: LocalSystem, environment: Path, engine: Callable[..., None]
) -> None:
    (environment / "config.toml").write_text("[train]\nnum_steps = 1000000\n[checkpoint]\nevery_steps = 4\n")
    said: list[str] = []

    def malleus(*arguments: str) -> str:
        root = str(Path(__file__).parents[2])
        argv = [sys.executable, "-m", "app.cli", *arguments]
        return subprocess.run(
            argv, env=os.environ | {"PYTHONPATH": root}, capture_output=True, text=True, check=False
        ).stdout

    def ask() -> None:
        wait_for(lambda: _newest_step(system.store) >= 6, "it trains")
        run = runs.all_runs(system.store)[0].id
        said.append(malleus("fail", str(run), "--device", "5"))
        wait_for(lambda: runs.get(system.store, run).num_attempts == 2, "it is started again")
        wait_for(lambda: runs.get(system.store, run).status == "training", "it trains again")
        said.append(malleus("inject", str(run), "--device", "1", "--rate", "2"))  # a document that still names it
        os.kill(os.getpid(), signal.SIGINT)

    asker = threading.Thread(target=ask)
    asker.start()
    assert main(["train", "config.toml"]) == 0
    asker.join()
    run = runs.all_runs(system.store)[0]
    assert (run.status, run.num_attempts, run.num_restarts) == ("stopped", 2, 1)
    failed = next(entry for entry in commands.recent(system.store, run.id) if entry.kind == "fail")
    assert failed.status == "applied"
    assert failed.applied_step is not None
    outlook, answer = said[0].splitlines()
    assert "started again (restart 1 of 3) from the checkpoint of step " in outlook
    assert answer == f"fail: applied at step {failed.applied_step}"
    assert said[1].startswith("inject: applied at step ")
    restart = next(entry for entry in audit.entries(system.store, run.id) if entry.action == "run.restart")
    assert restart.detail["reason"] in (
        "the engine failed: device 5 failed on request",
        f"the engine exited with status {128 + signal.SIGKILL}",  # its launcher was faster than its words
    )
    steps = [step.step for step in history.steps(system.store, run.id)]
    assert steps == list(range(len(steps))), "what was run again counts once"


def test_an_engine_that_keeps_dying_fails_the_run(
    system: LocalSystem, environment: Path, engine: Callable[..., None]
) -> None:
    engine("exit=7")
    (environment / "config.toml").write_text(SHORT)
    assert main(["train", "config.toml", "--max-restarts", "2"]) == 1
    run = runs.all_runs(system.store)[0]
    expected = "the engine exited with status 7; it was started again 2 times before"
    assert (run.status, run.reason, run.num_attempts) == ("failed", expected, 3)


def test_an_engine_that_dies_without_a_step_is_started_again_once(
    system: LocalSystem, environment: Path, engine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "LAST_WORDS_S", 0.5)
    engine("exit=7", "deaths=0,0,0")
    (environment / "config.toml").write_text(SHORT)
    assert main(["train", "config.toml"]) == 1
    run = runs.all_runs(system.store)[0]
    expected = "the engine exited with status 7; no new step or checkpoint since it was started again"
    assert (run.status, run.reason, run.num_restarts) == ("failed", expected, 1)


def test_an_engine_whose_input_is_wrong_is_not_started_again(
    system: LocalSystem, environment: Path, engine: Callable[..., None]
) -> None:
    engine("exit=2")
    (environment / "config.toml").write_text(SHORT)
    assert main(["train", "config.toml"]) == 1
    run = runs.all_runs(system.store)[0]
    assert (run.status, run.reason, run.num_restarts) == ("failed", "the engine exited with status 2", 0)


@pytest.mark.parametrize("by", ["command", "signal"])
def test_a_stop_before_a_restart_ends_the_run(
    system: LocalSystem, environment: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    slow = functools.partial(Trainer, engine=scripted("exit=7"), first_delay_s=600.0)
    monkeypatch.setattr(trainer, "Trainer", slow)
    (environment / "config.toml").write_text(SHORT)
    known = len(runs.all_runs(system.store))

    def stop_once_it_is_lost() -> None:
        wait_for(
            lambda: len(found := runs.all_runs(system.store)) > known and found[0].num_restarts == 1, "the engine dies"
        )
        if by == "signal":
            os.kill(os.getpid(), signal.SIGINT)
        else:
            commands.submit(system.store, runs.all_runs(system.store)[0].id, "stop", {}, actor="ann", source="cli")

    threading.Thread(target=stop_once_it_is_lost).start()
    assert main(["train", "config.toml"]) == 0
    run = runs.all_runs(system.store)[0]
    assert (run.status, run.reason) == ("stopped", "the engine exited with status 7")
    wait_for(lambda: commands.recent(system.store, run.id, 1)[0].status == "applied", "the stop is acknowledged")


def test_a_checkpoint_is_asked_for_listed_and_started_from(
    system: LocalSystem, environment: Path, engine: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    (environment / "config.toml").write_text(ENDLESS)
    said: list[str] = []

    def ask() -> None:
        wait_for(lambda: _newest_step(system.store) >= 3, "it trains")
        run = runs.all_runs(system.store)[0].id
        root = str(Path(__file__).parents[2])
        argv = [sys.executable, "-m", "app.cli", "checkpoint", str(run)]
        asked = subprocess.run(argv, env=os.environ | {"PYTHONPATH": root}, capture_output=True, text=True, check=False)
        said.append(asked.stdout)
        os.kill(os.getpid(), signal.SIGINT)

    asker = threading.Thread(target=ask)
    asker.start()
    assert main(["train", "config.toml"]) == 0
    asker.join()
    first = runs.all_runs(system.store)[0]
    saved = checkpoints.saved(system.store, first.id)[0]
    assert said == [f"checkpoint: applied at step {saved.step}: saved to {saved.path}\n"]
    capsys.readouterr()
    assert main(["checkpoints", str(first.id)]) == 0
    out = capsys.readouterr().out
    assert saved.path in out
    assert "saved" in out
    assert main(["checkpoints", str(first.id), "--json"]) == 0
    assert [entry["step"] for entry in json.loads(capsys.readouterr().out)] == [saved.step]

    (environment / "config.toml").write_text(SHORT)
    for source in (str(first.id), saved.path, os.path.relpath(saved.path, environment)):
        assert main(["train", "config.toml", "--from", source]) == 0
        new = runs.all_runs(system.store)[0]
        assert new.config.checkpoint.start_from == str(Path(saved.path).resolve())
        assert new.id > first.id
        assert new.config.checkpoint.folder == ""
    shutil.rmtree(saved.path)
    capsys.readouterr()
    assert main(["train", "config.toml", "--from", str(first.id)]) == 2
    expected = f"malleus: expected the checkpoint of run {first.id} at {saved.path}, found nothing there\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("nowhere", "--from must be the number of a run or a folder with a checkpoint or a model, given nowhere"),
        ("empty", "--from must be the number of a run or a folder with a checkpoint or a model, given empty"),
        (
            "config.toml",
            "--from must be the number of a run or a folder with a checkpoint or a model, given config.toml",
        ),
        ("9999", "unknown run 9999"),
    ],
)
def test_nothing_to_start_from_registers_nothing(
    system: LocalSystem, environment: Path, capsys: pytest.CaptureFixture[str], source: str, expected: str
) -> None:
    (environment / "config.toml").write_text(SHORT)
    (environment / "empty").mkdir()
    before = len(runs.all_runs(system.store))
    assert main(["train", "config.toml", "--from", source]) == 2
    assert expected in capsys.readouterr().err
    assert len(runs.all_runs(system.store)) == before


def test_an_engine_that_cannot_start_fails_the_run(
    system: LocalSystem, environment: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = functools.partial(Trainer, engine=lambda *_: ["/nowhere/torchrun"])
    monkeypatch.setattr(trainer, "Trainer", nowhere)
    (environment / "config.toml").write_text(SHORT)
    assert main(["train", "config.toml"]) == 1
    assert runs.all_runs(system.store)[0].status == "failed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_first_request_stops_the_run_after_its_step(
    system: LocalSystem, environment: Path, engine: object, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    (environment / "config.toml").write_text(ENDLESS)
    _send_when(number, system.store, lambda run: (run.step or 0) >= 3)
    assert main(["train", "config.toml"]) == 0
    run = runs.all_runs(system.store)[0]
    assert run.status == "stopped"
    assert "stopping; Ctrl-C again kills it" in capsys.readouterr().out
    stop = commands.recent(system.store, run.id, 1)[0]
    assert (stop.kind, stop.status) == ("stop", "applied")


def test_a_second_request_kills_the_engine(system: LocalSystem, environment: Path, engine: object) -> None:
    (environment / "config.toml").write_text(ENDLESS)

    def hold_then_interrupt() -> None:
        wait_for(lambda: _newest_step(system.store) >= 3, "it trains")
        pids = [
            pid
            for pid, line in processes_of(system.settings.home).items()
            if "keeper" not in line and "scripted" in line
        ]
        os.kill(pids[0], signal.SIGSTOP)  # an engine that hears nothing
        os.kill(os.getpid(), signal.SIGINT)
        wait_for(lambda: runs.all_runs(system.store)[0].is_stopping, "it is asked to stop")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=hold_then_interrupt).start()
    assert main(["train", "config.toml"]) == 0
    run = runs.all_runs(system.store)[0]
    assert (run.status, run.reason) == ("stopped", "the engine exited with status 137")
    assert not _engines(system.settings)


def test_the_engine_dies_with_a_trainer_that_is_killed(system: LocalSystem, environment: Path) -> None:
    run = runs.create(system.store, RunConfig.from_toml(ENDLESS), plan=first_plan(RunConfig()), actor="test")
    script = (
        "import sys, time; from pathlib import Path; from app.local.trainer import Trainer; from db import runs; "
        "from db.settings import Settings; from db.store import Store; from tests.app.local_world import scripted; "
        "settings = Settings.from_env(); store = Store.open(settings.database_url); "
        f"Trainer(store, settings, runs.get(store, {run.id}), engine=scripted()); time.sleep(600)"
    )
    root = str(Path(__file__).parents[2])
    owner = subprocess.Popen([sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": root})
    try:
        wait_for(lambda: _newest_step(system.store) >= 3, "it trains")
    finally:
        owner.kill()
        owner.wait()
    wait_for(lambda: not _engines(system.settings), "the engine ends")
    runs.engine_exited(system.store, run.id, 137)


def test_detached_it_goes_on_in_the_background(
    system: LocalSystem, environment: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Python imports this module by itself at start-up: so the child gets the scripted engine without an option.
    (environment / "sitecustomize.py").write_text(
        "import app.local.commands\nfrom tests.app.local_world import scripted\n"
        "app.local.commands.torchrun = scripted()\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{environment}:{Path(__file__).parents[2]}")
    (environment / "config.toml").write_text(SHORT)
    assert main(["train", "config.toml", "--detach", "--json"]) == 0
    run = json.loads(capsys.readouterr().out)["run"]
    wait_for(lambda: runs.get(system.store, run).status == "finished", "the run ends")
    assert runs.get(system.store, run).max_restarts == 3
    wait_for(lambda: not _engines(system.settings), "the trainer ends")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[train", "config.toml: not valid TOML"),
        ("[train]\nnum_steps = 0\n", "train.num_steps: Input should be greater than or equal to 1, given 0"),
        ("[trane]\n", "trane: Extra inputs are not permitted"),
        ("[parallel]\npp = 4\n", "plan refused: dp 2 x pp 4 needs 8 groups of 2 devices"),
        ("[train]\nglobal_batch = 2\n", "plan refused: every pipeline needs at least pp = 2 micro-batches"),
        ('[data]\nsource = "no/such/folder"\n', "data.source must be 'stdlib' or an existing file or folder"),
    ],
)
def test_a_bad_configuration_registers_nothing(
    system: LocalSystem, environment: Path, engine: object, capsys: pytest.CaptureFixture[str], text: str, expected: str
) -> None:
    before = len(runs.all_runs(system.store))
    (environment / "config.toml").write_text(text)
    assert main(["train", "config.toml"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("malleus: ")
    assert captured.err.count("\n") == 1
    assert expected in captured.err
    assert len(runs.all_runs(system.store)) == before


def test_a_missing_file_is_refused(system: LocalSystem, environment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "none.toml"]) == 2
    assert capsys.readouterr().err.startswith("malleus: cannot read none.toml: ")


def test_without_a_broker_nothing_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MALLEUS_HOME", str(tmp_path))
    monkeypatch.delenv("MALLEUS_REDIS_URL", raising=False)
    (tmp_path / "config.toml").write_text(SHORT)
    assert main(["train", str(tmp_path / "config.toml")]) == 2  # before any `up`
    assert capsys.readouterr().err == f"malleus: no database at {tmp_path}/malleus.db: run `malleus up` first\n"
    with Store.open(f"sqlite:///{tmp_path}/malleus.db", migrate=True) as store:
        assert main(["train", str(tmp_path / "config.toml")]) == 2
        assert capsys.readouterr().err.startswith("malleus: no broker: expected MALLEUS_REDIS_URL or a running ")
        assert runs.all_runs(store) == []
        assert audit.entries(store) == []


def test_without_a_controller_nothing_is_registered(
    system: LocalSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MALLEUS_HOME", str(system.settings.home))  # its broker
    monkeypatch.setenv("MALLEUS_DATABASE_URL", f"sqlite:///{tmp_path}/other.db")
    (tmp_path / "config.toml").write_text(SHORT)
    with Store.open(f"sqlite:///{tmp_path}/other.db", migrate=True) as store:
        assert main(["train", str(tmp_path / "config.toml")]) == 2
        expected = "malleus: expected a running controller (`malleus up` starts one), none was heard ever\n"
        assert capsys.readouterr().err == expected
        assert runs.all_runs(store) == []


def test_a_relative_source_is_made_absolute(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    config = RunConfig.from_toml('[data]\nsource = "texts"\n')
    assert with_absolute_source(config, tmp_path).data.source == str(tmp_path / "texts")
    assert with_absolute_source(RunConfig(), tmp_path) == RunConfig()
    with pytest.raises(InputError, match="existing file or folder"):
        with_absolute_source(config, tmp_path / "texts")


def test_paths_of_checkpoints_are_made_absolute(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    config = RunConfig.from_toml('[checkpoint]\nfolder = "kept"\nstart_from = "model"\n')
    checked = with_checkpoint_paths(config, tmp_path).checkpoint
    assert (checked.folder, checked.start_from) == (str(tmp_path / "kept"), str(tmp_path / "model"))
    assert with_checkpoint_paths(RunConfig(), tmp_path) == RunConfig()
    with pytest.raises(InputError, match=r"start_from must be a folder with a checkpoint or a model, given '.*/kept/"):
        with_checkpoint_paths(config, tmp_path / "kept")


def test_a_relative_tokenizer_is_made_absolute(tmp_path: Path) -> None:
    config = RunConfig.from_toml('[data]\ntokenizer = "words/tokenizer.json"\n')
    with pytest.raises(InputError, match=r"must be 'bytes' or an existing tokenizer\.json, given '.*/words/token"):
        with_absolute_source(config, tmp_path)
    (tmp_path / "words" / "tokenizer.json").mkdir(parents=True)
    with pytest.raises(InputError, match="existing tokenizer"):  # a folder is none
        with_absolute_source(config, tmp_path)
    (tmp_path / "words" / "tokenizer.json").rmdir()
    (tmp_path / "words" / "tokenizer.json").touch()
    data = with_absolute_source(config, tmp_path).data
    assert (data.source, data.tokenizer) == ("stdlib", str(tmp_path / "words" / "tokenizer.json"))


def test_a_relative_megatron_prefix_is_made_absolute(tmp_path: Path) -> None:
    config = RunConfig.from_toml('[data]\nformat = "megatron"\nsource = "corpus_text_document"\n')
    for ending in (".idx", ".bin"):
        with pytest.raises(InputError, match=rf"an \.idx and a \.bin file, found no .*/corpus_text_document\{ending}"):
            with_absolute_source(config, tmp_path)
        (tmp_path / f"corpus_text_document{ending}").touch()
    assert with_absolute_source(config, tmp_path).data.source == str(tmp_path / "corpus_text_document")
    stdlib = RunConfig.from_toml('[data]\nformat = "megatron"\n')
    with pytest.raises(InputError, match=r"found no .*/stdlib\.idx"):
        with_absolute_source(stdlib, tmp_path)


def test_the_first_plan_obeys_the_rules() -> None:
    assert len(first_plan(RunConfig())["pipelines"]) == 2
    with pytest.raises(PlanError, match="needs 8 groups"):
        first_plan(RunConfig.from_toml("[parallel]\npp = 4\n"))


def _send_when(number: signal.Signals, store: Store, condition: Callable[[runs.RunView], bool]) -> None:
    """Sends this process a signal once the newest run fulfils the condition."""
    known = len(runs.all_runs(store))

    def work() -> None:
        wait_for(lambda: len(found := runs.all_runs(store)) > known and condition(found[0]), "the run gets so far")
        os.kill(os.getpid(), number)

    threading.Thread(target=work).start()


def _newest_step(store: Store) -> int:
    newest = next(iter(runs.all_runs(store)), None)
    return newest.step or 0 if newest is not None and newest.is_open else 0


def _engines(settings: Settings) -> list[str]:
    return [
        line
        for line in processes_of(settings.home).values()
        if "scripted_engine" in line or "app.local.trainer" in line
    ]


def _wait(timeout_s: float) -> bool:
    time.sleep(timeout_s)
    return False
